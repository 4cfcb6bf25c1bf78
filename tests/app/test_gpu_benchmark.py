"""The GPU's benchmark runs without a GPU, at sizes that say nothing of speed."""

from __future__ import annotations

import importlib.util
import json
import math
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

from fl_dp.accelerator import chacha

ROOT = Path(__file__).resolve().parents[2]
THROUGH_RAY = {"ray", "msgpack", "jsonschema", "pyyaml", "requests"}
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


def part(name: str) -> ModuleType:
    return importlib.import_module(f"gpu_sections.{name}")


@pytest.fixture
def measured() -> Callable[..., list[Row]]:
    """Measure a section in this process, at sizes of `--device cpu` or below."""

    def rows_of(name: str, *, seconds: float = 600.0, **sizes: Any) -> list[Row]:
        rows: list[Row] = []
        bench = part("bench").Bench(
            device=torch.device("cpu"),
            sizes=replace(part("bench").SMALL, **sizes),
            until=time.monotonic() + seconds,
            write=rows.append,
        )
        [section] = [one for one in part("sections").SECTIONS if one.name == name]
        section.run(bench)
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


def test_the_command_has_a_section_of_each_kind() -> None:
    sections = {section.name: section for section in part("sections").SECTIONS}
    rounds = {name for name, section in sections.items() if section.function == "cifar.rounds"}
    ours = {"CIFAR-10, fl-dp", "CIFAR-10, fl-dp, Ray", "CIFAR-10, pfl-research"}
    assert rounds == {*ours, *(f"{name}, no privacy" for name in ours), "CIFAR-10, train_private"}
    models = {name.removeprefix("DP-SGD, ") for name in sections if name.startswith("DP-SGD")}
    assert models == set(part("dp_sgd").MODELS)
    others = {"noise", "units", "users", "tests", "CIFAR-10, pfl-research, processes"}
    assert others < sections.keys()


# What is measured.


def test_words_and_draws_are_compared(gpu: ModuleType, measured: Callable[..., list[Row]]) -> None:
    rows = [{"section": "noise", **row} for row in measured("noise")]
    assert [row["case"].partition(" ")[0] for row in rows] == ["ChaCha20,", "200000", "200000"]
    assert gpu.objections(rows) == []
    [sentence] = gpu.objections([rows[1] | {"p": 1e-9}])
    assert "do not follow their law" in sentence
    [sentence] = gpu.objections([rows[2] | {"p_of_wrong": 0.5}])
    assert "is not told apart" in sentence


def test_wrong_words_are_an_error() -> None:
    bench = part("bench").Bench(
        device=torch.device("cpu"),
        sizes=part("bench").SMALL,
        until=math.inf,
        write=lambda row: None,
    )
    with pytest.raises(RuntimeError, match="not OpenSSL's words"):
        part("noise").words(bench, lambda start, blocks: chacha.by_operators(start, blocks) + 1)


@pytest.mark.parametrize(
    "section",
    ["CIFAR-10, fl-dp", "CIFAR-10, train_private", "CIFAR-10, fl-dp, no privacy", "users"],
)
def test_rounds_are_timed(measured: Callable[..., list[Row]], section: str) -> None:
    rows = measured(section)
    assert len(rows) == (2 if section == "users" else 1)
    assert all(row["rounds"] == 1 and row["clients_per_s"] > 0 for row in rows)


@pytest.mark.parametrize(
    "section",
    [
        "CIFAR-10, pfl-research",
        "CIFAR-10, pfl-research, processes",
        "CIFAR-10, pfl-research, no privacy",
    ],
)
def test_without_the_peer_a_row_says_so(
    measured: Callable[..., list[Row]], section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pfl", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [row] = measured(section)
    assert row["skipped"] == "the package pfl is not installed"


@pytest.mark.nightly
def test_the_whole_command_is_rehearsed_through_ray_too(tmp_path: Path) -> None:
    command = [ROOT / "benchmarks" / "gpu.py", "--device", "cpu", "--out", tmp_path]
    subprocess.run([sys.executable, *map(str, command)], check=True, cwd=ROOT)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert not [row for row in rows if row.get("failed") or "ended" in row]
    through_ray = [row for row in rows if row.get("case", "").endswith(" privacy, flower")]
    assert len(through_ray) == 2 and all(row["clients_per_s"] > 0 for row in through_ray)


def test_units_come_out_alike(gpu: ModuleType, measured: Callable[..., list[Row]]) -> None:
    theirs, products, graphs, small = measured("units", units=(3,), cohort=2, records=2)
    assert "products beside grouped" in products["case"] and products["ratio"] > 0
    assert "CUDA graphs beside plain steps" in graphs["case"] and graphs["ratio"] > 0
    assert "pfl-research's CNN" in theirs["case"] and theirs["at_once"] == 2
    assert (small["at_once"], small["largest_difference"], small["apart"]) == (3, 0, 0)
    assert all(min(row["ours_s"], row["peer_s"]) > 0 for row in (small, theirs))
    rows = [{"section": "units", **row} for row in (theirs, small)]
    assert gpu.objections(rows) == []
    assert gpu.objections([rows[1] | {"apart": 0.02, "largest_difference": 2e-4}]) == []
    [sentence] = gpu.objections([rows[0] | {"at_once": 1, "ours_bytes": 9}])
    assert "they were trained one by one" in sentence
    [sentence] = gpu.objections([rows[1] | {"apart": 0.03, "largest_difference": 2e-4}])
    assert "3.0 % of the units differ from the CPU's, one by 0.0002" in sentence


@pytest.mark.parametrize(
    "model",
    # By default the small CNN stands for the other one.
    ["small CNN", pytest.param("ResNet-18", marks=pytest.mark.nightly), "transformer"],
)
def test_steps_of_dp_sgd_are_taken_by_each_way(
    measured: Callable[..., list[Row]], model: str
) -> None:
    rows = measured(f"DP-SGD, {model}")
    assert [row["case"] for row in rows] == [f"{model}, {way}" for way in part("dp_sgd").WAYS]
    assert all(min(row["ours_s"], row["peer_s"]) > 0 for row in rows)


def test_both_sides_accuracy_and_minutes_at_equal_noise_are_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cifar10 = importlib.import_module("pfl_cifar10")
    monkeypatch.setattr(cifar10, "CLIENTS", 6)
    monkeypatch.setattr(cifar10, "COHORT", 3)
    cifar10.main(["--rounds", "2", "--made-up", "--frameworks", "fl-dp"])
    noise, *_, row = capsys.readouterr().out.splitlines()
    assert "for the 6 clients that are there" in noise
    name, rounds, accuracy, _, minutes = (cell.strip() for cell in row.strip("|").split("|"))
    assert (name, rounds) == ("fl-dp", "2")
    assert 0 <= float(accuracy) <= 1 and float(minutes) >= 0


def test_the_published_noise_is_worth_nothing_to_the_clients_that_are_there() -> None:
    cifar10 = importlib.import_module("pfl_cifar10")
    task = {"private": True, "clients": cifar10.CLIENTS, "cohort": cifar10.COHORT}
    task |= {"rounds": cifar10.PUBLISHED_ROUNDS, "noise_multiplier": cifar10.published_noise()}
    assert cifar10.plan_of(task).budget.epsilon == pytest.approx(796_000, rel=0.01)


# What it needs.


def test_its_packages_are_the_tested_ones() -> None:
    def pins(file: str) -> dict[str, str]:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        pinned = [re.split("==| ", line)[:2] for line in lines if "==" in line and line[0] != "#"]
        return {re.sub("[-_.]+", "-", name).lower(): version for name, version in pinned}

    needed, locked = pins("benchmarks/gpu_requirements.txt"), pins("requirements.lock")
    assert set(needed) >= PEERS and {"flwr", "opacus", "scipy", "pytest", *THROUGH_RAY} <= set(
        needed
    )
    assert "torch" not in needed
    for name in set(needed) - PEERS:
        assert needed[name] == locked[name], name


ALONE = """
import importlib.metadata, re, runpy, sys
from importlib.machinery import PathFinder
from pathlib import Path

requirements, benchmarks, section, rows = sys.argv[1:]

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
sys.path.insert(0, benchmarks)
sys.argv = ["gpu_sections", section, "--device", "cpu", "--seconds", "60", "--rows", rows]
runpy.run_module("gpu_sections", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "section",
    [
        "CIFAR-10, fl-dp",
        "DP-SGD, small CNN",
        pytest.param("CIFAR-10, fl-dp, Ray", marks=pytest.mark.nightly),
    ],
)
def test_its_packages_suffice(section: str, tmp_path: Path) -> None:
    benchmarks, rows = ROOT / "benchmarks", tmp_path / "rows.jsonl"
    given = [benchmarks / "gpu_requirements.txt", benchmarks, section, rows]
    subprocess.run([sys.executable, "-c", ALONE, *map(str, given)], check=True, cwd=tmp_path)
    assert rows.read_text(encoding="utf-8").startswith("{")
