# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv if need be.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.fl-dp-stamp
# Twice quiet: errors are shown, and warnings about the registry in use are not.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# Between the extras of one call.
COMMA := ,

# Where PyTorch comes from, if not from pip's usual index: its CPU build spares gigabytes.
TORCH_INDEX ?=
TORCH = $(TORCH_INDEX:%=--index-url %) "$$(grep -o '^torch==[^ ]*' requirements.lock)"

# `make quick`: these rooms, less what is marked slow; 60 s of a processor are left.
QUICK := tests/mechanisms tests/updates tests/plan tests/statistics tests/clients tests/tasks/datasets \
  tests/tasks/models tests/tasks/training tests/secagg

# `make bench`: what each script is given. A test knows those that are left out, and why.
BENCH_accounting := --json
BENCH_accuracy := --seeds 0,1,2
BENCH_aggregation := --json
BENCH_clients := --case dp_sgd --json
BENCH_compression := --json
BENCH_correlated := --json
BENCH_dashboard := --json
BENCH_endurance := --json
BENCH_large_model := --json --mib 96
BENCH_less_to_protect := --json
BENCH_lying_client :=
BENCH_noise := --json
BENCH_noise_arms := --json --folder results/noise_arms
BENCH_own_budgets := --json
BENCH_real_nodes := --json
BENCH_rounds := --json
BENCH_secagg := --json
BENCH_secagg_scale := --json --set-up
BENCH_startup :=
BENCH_tuning := --json
BENCH_stock_flower :=
# `make experiments`: files of conf/experiment/ that are sweeps, in the order of docs/experiments.md.
EXPERIMENTS := privacy_levels privacy_levels_fashion privacy_levels_cifar10 client_count schedules selection own_budgets udp_formula correlated_noise asynchronous
BENCHES := $(sort $(patsubst BENCH_%,%,$(filter BENCH_%,$(.VARIABLES))))

# `make federation`: central, dp_sgd, local or distributed.
PRIVACY ?= local

# `make flower`: what stands in for the locked Flower, a nightly of its next version among them.
FLWR ?= flwr==1.41.*

# The tests in which Flower itself works: its messages, grids, strategies, commands, engine and nodes.
FLOWER := tests/protocol tests/deploy tests/faults/test_real_nodes.py tests/app/local \
  tests/app/test_deployment.py tests/app/test_hostile_server.py tests/app/test_in_process.py tests/app/test_interruption.py \
  tests/app/test_node_owners.py tests/app/test_refusals.py tests/app/test_secure_deployment.py \
  tests/app/test_simulation.py tests/clients/test_node_policy.py \
  tests/clients/test_node_privacy.py tests/clients/test_numpy_client_app.py \
  tests/commands/test_status_command.py tests/commands/new_app tests/examples/test_extend.py \
  tests/examples/test_hub.py tests/strategies/test_exchange.py tests/strategies/test_field_cases.py \
  tests/strategies/test_rehearsal.py \
  tests/strategies/test_server_optimizers.py tests/strategies/test_should_stop.py \
  tests/strategies/test_subclasses.py

.PHONY: help demo federation flower quick test test-all coverage lint format docs site sbom advisories notes pictures bench experiments recovery wheel lock setup clean
.NOTPARALLEL: # two timings at once would measure each other

help: ## What there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: $(STAMP) ## Train digits under client-level DP at epsilon 2 and 8, about two minutes
	$(BIN)/fl-dp run -m privacy.epsilon=2,8 simulation.engine=flower

federation: $(STAMP) ## SuperLink and SuperNodes behind gates, all protections on, a training, three minutes; APP=folder runs yours
	$(BIN)/python deploy/federation.py --privacy $(PRIVACY) $(if $(APP),--app $(APP))

quick: $(STAMP) ## Unit tests, under a minute
	$(BIN)/python -m pytest -n 2 -q -m "not slow and not nightly" $(QUICK)

# Lint runs beside the tests, as mypy keeps one processor for minutes; its words come after theirs.
# Bytecode is kept whatever the environment says: two hundred processes would compile it again.
define lint_beside_tests
@log=$$(mktemp); $(MAKE) lint > $$log 2>&1 & lint=$$!; \
trap 'kill $$lint 2>/dev/null; rm -f $$log' EXIT; trap 'exit 130' INT TERM; \
PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadgroup $(1); tested=$$?; \
wait $$lint; linted=$$?; cat $$log; test $$tested -eq 0 -a $$linted -eq 0
endef

test: $(STAMP) ## Lint, types, layers and every test but the nightly ones
	$(call lint_beside_tests)

# An empty expression takes every test. Real nodes wait for Flower's own minutes.
test-all: $(STAMP) ## Every test, with real nodes and whole trainings: over an hour; run each night
	$(call lint_beside_tests,-m "")

coverage: $(STAMP) ## Every test, and which lines none of them runs: results/coverage
	$(BIN)/python -m pytest -n 2 --dist loadgroup --cov --cov-report=term --cov-report=html

# Only Flower is replaced, so that no other package's version explains a failure. The locked one is
# left out by name: a nightly is a package of another name, and would stand beside it.
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
flower: $(STAMP) ## Flower's part of the tests with another version: FLWR=flwr-nightly==1.43.0.dev20261026
	rm -rf .venv-flower
	$(BIN)/python -m venv .venv-flower
	mkdir .venv-flower/locked
	ln -s "$$($(BIN)/python $(PURELIB))"/* .venv-flower/locked
	rm .venv-flower/locked/flwr* .venv-flower/locked/*fl_dp*
	ln -s "$(CURDIR)/$(BIN)/ruff" "$(CURDIR)/$(BIN)/uv" .venv-flower/bin
	echo "import site; site.addsitedir('$(CURDIR)/.venv-flower/locked')" \
	  > "$$(.venv-flower/bin/python $(PURELIB))/locked.pth"
	$(PIP:$(BIN)/%=.venv-flower/bin/%) --no-deps "$(FLWR)"
	$(PIP:$(BIN)/%=.venv-flower/bin/%) --no-deps --no-build-isolation --editable .
	.venv-flower/bin/python -m pytest -n 2 --dist loadgroup -m "" $(FLOWER)

lint: $(STAMP) ## Style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## Write the generated tables, follow every link, run the examples of the pages
	$(BIN)/python docs/tables.py
	PYTHONPATH=tests/support $(BIN)/python docs/rests_on.py
	$(BIN)/python docs/draw_rooms.py
	$(BIN)/python docs/draw_secure_sum.py
	$(BIN)/python -m pytest -q -m "" tests/docs

site: $(STAMP) ## The documentation as a site that loads nothing from elsewhere: site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

sbom: $(STAMP) ## A bill of materials of the tested packages: dist/sbom.json
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/sbom.json requirements.lock

advisories: $(STAMP) ## What public advisories say of the tested packages; needs a network
	$(BIN)/pip-audit --disable-pip --no-deps --requirement requirements.lock

notes: $(STAMP) ## What the changelog says of this version: dist/notes.md
	@mkdir -p dist
	awk '/^## /{n++} n==1' CHANGELOG.md > dist/notes.md
	test -s dist/notes.md

# Needs Chromium (Debian: apt install chromium). The pictures of experiments are of `make experiments`.
pictures: $(STAMP) ## The demo's picture, screens of report and dashboard, drawings of the docs; look at each
	@mkdir -p results/pictures
	if test -f results/pictures/digits/sweep.json; \
	  then $(BIN)/fl-dp run resume=results/pictures/digits; \
	  else $(BIN)/fl-dp run -m privacy.epsilon=2,8 seed=0,1,2 simulation.engine=in_process \
	    output_dir=results/pictures run_name=digits; fi
	cp results/pictures/digits/accuracy.png docs/images/digits.png
	$(BIN)/python docs/draw_rooms.py
	$(BIN)/python docs/draw_secure_sum.py
	$(BIN)/python docs/draw_screens.py

bench: $(BENCHES:%=bench-%) ## Time and train against the peers, for hours: results/

bench-%: $(STAMP)
	@mkdir -p results
	$(BIN)/python benchmarks/$*.py $(BENCH_$*) > results/$*.part
	@mv results/$*.part results/$*$(if $(findstring --json,$(BENCH_$*)),.json,.md)

experiments: $(EXPERIMENTS:%=experiment-%) recovery ## Every experiment and its picture; goes on where it was stopped

# Once begun, a sweep goes on by itself, and what is finished is not trained again.
experiment-%: $(STAMP)
	@mkdir -p results/experiments
	if test -f results/experiments/$*/sweep.json; \
	  then $(BIN)/fl-dp run resume=results/experiments/$*; \
	  else $(BIN)/fl-dp run -m experiment=$* output_dir=results/experiments run_name=$*; fi
	cp results/experiments/$*/experiment.png docs/images/$*.png

experiment-privacy_levels_cifar10: runs/cifar16
runs/cifar16: | $(STAMP)
	$(BIN)/python benchmarks/halved_photographs.py $@

# An attack: pictures of its own, which docs/attacks.md shows.
recovery: $(STAMP) ## The attack on pictures, three seeds, and its pictures
	@mkdir -p results/experiments
	if test -d results/experiments/data_recovery; \
	  then $(BIN)/fl-dp attack inversion resume=results/experiments/data_recovery; \
	  else $(BIN)/fl-dp attack inversion experiment=data_recovery output_dir=results/experiments run_name=data_recovery; fi
	cp results/experiments/data_recovery/images.png docs/images/attack_images.png
	cp results/experiments/data_recovery/recovery.png docs/images/attack_noise.png

# Installs the wheel with the extras of a role, as its user does; what is asked afterwards is asked from
# elsewhere, so that nothing of the checkout is imported.
define installed
$(PYTHON) -m venv dist/$(1)
dist/$(1)/bin/python -m pip install -qq --disable-pip-version-check -c dist/constraints.txt \
  $(TORCH_INDEX:%=--extra-index-url %) "$$(echo dist/*.whl)$(2)"
endef

wheel: $(STAMP) ## Build sdist and wheel, install the wheel by role in environments of their own, ask each
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	grep -o '^[A-Za-z0-9_.-]*==[^ ;]*' requirements.lock > dist/constraints.txt
	$(call installed,owner,)
	cd dist && owner/bin/fl-dp --version
	cd dist && owner/bin/fl-dp node check 'dp-ledger-path="/tmp/node.db"' > node.txt
	@# What the app and the viewer are for names its extra.
	cd dist && owner/bin/fl-dp plan 2>&1 | grep -F "pip install 'fl-dp[app]'"
	cd dist && owner/bin/fl-dp dashboard . 2>&1 | grep -F "pip install 'fl-dp[viewer]'"
	@# A project of its own, checked with fl-dp as its author installs it.
	cd examples/extend && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	  --python-executable $(CURDIR)/dist/owner/bin/python --allow-redefinition hospital_app strategies
	$(call installed,node,[torch])
	cd dist && node/bin/python -c "import fl_dp.client_app"
	$(call installed,server,[torch$(COMMA)app])
	cd dist && server/bin/fl-dp plan privacy.epsilon=4 > plan.txt
	$(call installed,viewer,[viewer])
	cd dist && viewer/bin/python -c "import fl_dp.viewer.dashboard.serve, fl_dp.viewer.report.render"

setup: $(STAMP) ## The environment alone

lock: $(STAMP) ## Write the hashes into requirements.lock again, after a version in it was changed
	@grep '^#' requirements.lock > .requirements.lock
	@grep -o '^[a-zA-Z][^ ]*==[^ ]*' requirements.lock | $(BIN)/uv pip compile --quiet --no-deps \
	  --no-header --no-annotate --generate-hashes --python-version 3.11.7 - >> .requirements.lock
	@mv .requirements.lock requirements.lock

# Rebuilt when the lock file or the package's metadata changed; an interrupted set-up has no stamp.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fl-dp needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up .venv (once; a minute or two with warm caches)"
	@rm -f $(STAMP)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { echo "No virtual environment: install your system's python3-venv package"; exit 1; }
	@echo "  1/3 torch"
	@$(PIP) --no-deps $(TORCH) \
	  || { echo "torch could not be installed: is a package registry reachable?"; exit 1; }
	@echo "  2/3 the tested set of packages"
	@# Then what a build of torch for GPUs needs besides, which lies on its own index.
	@$(PIP) --no-deps --require-hashes -r requirements.lock && $(PIP) $(TORCH) \
	  || { echo "A package of requirements.lock could not be installed: see the lines above"; exit 1; }
	@echo "  3/3 fl-dp itself"
	@$(PIP) --no-deps --no-build-isolation --editable . \
	  || { echo "fl-dp could not be installed: see the lines above"; exit 1; }
	@touch $(STAMP)

clean: ## Remove the environment, every cache and results/, keep runs/
	rm -rf .venv .venv-flower .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist site results
