"""The GPU's benchmark runs without a GPU, at sizes that say nothing of speed."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
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


def command(
    gpu: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    section: Callable[[list[str]], int],
    *,
    minutes: str = "60",
) -> list[Row]:
    """Run the command; `section` stands for each section's process."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, section(command))

    monkeypatch.setattr(gpu.subprocess, "run", run)
    gpu.main(["--device", "cpu", "--out", str(folder), "--minutes", minutes])
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_each_section_runs_by_itself_with_less_time_than_is_left(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def section(command: list[str]) -> int:
        begun.append(command[2])
        assert float(command[command.index("--seconds") + 1]) < 0.2 * 60 * 60
        return 0

    machine, *rows = command(gpu, tmp_path, monkeypatch, section)
    assert machine["torch"] == torch.__version__
    assert begun == [section.name for section in gpu.SECTIONS]
    assert [row["section"] for row in rows] == begun


def test_a_section_without_time_is_skipped_and_said(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def section(command: list[str]) -> int:
        raise AssertionError(command)

    _, *rows = command(gpu, tmp_path, monkeypatch, section, minutes="0.1")
    assert [row["section"] for row in rows] == [section.name for section in gpu.SECTIONS]
    assert all("s are left" in row["skipped"] for row in rows)


def test_a_section_that_is_ended_leaves_what_it_had_and_the_others(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def section(command: list[str]) -> int:
        if command[2] != "units":
            return 0
        rows = Path(command[command.index("--rows") + 1])
        rows.write_text(rows.read_text() + '{"section": "units", "case": "one"}\n')
        raise subprocess.TimeoutExpired(command, 1.0)

    rows = command(gpu, tmp_path, monkeypatch, section)
    [had, ended] = [row for row in rows if row["section"] == "units"]
    assert had["case"] == "one" and "after its" in ended["ended"]
    assert rows[-1]["section"] == gpu.SECTIONS[-1].name


def test_a_section_that_fails_is_said_and_fails_the_command(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"units: failed exit status 3: see units\.log"):
        command(gpu, tmp_path, monkeypatch, lambda command: 3 * (command[2] == "units"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("largest_difference", 2e-4, "differs from the CPU's by 0.0002"),
        ("largest_difference", float("nan"), "differs from the CPU's by nan"),
        ("largest_change", 0.0, "agreement says nothing"),
        ("at_once", 1, "trained one by one"),
        ("failed", 2, "units: failed 2"),
    ],
)
def test_what_would_be_wrong_is_said(gpu: ModuleType, key: str, value: float, words: str) -> None:
    row = {
        "section": "units",
        "largest_difference": 1e-5,
        "largest_change": 0.1,
        "at_once": 100,
        "ours_bytes": 1,
    }
    assert gpu.objections([row]) == []
    (sentence,) = gpu.objections([row | {key: value}])
    assert words in sentence


# What is measured.


def test_units_come_out_alike(gpu: ModuleType, measured: Callable[..., list[Row]]) -> None:
    [small, theirs] = measured("units", units=(3,), cohort=2, records=2)
    assert (small["at_once"], small["largest_difference"]) == (3, 0)
    assert "pfl-research's CNN" in theirs["case"]
    assert all(min(row["ours_s"], row["peer_s"]) > 0 for row in (small, theirs))
    assert gpu.objections([{"section": "units", **row} for row in (small, theirs)]) == []


@pytest.mark.parametrize("model", ["small CNN", "ResNet-18", "transformer"])
def test_steps_of_dp_sgd_are_taken_by_each_way(
    cases: ModuleType, measured: Callable[..., list[Row]], model: str
) -> None:
    rows = measured(f"DP-SGD, {model}")
    assert [row["case"] for row in rows] == [f"{model}, {way}" for way in cases.WAYS]
    assert all(min(row["ours_s"], row["peer_s"]) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["CIFAR-10, fl-dp", "CIFAR-10, fl-dp, no privacy"])
def test_rounds_of_pfl_researchs_configuration_are_timed(
    measured: Callable[..., list[Row]], section: str
) -> None:
    [row] = measured(section, clients=2, cohort=1, records=2)
    assert row["data"] == "made up" and row["rounds"] == 1
    assert row["minutes_of_1500_rounds"] == 1500 * row["seconds_per_round"] / 60


def test_a_peer_that_is_not_installed_is_said(
    cases: ModuleType, measured: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases.importlib.util, "find_spec", lambda name: None)
    [row] = measured("CIFAR-10, pfl-research")
    assert row["skipped"] == "the package pfl is not installed"


def test_a_case_for_which_time_or_memory_runs_out_costs_no_other(
    gpu: ModuleType,
    cases: ModuleType,
    measured: Callable[..., list[Row]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_much(*arguments: Any) -> Row:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cases, "trained_units", too_much)
    rows = measured("units", units=(1, 2))
    assert [row["skipped"] for row in rows] == 3 * ["out of memory"]
    rows = measured("units", seconds=0.0, units=(1, 2))
    assert [row["skipped"] for row in rows] == 3 * ["no time was left in its section"]


def test_tests_are_counted(
    cases: ModuleType,
    measured: Callable[..., list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_right(): pass\ndef test_wrong(): assert 0\n")
    monkeypatch.setattr(cases, "TESTS", file)
    [row] = measured("tests")
    assert (row["passed"], row["failed"], row["exit_status"]) == (1, 1, 1)
    assert [name.partition("::")[2] for name in row["names"]] == ["test_wrong"]


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
