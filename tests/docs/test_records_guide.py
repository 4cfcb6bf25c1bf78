"""What the guide to records shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvgM
from local_grid import FIRST_NODE, LocalGrid
from owned_clock import answer_at_once

from fl_dp.clients import check_training, exchanged_arrays
from fl_dp.ledger import NodeLedger, PrivacyLedger
from fl_dp.strategies import DPFedAvg

GUIDE = Path(__file__).resolve().parents[2] / "docs/records.md"


def test_the_guide_to_records_runs(tmp_path: Path) -> None:
    first, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    guide: dict[str, Any] = {}
    exec(compile(first, "docs/records.md", "exec"), guide)
    check_training(guide["build_model"](), guide["load_records"]())
    context = Context(1, FIRST_NODE, {"dp-ledger-path": str(tmp_path / "l.db")}, RecordDict(), {})
    node = LocalGrid(lambda asked, _: guide["app"](asked, context), 1)
    message = Message(
        RecordDict({"arrays": guide["initial_arrays"], "config": ConfigRecord({})}),
        dst_node_id=FIRST_NODE,
        message_type="train",
    )
    [reply] = node.send_and_receive([message])
    assert not reply.has_error(), reply.error.reason
    with NodeLedger.read(tmp_path / "l.db") as ledger:
        assert [each.releases.total() for each in ledger.spendings] == [guide["PLAN"].steps]


def test_a_real_node_without_a_ledger_is_told_what_to_write() -> None:
    first, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    guide: dict[str, Any] = {}
    exec(compile(first, "docs/records.md", "exec"), guide)
    with pytest.raises(ValueError, match="--node-config 'dp-ledger-path="):
        guide["client_fn"](Context(1, FIRST_NODE, {"partition-id": 1}, RecordDict(), {}))


def test_the_guide_to_records_across_silos_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_at_once(monkeypatch)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    guide: dict[str, Any] = {}
    of_records = [code for code in blocks if "Persons(" not in code]
    for code in (each for each in of_records if "NodeRecords" in each or "RecordsPlan(" in each):
        exec(compile(code, "docs/records.md", "exec"), guide)
    for node in range(10):
        (tmp_path / f"{node}").mkdir()
    contexts = [
        Context(
            1,
            FIRST_NODE + node,
            {"dp-ledger-path": str(tmp_path / f"{node}/l.db")},
            RecordDict(),
            {},
        )
        for node in range(10)
    ]
    grid = LocalGrid(lambda asked, node: guide["app"](asked, contexts[node]), 10, introduces=True)
    model = exchanged_arrays(guide["build_model"](None, None))
    with PrivacyLedger.open(tmp_path / "server.db", guide["plan"]) as ledger:
        strategy = DPFedAvg(FedAvgM(), plan=guide["plan"], ledger=ledger)
        strategy.start(grid, model, num_rounds=1)
        assert ledger.rounds_committed == 1
    with NodeLedger.read(tmp_path / "3/l.db") as ledger_of_node:
        assert [each.unit for each in ledger_of_node.spendings] == ["record"]
