"""The GPU's benchmark runs without a GPU, at sizes that say nothing of speed."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PEERS = {"pfl", "multiprocess", "dill"}  # pfl-research and what it needs that we do not

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only wait for each other's threads
    yield
    torch.set_num_threads(before)


@pytest.fixture
def gpu() -> ModuleType:
    return importlib.import_module("gpu")


@pytest.fixture
def cases() -> ModuleType:
    return importlib.import_module("gpu_cases")


@pytest.fixture
def measured(cases: ModuleType) -> Callable[..., list[Row]]:
    """Measure a section in this process, at sizes below those of `--device cpu`."""

    def rows_of(section: str, *, seconds: float = 600.0, **sizes: Any) -> list[Row]:
        rows: list[Row] = []
        bench = cases.Bench(
            device=torch.device("cpu"),
            sizes=replace(cases.SMALL, batch=2, steps=1, width=4, **sizes),
            until=time.monotonic() + seconds,
            write=rows.append,
        )
        cases.SECTIONS[section](bench)
        return rows

    return rows_of


# The command.


def test_without_a_gpu_it_fails_and_says_what_to_write(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"no CUDA GPU here.*--device cpu") as stopped:
        gpu.main([])
    assert stopped.value.code  # words: exit status 1


def test_the_command_has_every_section_that_there_is(gpu: ModuleType, cases: ModuleType) -> None:
    assert [section.name for section in gpu.SECTIONS] == list(cases.SECTIONS)


# What is measured.


def test_units_come_out_alike(gpu: ModuleType, measured: Callable[..., list[Row]]) -> None:
    [small, theirs] = measured("units", units=(3,), cohort=2, records=2)
    assert (small["at_once"], small["largest_difference"], small["apart"]) == (3, 0, 0)
    assert "pfl-research's CNN" in theirs["case"]
    assert all(min(row["ours_s"], row["peer_s"]) > 0 for row in (small, theirs))
    rows = [{"section": "units", **row} for row in (small, theirs)]
    assert gpu.objections(rows) == []
    assert gpu.objections([rows[0] | {"apart": 0.02, "largest_difference": 2e-4}]) == []
    [sentence] = gpu.objections([rows[0] | {"apart": 0.03, "largest_difference": 2e-4}])
    assert "3.0 % of the units differ from the CPU's, one by 0.0002" in sentence


@pytest.mark.parametrize(
    "model",
    # By default the small CNN stands for the other one.
    ["small CNN", pytest.param("ResNet-18", marks=pytest.mark.nightly), "transformer"],
)
def test_steps_of_dp_sgd_are_taken_by_each_way(
    cases: ModuleType, measured: Callable[..., list[Row]], model: str
) -> None:
    rows = measured(f"DP-SGD, {model}")
    assert [row["case"] for row in rows] == [f"{model}, {way}" for way in cases.WAYS]
    assert all(min(row["ours_s"], row["peer_s"]) > 0 for row in rows)


# What it needs.


def test_its_packages_are_the_tested_ones() -> None:
    def pins(file: str) -> dict[str, str]:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        pinned = [re.split("==| ", line)[:2] for line in lines if "==" in line and line[0] != "#"]
        return {re.sub("[-_.]+", "-", name).lower(): version for name, version in pinned}

    needed, locked = pins("benchmarks/gpu_requirements.txt"), pins("requirements.lock")
    assert set(needed) >= PEERS and {"flwr", "opacus", "scipy", "pytest"} <= set(needed)
    assert not {"torch", "ray"} & set(needed)
    for name in set(needed) - PEERS:
        assert needed[name] == locked[name], name


ALONE = """
import importlib.metadata, re, runpy, sys
from importlib.machinery import PathFinder
from pathlib import Path

requirements, script, section, rows = sys.argv[1:]

def named(line):
    return re.sub("[-_.]+", "-", re.match("[A-Za-z0-9._-]+", line)[0]).lower()

there = {named(line) for line in Path(requirements).read_text().splitlines() if "==" in line}
waiting = ["torch"]  # and what it needs, which is on the machine
while waiting:
    name = waiting.pop()
    there.add(name)
    for line in importlib.metadata.requires(name) or ():
        if ";" not in line and named(line) not in there:
            waiting.append(named(line))
owners = importlib.metadata.packages_distributions()

def is_there(name):
    packages = {named(owner) for owner in owners.get(name, ())}
    return not packages or packages & {*there, "fl-dp", "setuptools"}

find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *places: find_spec(name, *places) if is_there(name) else None
sys.path.insert(0, str(Path(script).parent))
sys.argv = [script, section, "--device", "cpu", "--seconds", "60", "--rows", rows]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("section", ["CIFAR-10, fl-dp", "DP-SGD, small CNN"])
def test_its_packages_suffice(section: str, tmp_path: Path) -> None:
    benchmarks, rows = ROOT / "benchmarks", tmp_path / "rows.jsonl"
    given = [benchmarks / "gpu_requirements.txt", benchmarks / "gpu_cases.py", section, rows]
    subprocess.run([sys.executable, "-c", ALONE, *map(str, given)], check=True, cwd=tmp_path)
    assert rows.read_text(encoding="utf-8").startswith("{")
