# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv if need be.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.fl-dp-stamp
# Twice quiet: errors are shown, and warnings about the registry in use are not.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: help demo test lint format setup clean

help: ## What there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: $(STAMP) ## Train digits under client-level DP at epsilon 2 and 8, about two minutes
	$(BIN)/fl-dp run -m privacy.epsilon=2,8

test: lint ## Every check: lint, types, layers, tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(STAMP) ## Style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(STAMP) ## The environment alone

# Rebuilt when the lock file or the package's metadata changed; an interrupted set-up has no stamp.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fl-dp needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up .venv (once; a minute or two with warm caches)"
	@rm -f $(STAMP)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { echo "No virtual environment: install your system's python3-venv package"; exit 1; }
	@echo "  1/3 torch"
	@$(PIP) "$$(grep '^torch==' requirements.lock)" \
	  || { echo "torch could not be installed: is a package registry reachable?"; exit 1; }
	@echo "  2/3 the tested set of packages"
	@$(PIP) -r requirements.lock \
	  || { echo "A package of requirements.lock could not be installed: see the lines above"; exit 1; }
	@echo "  3/3 fl-dp itself"
	@$(PIP) --no-deps --no-build-isolation --editable . \
	  || { echo "fl-dp could not be installed: see the lines above"; exit 1; }
	@touch $(STAMP)

clean: ## Remove the environment and every cache, keep runs/
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
