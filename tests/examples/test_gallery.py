"""The gallery's apps run as their diffs say: plain before, and private after, with one client."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hugging_face import Table
from local_grid import LocalGrid, answer_with_app

from fl_dp import PrivacyLedger
from fl_dp.clients import numpy_client_app

GALLERY = Path(__file__).resolve().parents[2] / "examples" / "gallery"
README = (GALLERY / "README.md").read_text(encoding="utf-8")
DIFFS = dict(
    zip(
        re.findall(r"\]\((\w+)_client\.py\)", README),
        re.findall(r"```diff\n(.*?)```", README, re.DOTALL),
        strict=True,
    )
)
CLIENTS = 40
NEEDS = {"jax": "equinox", "tensorflow": "tensorflow"}


def client(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"its client is in {name}, no dependency of fl-dp")
    file = GALLERY / f"{name}_client.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


def run(name: str, sign: str, monkeypatch: pytest.MonkeyPatch) -> LocalGrid:
    """Run an app of the gallery without the lines of one sign."""
    kept = [line[1:] for line in DIFFS[name].splitlines() if not line.startswith(sign)]
    module = client(name, monkeypatch)
    app = module.app if hasattr(module, "app") else numpy_client_app(module.client_fn)
    server: dict[str, Any] = {}
    exec(compile("\n".join(kept), f"examples/gallery/README.md, {name}", "exec"), server)
    grid = LocalGrid(answer_with_app(app, CLIENTS), CLIENTS)
    server["app"](grid, Context(1, 0, {}, RecordDict(), {}))
    return grid


def test_every_client_of_the_gallery_has_its_diff() -> None:
    assert set(DIFFS) == {file.stem.removesuffix("_client") for file in GALLERY.glob("*.py")}
    assert len(DIFFS) == 5


@pytest.mark.slow
def test_before_its_diff_an_app_is_plain_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for diff in DIFFS.values():
        assert "DPFedAvg" not in re.sub(r"^\+.*", "", diff, flags=re.MULTILINE)
    for name in ("sklearn", "pytorch", "numpy"):
        grid = run(name, "+", monkeypatch)
        assert sum(each.metadata.message_type == "evaluate" for each in grid.sent) == 3 * CLIENTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFS)
def test_after_its_diff_an_app_is_private(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = run(name, "-", monkeypatch)
    evaluated = sum(each.metadata.message_type == "evaluate" for each in grid.sent)
    assert evaluated == (0 if name in NEEDS else 3 * CLIENTS)
    with PrivacyLedger.read(tmp_path / f"{name}.db") as ledger:
        assert ledger.rounds_committed == 3
        assert math.isclose(ledger.epsilon().best, 8.0, rel_tol=0.02)
        assert ledger.epsilon().best <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_record_moves_the_sum_of_another_framework_s_gradients_by_the_norm_at_most(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = client(name, monkeypatch)
    first = module.make_model()
    model = ArrayRecord(first.get_weights() if hasattr(first, "get_weights") else first)
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 20}, RecordDict(), {})
    records = module.records_fn(context, {}, model)
    whole, count = records.clipped_sum(range(len(records)), 0.5)
    assert count == len(records) == 90
    for left_out in (0, 40, 89):
        rest, fewer = records.clipped_sum([r for r in range(90) if r != left_out], 0.5)
        moved = sum(float(np.square(whole[key] - rest[key]).sum()) for key in whole)
        assert fewer == 89
        assert 0.25 < math.sqrt(moved) <= 0.5 * (1.0 + 1e-6)


def test_a_partition_of_flwr_datasets_fits_in_the_place_of_a_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same rows, same coins, same model to the bit."""
    module = client("pytorch", monkeypatch)
    rows = module.load_partition(0, CLIENTS)
    columns = {"img": [row["img"].tolist() for row in rows], "label": [r["label"] for r in rows]}
    table = Table(columns).with_transform(
        lambda batch: batch | {"img": [torch.tensor(img) for img in batch["img"]]}
    )
    context = Context(1, 1, {"partition-id": 0, "num-partitions": CLIENTS}, RecordDict(), {})

    def trained(partition: Any) -> list[Any]:
        monkeypatch.setattr(module, "load_partition", lambda *_: partition)
        arrays = ArrayRecord(module.make_model().state_dict())
        message = Message(RecordDict({"arrays": arrays}), dst_node_id=1, message_type="train")
        torch.manual_seed(1)
        return list(module.train(message, context).content["arrays"].to_numpy_ndarrays())

    for one, other in zip(trained(rows), trained(table), strict=True):
        np.testing.assert_array_equal(one, other)
