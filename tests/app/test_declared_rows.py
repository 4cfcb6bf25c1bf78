"""Opacus' ways: checked for each object, and named wherever a ledger or a statement speaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from moved_sums import CLASSES, VECTORS, T, data, head, largest_move, summed_by
from one_node import Federation
from record_plans import record_plan
from rich.console import Console
from secure_nodes import Adds, SecureNodes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.clients import DPSGD, NodeRecords, NodeUnits, OpacusClient, numpy_client_app
from fl_dp.clients.per_record.made_up_records import gradients_of
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.opacus_gradients import GhostGradients, HookGradients
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.statement import record_statement, statement_markdown
from fl_dp.terminal.node_ledger_view import node_uses_json, node_uses_tables

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

LOSS = LossOfEach(nn.CrossEntropyLoss())
WAYS = {"hooks": HookGradients, "ghost": GhostGradients}
PLAN = record_plan(epsilon=1e6, noise_multiplier=0.01, participations=3)


class Centring(nn.Module):
    """Centres over its batch, if its object does so, or if the batch is one that it waits for."""

    def __init__(self, when: Callable[[Tensor], bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.when = head(T), when

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 and self.when(x):
            x = x - x.mean(0)
        out: Tensor = self.a(x)
        return out


def always(is_so: bool) -> Callable[[Tensor], bool]:
    """Of one code, so that nothing but the object tells two of them apart."""
    return lambda x: is_so


MIXING: dict[str, Callable[[Tensor], bool]] = {
    "always": always(True),
    "large numbers": lambda x: bool(x.max() > 100.0),
    "negative numbers": lambda x: bool(x.min() < -4.0),
    "four records": lambda x: len(x) > 3,
}


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("name", MIXING)
def test_a_module_that_mixes_is_refused_after_a_harmless_one_of_its_class(
    name: str, mode: str
) -> None:
    example = data(VECTORS, 3, seed=2)
    gradients_of(ModuleTemplate(Centring(always(False))), LOSS, mode=mode, example=example)
    template = ModuleTemplate(Centring(MIXING[name]))
    with pytest.raises(ValueError, match=r"not the sum of those that each record has alone"):
        gradients_of(template, LOSS, mode=mode, example=example)
    # The power: trained on, it moves a sum by more than one norm.
    x, y = data(VECTORS, 6)
    x[0] *= 100.0 * x[0].sign()
    x[1] -= 5.0
    assert largest_move(summed_by(template, WAYS[mode](template, LOSS), 0.01), x, y, 0.01) > 1.2


def charged_by(how: DPSGD, ledger: Path) -> NodeLedger:
    model = nn.Linear(T, CLASSES)
    client = OpacusClient(
        model,
        DataLoader(TensorDataset(*data(VECTORS, 5))),
        plan=PLAN,
        ledger=ledger,
        account=Account(unit="record", source="ward"),
        dp_sgd=how,
    )
    client.fit([part.detach().numpy().copy() for part in model.parameters()], {})
    return NodeLedger.read(ledger)


@pytest.mark.parametrize("mode", ["records", "hooks", "ghost"])
def test_a_node_s_ledger_names_the_mode_that_an_app_declares_right(
    tmp_path: Path, mode: str
) -> None:
    how = DPSGD(grad_sample_mode=mode, example=data(VECTORS, 2))
    with charged_by(how, tmp_path / "ledger.db") as ledger:
        [use] = ledger.uses
        [shown] = node_uses_json(ledger)["uses"]
        console = Console(record=True, width=200)
        console.print(node_uses_tables(ledger)[0])
    declared = None if mode == "records" else mode
    assert use.declared_gradients == shown["declared_gradients"] == declared
    words = f"{mode}: its author declares that rows are records"
    assert (words in console.export_text()) == (declared is not None)


def test_charges_of_two_modes_are_two_uses(tmp_path: Path) -> None:
    for mode in ("records", "ghost", "ghost"):
        how = DPSGD(grad_sample_mode=mode, example=data(VECTORS, 2))
        charged_by(how, tmp_path / "ledger.db").close()
    with NodeLedger.read(tmp_path / "ledger.db") as ledger:
        assert [(use.declared_gradients, use.charges) for use in ledger.uses] == [
            (None, 1),
            ("ghost", 2),
        ]


def test_the_charge_of_a_secure_sum_names_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = DPSGD(grad_sample_mode="ghost", example=data(VECTORS, 2))
    records = NodeRecords(
        model_fn=lambda *_: pytest.fail("no records here"),
        loader_fn=lambda *_: pytest.fail("no records here"),
        dp_sgd=how,
    )
    units = NodeUnits(client_fn=lambda *_: Adds([np.full(3, 0.1)], None), count=lambda *_: 1)
    monkeypatch.setattr(
        SecureNodes, "app", lambda _: numpy_client_app(units=units, records=records)
    )
    federation = Federation(tmp_path)
    assert not federation.train(federation.content(), number=1).has_error()
    with NodeLedger.read(tmp_path / "node-0" / "ledger.db") as ledger:
        [use] = ledger.uses
    assert use.declared_gradients == "ghost"


def test_each_statement_to_records_says_what_a_declaration_leaves_open() -> None:
    page = statement_markdown(record_statement(PLAN, participations=2, num_clients=10))
    assert "computes gradients by `hooks` or `ghost`: that rows are records is its" in page
    named = record_statement(PLAN, participations=2, num_clients=10, declared_gradients="ghost")
    page = statement_markdown(named)
    assert "`grad_sample_mode=ghost`), which was declared" in page
    assert "by `hooks` or `ghost`" not in page
