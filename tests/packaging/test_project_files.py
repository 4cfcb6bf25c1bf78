"""The files for contributors say what the project has: targets, versions, tools, scripts."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"

# What `make bench` leaves out, and why.
NEEDS_MORE = {
    "gpu": "a GPU",
    "lora": "the sentence encoder's package, and hours; it times nothing",
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
    "persons": "minutes; it times nothing, and docs/records.md has its numbers",
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


def classified_versions() -> list[str]:
    lines = [re.fullmatch(r".* :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    return [line.group(1) for line in lines if line]


# Workflows.


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_of_the_makefile_alone(path: Path) -> None:
    assert steps(path)
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


# The Makefile.


def test_a_page_names_only_targets_that_the_makefile_has() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`make ([a-z-]+)[^`]*`", text)
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            named += re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)
        assert set(named) <= set(make_targets()), page.name


def test_every_benchmark_is_run_or_left_out_for_a_reason() -> None:
    scripts = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    run = set(re.findall(r"^BENCH_(\w+) :=", MAKEFILE, re.MULTILINE))
    assert run | set(NEEDS_MORE) == scripts
    assert not run & set(NEEDS_MORE)


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


# Templates.


def test_who_reports_a_fault_is_sent_to_the_private_way_first() -> None:
    bug = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    assert "SECURITY.md" in bug["body"][0]["attributes"]["value"]
    assert bug["body"][1]["attributes"]["options"][0]["required"] is True
    config = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")
    assert config == {"blank_issues_enabled": False}  # nobody gets around the forms
