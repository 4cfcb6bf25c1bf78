"""Clients that count for more than others: never for more than one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from local_grid import Answer, answer_with_app, arrays_of, reply
from trainings import SIX_SIGMA, FixedClient, able, client_fn, plan_of, record, train

from fl_dp import Plan
from fl_dp.clients import numpy_client_app
from fl_dp.mechanisms import FixedClipping
from fl_dp.protocol.introduction import Ability

N, CAP, CLIP = 10, 20, 0.5
QUIET: dict[str, Any] = dict(noise_multiplier=1e-4, clipping=FixedClipping(norm=CLIP))
SIZES = [0, 1, 5, 10, 15, 20, 21, 100, 10**6, 20]
SHARES = np.minimum(np.array(SIZES) / CAP, 1.0)


def quiet_plan(**changes: Any) -> Plan:
    return plan_of(N, **(QUIET | changes))


def tolerance(plan: Plan) -> float:
    """Six deviations of the noise on a mean with a fixed denominator."""
    return SIX_SIGMA * plan.noise_multiplier * CLIP / plan.denominator


def clients_of(sizes: Any, length: float, metrics: Any = None) -> Answer:
    """Our own clients of known sizes; each sends an update of this length."""

    def client_of(node: int) -> FixedClient:
        update = np.array([length, 0.0, 0.0])
        return FixedClient(update, num_examples=sizes[node], metrics=metrics)

    return answer_with_app(numpy_client_app(client_fn(client_of)), len(sizes))


MODEL = record(w=np.zeros(3))


def test_a_clients_weight_is_its_records_over_the_cap_and_never_above_one(tmp_path: Path) -> None:
    plan = quiet_plan()
    trained = train(tmp_path, plan, clients_of(SIZES, 0.4), MODEL, weight_cap=CAP)
    expected = 0.4 * SHARES.sum() / N
    np.testing.assert_allclose(trained.move, [expected, 0, 0], atol=tolerance(plan))


def test_a_weight_is_applied_before_clipping_so_that_it_hides_in_the_update(
    tmp_path: Path,
) -> None:
    # Of length 2: clipping first would leave 0.5 times the weight of each.
    plan = quiet_plan()
    trained = train(tmp_path, plan, clients_of(SIZES, 2.0), MODEL, weight_cap=CAP)
    expected = np.minimum(2.0 * SHARES, CLIP).sum() / N
    np.testing.assert_allclose(trained.move, [expected, 0, 0], atol=tolerance(plan))


def test_with_a_public_total_weight_the_mean_is_over_weights(tmp_path: Path) -> None:
    plan = quiet_plan(total_weight=float(SHARES.sum()))
    trained = train(tmp_path, plan, clients_of(SIZES, 0.4), MODEL, weight_cap=CAP)
    np.testing.assert_allclose(trained.move, [0.4, 0, 0], atol=tolerance(plan))


def test_no_number_of_records_leaves_a_weighted_client(tmp_path: Path) -> None:
    answer = clients_of(SIZES, 0.4)
    seen: list[Message] = []

    @able(Ability.WEIGHTS)
    def watched(message: Message, node: int) -> Message | None:
        made = answer(message, node)
        assert made is not None
        seen.append(made)
        return made

    train(tmp_path, quiet_plan(), watched, MODEL, weight_cap=CAP)
    for each in seen:
        assert [dict(metrics) for metrics in each.content.metric_records.values()] == [
            {"num-examples": 1}
        ]


@pytest.mark.parametrize(
    "claim", [1e9, math.inf, math.nan, -5.0, 0, pytest.param(10**400, id="400 digits")]
)
@pytest.mark.parametrize("total_weight", [None, 4.0])
def test_a_claim_of_records_moves_the_mean_by_no_more_than_the_clipping_norm(
    tmp_path: Path, claim: float, total_weight: float | None
) -> None:
    # Any Flower client that claims what it likes, with an update beyond all bounds.
    plan = quiet_plan(total_weight=total_weight)

    @able(Ability.WEIGHTS)
    def answer(message: Message, node: int) -> Message:
        update = 1e12 if node == 3 else 0.0
        model = arrays_of(message)
        claims = {"num-examples": claim if node == 3 else 1}
        return reply(message, {"w": model["w"] + np.array([update, 0.0, 0.0])}, **claims)

    trained = train(tmp_path, plan, answer, MODEL, weight_cap=CAP)
    bound = [CLIP / plan.denominator, 0, 0]
    np.testing.assert_allclose(trained.move, bound, atol=tolerance(plan))


@pytest.mark.parametrize(
    "size", [math.nan, -1, "many", None, pytest.param(10**400, id="400 digits")]
)
def test_a_client_whose_size_is_no_number_contributes_nothing(tmp_path: Path, size: Any) -> None:
    plan = quiet_plan()
    sizes = [size] + [CAP] * (N - 1)
    trained = train(tmp_path, plan, clients_of(sizes, 0.4), MODEL, weight_cap=CAP)
    np.testing.assert_allclose(trained.move, [0.36, 0, 0], atol=tolerance(plan))
