"""The files for contributors say what the project has: targets, versions, tools, scripts."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(
    set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    - {ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"}
)
CITATION = ROOT / "CITATION.cff"
HOOKS = ROOT / ".pre-commit-config.yaml"

# What `make bench` leaves out, and why.
NEEDS_MORE = {
    "gpu": "a GPU",
    "gpu_cases": "a GPU; `gpu.py` starts it",
    "drift_correction": "an hour of Fashion-MNIST",
    "silos": "whole trainings of ten silos in many arms: hours",
    "opacus_reference": "MNIST, and an hour",
    "ray_cluster": "loopback addresses of its own, which macOS lacks, and a quiet machine",
    "pfl_cifar10": "CIFAR-10, pfl-research in an environment of its own, and an hour",
    "scale": "an hour, and pfl-research in an environment of its own",
    "scale_peers": "`scale.py` starts it, in the peers' environments",
    "pfl_units": "pfl-research; `clients.py --case units` starts it in an environment of its own",
    "adult_jobs": "Adult; it times nothing, and benchmarks/accuracy.py trains on what it writes",
    "halved_photographs": "CIFAR-10; it times nothing, and `make experiments` runs it",
    "public_network_alone": "CIFAR-10 and the weights of examples/encoders",
}


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict), path.name
    return found


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in load(workflow)["jobs"].values() for step in job["steps"]]


def make_targets() -> dict[str, str]:
    """Return the targets that `make help` lists, with their recipes."""
    rules: list[tuple[str, str]] = re.findall(
        r"^([a-z-]+):(?!=).*##.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE
    )
    return dict(rules)


def makefile_list(name: str) -> list[str]:
    [value] = re.findall(rf"^{name} := *((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    return str(value).replace("\\\n", " ").split()


def classified_versions() -> list[str]:
    lines = [re.fullmatch(r".* :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    return [line.group(1) for line in lines if line]


def in_lock_file(requirement: str) -> bool:
    name = canonicalize_name(Requirement(requirement).name)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.search(rf"^{re.escape(name)}==", lock, re.MULTILINE) is not None


# Workflows.


def test_workflows_lint_test_build_the_documents_and_the_wheel() -> None:
    runs = {step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step}
    assert {"make lint", "make test", "make test-all", "make docs", "make wheel"} <= runs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_of_the_makefile_alone(path: Path) -> None:
    for step in steps(path):
        for line in step.get("run", "").splitlines():
            command, *arguments = shlex.split(line)
            assert command in ("make", "git"), line
            if command == "make":
                assert set(arguments) <= set(make_targets()), line


# The index' own action has a branch for its major version, and no tag.
ACTION = re.compile(r"(actions|docker)/[a-z-]+@v\d+|pypa/gh-action-pypi-publish@release/v1")

# Jobs that may write, and what.
WRITES = {
    ("release.yml", "build"): {"attestations", "id-token"},
    ("release.yml", "index"): {"id-token"},
    ("release.yml", "image"): {"packages"},
    ("release.yml", "site"): {"id-token", "pages"},
}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_pins_actions_by_major_version_and_can_only_read(path: Path) -> None:
    assert load(path)["permissions"] == {"contents": "read"}
    for name, job in load(path)["jobs"].items():
        granted = {what for what, how in job.get("permissions", {}).items() if how != "read"}
        assert granted == WRITES.get((path.name, name), set()), name
    for step in steps(path):
        assert ("uses" in step) != ("run" in step)
        assert "uses" not in step or ACTION.fullmatch(step["uses"]), step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_no_package_index_but_pytorch_s_public_one(path: Path) -> None:
    addresses = re.findall(r"https?://[^\s\"']+", path.read_text(encoding="utf-8"))
    assert set(addresses) <= {"https://download.pytorch.org/whl/cpu"}
    assert set(load(path)["env"]) <= set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))


# A release.


def release_steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load(ROOT / ".github/workflows/release.yml")["jobs"][job]["steps"]
    return found


def with_action(steps: list[dict[str, Any]], action: str) -> list[dict[str, Any]]:
    return [step.get("with", {}) for step in steps if step.get("uses", "").startswith(action)]


def test_only_a_tag_releases_and_only_what_was_built_and_signed() -> None:
    release = load(ROOT / ".github/workflows/release.yml")
    # YAML reads the key `on` as true.
    assert release[True] == {"push": {"tags": ["v*"]}}  # type: ignore[index]  # see above
    assert {job["needs"] for name, job in release["jobs"].items() if name != "build"} == {"build"}
    [signed] = with_action(release_steps("build"), "actions/attest-build-provenance")
    [packages, _] = with_action(release_steps("build"), "actions/upload-artifact")
    assert set(packages["path"].split()) <= set(signed["subject-path"].split())
    [taken] = with_action(release_steps("index"), "actions/download-artifact")
    assert taken["name"] == packages["name"]
    # No password: the index trusts the workflow.
    assert with_action(release_steps("index"), "pypa/gh-action-pypi-publish") == [{}]


def test_each_change_builds_what_a_release_builds_and_pushes_nothing() -> None:
    others = [step for path in WORKFLOWS if path.name != "release.yml" for step in steps(path)]
    built = {step.get("run") for step in others}
    for job in ("build", "site"):
        assert {step["run"] for step in release_steps(job) if "run" in step} <= built
    [dry] = with_action(others, "docker/build-push-action")
    [pushed] = with_action(release_steps("image"), "docker/build-push-action")
    assert (dry.pop("push"), pushed.pop("push")) == (False, True)
    assert dry.items() <= pushed.items()
    assert (ROOT / pushed["file"]).is_file()
    for pushing in ("docker/login-action", "pypa/gh-action", "actions/deploy-pages"):
        assert with_action(others, pushing) == []


def test_the_tests_run_on_every_version_that_the_package_is_said_to_support() -> None:
    [matrix] = [
        job["strategy"]["matrix"]["python-version"]
        for path in WORKFLOWS
        for job in load(path)["jobs"].values()
        if "python-version" in job.get("strategy", {}).get("matrix", {})
    ]
    assert matrix == classified_versions()
    supported = SpecifierSet(PROJECT["requires-python"])
    oldest = min(matrix, key=lambda version: int(version.partition(".")[2]))
    assert [version for version in matrix if version not in supported] == []
    assert f"3.{int(oldest.partition('.')[2]) - 1}" not in supported
    assert PYPROJECT["tool"]["mypy"]["python_version"] == oldest


def test_a_workflow_s_python_is_one_of_the_supported() -> None:
    for step in (step for path in WORKFLOWS for step in steps(path)):
        version = step.get("with", {}).get("python-version", "${{ matrix.python-version }}")
        assert version in [*classified_versions(), "${{ matrix.python-version }}"]


def test_types_are_checked_strictly_wherever_there_is_python() -> None:
    mypy = PYPROJECT["tool"]["mypy"]
    shipped = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    rooms = {name for name in shipped if any((ROOT / name).glob("**/*.py"))}
    # `make wheel` checks examples/ as their reader has them.
    assert set(mypy["files"]) == rooms - {"examples"}
    assert mypy["strict"]
    # Overrides excuse packages without types, and slacken nothing.
    assert all(set(each) == {"module", "ignore_missing_imports"} for each in mypy["overrides"])


# The Makefile.


def test_a_page_names_only_targets_that_the_makefile_has() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`make ([a-z-]+)[^`]*`", text)
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            named += re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)
        assert set(named) <= set(make_targets()), page.name


def test_the_quick_tests_are_of_rooms_that_are_there() -> None:
    rooms = makefile_list("QUICK")
    assert rooms and [name for name in rooms if not (ROOT / name).is_dir()] == []


def test_the_marks_that_the_quick_tests_leave_out_are_declared() -> None:
    marks = {
        line.partition(":")[0] for line in PYPROJECT["tool"]["pytest"]["ini_options"]["markers"]
    }
    left_out = re.findall(r"not (\w+)", make_targets()["quick"])
    assert left_out and set(left_out) <= marks


def test_every_benchmark_is_run_or_left_out_for_a_reason() -> None:
    scripts = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    run = set(re.findall(r"^BENCH_(\w+) :=", MAKEFILE, re.MULTILINE))
    assert run | set(NEEDS_MORE) == scripts
    assert not run & set(NEEDS_MORE)


@pytest.mark.parametrize("script", re.findall(r"^BENCH_(\w+) :=", MAKEFILE, re.MULTILINE))
def test_a_benchmark_is_given_options_that_it_has(script: str) -> None:
    """The script's own options count, and those of `side_by_side` where it is used."""
    source = (ROOT / "benchmarks" / f"{script}.py").read_text(encoding="utf-8")
    shared = (ROOT / "benchmarks" / "side_by_side.py").read_text(encoding="utf-8")
    text = source + (shared if "side_by_side" in source else "")
    known = {
        argument.value
        for call in ast.walk(ast.parse(text.replace("from __future__ import annotations", "")))
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    given = {word for word in makefile_list(f"BENCH_{script}") if word.startswith("--")}
    assert given <= known
    assert ("--json" in known) == ("--json" in given)


# Hooks.


def hook_entries() -> list[list[str]]:
    [repository] = load(HOOKS)["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    return [hook["entry"].split() for hook in repository["hooks"]]


def test_the_hooks_are_the_checks_of_make_lint() -> None:
    lint = [
        line.split() for line in make_targets()["lint"].replace("$(BIN)", ".venv/bin").splitlines()
    ]
    flags = ("--fix", "--check", ".")
    bare = [[word for word in words if word not in flags] for words in (*hook_entries(), *lint)]
    assert bare[: len(lint)] == bare[len(lint) :]


def test_the_hooks_commands_are_in_the_environment_that_make_sets_up() -> None:
    packages = {"ruff": "ruff", "mypy": "mypy", "lint-imports": "import-linter"}
    for command, *_ in hook_entries():
        assert command.startswith(".venv/bin/")
        assert in_lock_file(packages[Path(command).name])


def test_the_tools_for_developers_are_pinned() -> None:
    dev = [line for line in PROJECT["optional-dependencies"]["dev"] if not line.startswith("fl-dp")]
    assert "pytest-cov>=7" in dev
    assert [line for line in dev if not in_lock_file(line)] == []


# Citation and templates.


def test_the_citation_has_what_its_format_asks_for_and_says_what_the_project_says() -> None:
    citation = load(CITATION)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["message"] and citation["title"].startswith(PROJECT["name"])
    assert citation["authors"] == PROJECT["authors"]
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert set(citation["keywords"]) == {word.lower() for word in PROJECT["keywords"]}
    known = {"abstract", "authors", "cff-version", "date-released", "doi", "keywords", "license"}
    known |= {"message", "repository-code", "title", "type", "url", "version"}
    assert set(citation) <= known


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_the_parts_that_github_reads(path: Path) -> None:
    form = load(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels"}
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids) > 0
    for part in form["body"]:
        assert part["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]


def test_who_reports_a_fault_is_sent_to_the_private_way_first() -> None:
    bug = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    assert "SECURITY.md" in bug["body"][0]["attributes"]["value"]
    assert bug["body"][1]["attributes"]["options"][0]["required"] is True
    config = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")
    assert config == {"blank_issues_enabled": False}  # nobody gets around the forms
