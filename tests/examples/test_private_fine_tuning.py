"""`experiment=private_fine_tuning`: what is public, and a run of it in small."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fl_dp.app.compose import compose_settings
from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.task_client import app
from fl_dp.clients.owner.node_privacy import simulated_nodes
from fl_dp.tasks.datasets import Dataset, data_source
from fl_dp.tasks.datasets.held_out import of_clients
from fl_dp.tasks.datasets.shakespeare import windows_of
from fl_dp.tasks.models import build_model

FILE = Path(__file__).resolve().parents[2] / "examples/private_fine_tuning/pretrain.py"
EXPERIMENT = "experiment=private_fine_tuning"


def play(seed: int) -> str:
    """Return a play of two roles who speak at random."""
    coins = np.random.default_rng(seed)
    said = ["".join(coins.choice(list("abcde "), 1500)) for _ in range(2)]
    return f"ACT I.\n\nANN.\n{said[0]}.\n\nBOB.\n{said[1]}.\n"


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataset]:
    names = ["hamlet", "twelfth_night", "henry_v", "midsummer_nights_dream", "lear", "macbeth"]
    whole = windows_of({name: play(seed) for seed, name in enumerate(names)})
    monkeypatch.setattr(data_source, "_load_once", lambda *asked: whole)
    data_source._divided_once.cache_clear()
    yield whole
    data_source._divided_once.cache_clear()


def roles_of(dataset: Dataset) -> set[str]:
    assert dataset.train_clients is not None
    return {dataset.client_names[k] for k in dataset.train_clients}


def roles_in(*plays: str) -> set[str]:
    return {f"{play}: {role}" for play in plays for role in ("ANN", "BOB")}


def test_first_weights_are_trained_on_plays_that_no_client_has(plays: Dataset) -> None:
    spec = importlib.util.spec_from_file_location("pretrain", FILE)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    chosen = compose_settings([EXPERIMENT]).task.clients
    assert chosen is not None
    assert roles_of(of_clients(plays, script.PLAYS)) == roles_in("hamlet", "twelfth_night")
    assert roles_of(of_clients(plays, chosen)) == roles_in("lear", "macbeth")


def test_its_plan_protects_each_of_563_roles() -> None:
    plan = make_plan(compose_settings([EXPERIMENT]))
    assert (plan.num_clients, plan.unit) == (563, "client")
    assert plan.budget.epsilon == 8.0


@pytest.mark.slow
def test_it_runs_in_small(plays: Dataset, tmp_path: Path) -> None:
    form = plays.form._asdict()
    first = build_model("transformer", hidden=8, seed=3, **form).state_dict()
    save_file(first, tmp_path / "first.safetensors")
    settings = compose_settings(
        [
            EXPERIMENT,
            "task.num_clients=4",
            "model.hidden=8",
            f"model.initial={tmp_path}/first.safetensors",
            "selection.sampling_rate=0.9",
            "rounds=2",
            f"output_dir={tmp_path}",
            "run_name=run",
        ]
    )
    grid = InProcessGrid(app, [{"partition-id": node} for node in range(4)])
    with simulated_nodes():
        result = train(grid, settings, run_id="1")
    run = RunFolder(tmp_path / "run")
    assert all(".b.weight" in name for name in result.arrays)
    assert any(torch.tensor(each.numpy()).any() for each in result.arrays.values())
    assert "first weights" in run.read_statement()["public_inputs"][0]
