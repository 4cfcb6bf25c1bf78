"""A checkpoint goes on in a training of its kind, under the ledger that it is of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from local_grid import LocalGrid, answer_with_update
from trainings import plan_of, record

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.ledger import LedgerCorrupted
from fl_dp.mechanisms import AdaptiveClipping, PerLayerClipping
from fl_dp.strategies import Checkpoint, DPFedAvg, LawSelection, UnprotectedFedAvg

N = 4
ADAPTIVE = plan_of(N, rounds=4, clipping=AdaptiveClipping(norm=1.0))
EVERYBODY = LawSelection(PoissonSampling(sampling_rate=1.0))


def after_two_rounds(strategy: DPFedAvg | UnprotectedFedAvg) -> Checkpoint:
    grid = LocalGrid(answer_with_update([{"w": np.ones(2)}] * N), N)
    strategy.start(grid, record(w=np.zeros(2)), num_rounds=2)
    return strategy.checkpoint()


def test_the_clipping_norm_goes_on_from_where_it_was(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", ADAPTIVE) as ledger:
        checkpoint = after_two_rounds(before := DPFedAvg(plan=ADAPTIVE, ledger=ledger))
        after = DPFedAvg(plan=ADAPTIVE, ledger=ledger)
        after.resume(checkpoint)
    assert after.clipping_norms == before.clipping_norms != (1.0,)


def test_a_checkpoint_of_another_kind_of_training_is_refused(
    open_ledger: Callable[[Plan], PrivacyLedger],
) -> None:
    private = after_two_rounds(DPFedAvg(plan=ADAPTIVE, ledger=open_ledger(ADAPTIVE)))
    layers = plan_of(N, clipping=PerLayerClipping(norms=(1.0, 2.0)))
    unprotected = after_two_rounds(UnprotectedFedAvg(selection=EVERYBODY))
    for strategy, checkpoint in (
        (UnprotectedFedAvg(selection=EVERYBODY), private),
        (DPFedAvg(plan=ADAPTIVE, ledger=open_ledger(ADAPTIVE)), unprotected),
        (DPFedAvg(plan=layers, ledger=open_ledger(layers)), private),
    ):
        with pytest.raises(ValueError):
            strategy.resume(checkpoint)


def test_a_checkpoint_is_refused_under_a_ledger_that_does_not_hold_what_it_was_charged(
    open_ledger: Callable[[Plan], PrivacyLedger],
) -> None:
    checkpoint = after_two_rounds(DPFedAvg(plan=ADAPTIVE, ledger=open_ledger(ADAPTIVE)))
    with pytest.raises(LedgerCorrupted, match="the checkpoint knows of"):
        DPFedAvg(plan=ADAPTIVE, ledger=open_ledger(ADAPTIVE)).resume(checkpoint)
