"""Replies of clients that want a training to break: it goes on, and the others are counted."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from hostile import VALUES, cases
from hostile_records import hostile_records
from ledger_files import fresh_path
from local_grid import LocalGrid, arrays_of
from trainings import able, plan_of

from fl_dp import PrivacyLedger
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import FixedClipping, ScalarMetric
from fl_dp.plan import BufferedPlan
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import SCALARS_METRIC, UTILITY_METRIC
from fl_dp.strategies import DPFedAvg, DPFedBuff

N, ROUNDS, CLIP, UPDATE = 4, 2, 0.5, 0.1
QUIET = 1e-5  # a noise multiplier whose noise is below what is looked at
LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)
FIELDS: dict[str, Any] = {
    "rounds": ROUNDS,
    "noise_multiplier": QUIET,
    "clipping": FixedClipping(norm=CLIP),
}
PLANS = {
    "rounds": plan_of(N, **FIELDS),
    "rounds with metrics": plan_of(N, metrics=(LOSS,), scalar_noise_std=1.0, **FIELDS),
    "weighted": plan_of(N, total_weight=float(N), **FIELDS),
    "buffers": plan_of(N, sampling=BufferedSampling(cohort=N), **FIELDS),
}
HOSTILE = (0, 1)  # places of the nodes


def answered(message: Message, place: int, rng: Random) -> Message | None:
    if message.metadata.message_type != "train":
        return Message(Error(code=2, reason="trains only"), reply_to=message)
    trained = {name: Array(np.asarray(each + UPDATE)) for name, each in arrays_of(message).items()}
    metrics: dict[str, Any] = {"num-examples": 1, "loss": 0.5}
    metrics |= {UTILITY_METRIC: 0.5, SCALARS_METRIC: [1.0]}
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord(metrics)})
    if place in HOSTILE:
        if rng.random() < 0.1:
            code = rng.choice((0, 1, 2, 3, 2**31 - 1, -1))
            return Message(Error(code=code, reason=str(rng.choice(VALUES))), reply_to=message)
        content = hostile_records(content, rng)
    return Message(content, reply_to=message)


@pytest.mark.parametrize("name", PLANS)
@cases(12)
def test_hostile_replies_end_no_training_and_move_it_by_their_own_share(
    name: str, rng: Random
) -> None:
    plan = PLANS[name]
    models: list[Any] = []
    answer = able(Ability.WEIGHTS)(lambda message, place: answered(message, place, rng))
    grid = LocalGrid(answer, N)
    with fresh_path() as path, PrivacyLedger.open(path, plan) as ledger:
        made = DPFedBuff if isinstance(plan, BufferedPlan) else DPFedAvg
        weights: dict[str, Any] = {"weight_cap": 1.0} if name == "weighted" else {}
        made(plan=plan, ledger=ledger, **weights).start(
            grid,
            ArrayRecord({"w": Array(np.zeros(3)), "b": Array(np.zeros((), np.float32))}),
            num_rounds=ROUNDS,
            timeout=1.0,
            evaluate_fn=lambda _, arrays: models.append(arrays["w"].numpy()),
        )
        assert ledger.rounds_committed == ledger.rounds_spent == ROUNDS
    honest = UPDATE * (N - len(HOSTILE)) / N
    for before, after in pairwise(models):
        # Each moves the mean by its clipped update at most; the others' is there, whole.
        assert np.linalg.norm(after - before - honest) <= len(HOSTILE) * CLIP / N + 1e-3
