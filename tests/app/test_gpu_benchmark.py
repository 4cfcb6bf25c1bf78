"""The GPU's benchmark runs without a GPU, at sizes that say nothing of speed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only wait for each other's threads
    yield
    torch.set_num_threads(before)


def test_without_a_gpu_it_fails_and_says_what_to_write(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"no CUDA GPU here.*--device cpu") as stopped:
        gpu.main([])
    assert stopped.value.code  # words: exit status 1


def test_all_cases_run_and_units_come_out_alike(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = gpu.Sizes(units=(3,), images=12, batch=2, steps=1, side=8, width=4)
    monkeypatch.setattr(gpu, "GRAD_SAMPLE_MODES", ("ghost",))
    rows = gpu.measured(CPU, sizes, repeats=1)
    assert len(rows) == 1 + 2 * 2  # each model, each noise
    assert all(min(row["ours_s"], row["peer_s"], row["ratio"]) > 0 for row in rows.values())
    units = rows["3 units of 12 images"]
    assert (units["at_once"], units["largest_difference"]) == (3, 0)
    assert gpu.objections(rows) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("largest_difference", 2e-4, "differs from the CPU's by 0.0002"),
        ("largest_difference", float("nan"), "differs from the CPU's by nan"),
        ("largest_change", 0.0, "agreement says nothing"),
        ("at_once", 1, "trained one by one"),
    ],
)
def test_what_would_be_wrong_is_said(gpu: ModuleType, key: str, value: float, words: str) -> None:
    row = {"largest_difference": 1e-5, "largest_change": 0.1, "at_once": 100}
    assert gpu.objections({"units": row}) == []
    (sentence,) = gpu.objections({"units": row | {key: value}})
    assert words in sentence


def test_a_case_for_which_memory_runs_out_costs_no_other(gpu: ModuleType) -> None:
    def too_much() -> dict[str, float | None]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    rows = {"4 units of 2 images": gpu.if_memory_suffices(too_much)}
    assert gpu.objections(rows) == []
    console = Console(width=120, record=True)
    for table in gpu.tables(rows, repeats=1):
        console.print(table)
    assert "out of memory" in console.export_text()
