"""Whether a model can learn at all: lengths of noise and updates, against trainings of zeros."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_grid import LocalGrid, answer_with_app, introducing
from record_plans import record_plan
from secure_nodes import SecureNodes
from secure_trainings import plan_of as plan_of_shares
from trainings import FixedClient, budgeted, client_fn, plan_of, record, train

from fl_dp import Plan
from fl_dp.accounting import CyclicSampling, NoiseSchedule, PoissonSampling
from fl_dp.clients import numpy_client_app
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import Banded, SecureSum
from fl_dp.plan.noise_left import HOPELESS, noise_left, noise_left_of_records

CLIENTS, SIZE = 6, 20_000
# The length of a Gaussian vector of this size lies within 5 % at six deviations, that of a round's.
WITHIN = 0.05


def central(**given: Any) -> Plan:
    return plan_of(CLIENTS, rounds=4, clipping=FixedClipping(norm=0.5), **given)


PLANS = {
    "central": central(),
    "schedule": central(schedule=NoiseSchedule(name="linear")),
    "coins": central(sampling_rate=0.5),
    "correlated": central(
        sampling=CyclicSampling(groups=3, inside=PoissonSampling(sampling_rate=0.5)),
        correlation=Banded(coefficients=(4096, 2000, 1000)),
    ),
    "local": central(client_scheme="gaussian"),
    "laplace": central(client_scheme="laplace"),
    "shares": plan_of_shares(
        CLIENTS, rounds=4, clipping_norm=0.5, secure_sum=SecureSum(max_parameters=SIZE)
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_lengths_are_those_of_a_training_in_which_nobody_moves_anything(
    tmp_path: Path, name: str
) -> None:
    plan, zeros = PLANS[name], [np.zeros(SIZE)]
    answer: Any = introducing(
        answer_with_app(numpy_client_app(client_fn(lambda _: FixedClient(zeros[0]))), CLIENTS)
    )
    if name == "shares":
        answer = SecureNodes(tmp_path, [[zeros]] * CLIENTS)
    done = train(tmp_path, plan, answer, record(w=zeros[0]))
    left = noise_left(plan, SIZE)
    moves = np.array(done.moves())
    root_mean_square = np.sqrt((np.linalg.norm(moves, axis=1) ** 2).mean())
    assert root_mean_square == pytest.approx(left.of_one, rel=WITHIN)
    assert np.linalg.norm(moves.sum(axis=0)) == pytest.approx(left.of_all, rel=WITHIN)
    assert (left.releases, left.longest) == (4, 0.5)
    assert left.ratio == pytest.approx(left.of_all / 2.0)


def test_noise_that_later_rounds_take_back_adds_up_to_less() -> None:
    correlated = noise_left(PLANS["correlated"], SIZE)
    assert correlated.of_all < 0.8 * np.sqrt(4) * correlated.of_one


def test_gradients_of_records_at_several_clients() -> None:
    """16 steps in all, of noise 2 x 3 on sums of 8 gradients, at 4 clients, on 100 numbers."""
    plan = record_plan(
        epsilon=1.0,
        noise_multiplier=2.0,
        sampling_rate=0.1,
        steps=2,
        participations=3,
        clipping_norm=3.0,
    )
    left = noise_left_of_records(plan, 100, batch_size=8.0, clients=4.0, rounds=8)
    assert left.of_one == pytest.approx(10.0 * 6.0 / 8.0 / 2.0)
    assert left.of_all == pytest.approx(4.0 * left.of_one)
    assert left.ratio == pytest.approx(left.of_all / (16 * 3.0))
    assert "deviation 0.375 on each coordinate of a step's mean, 1.5 on the total" in left.in_words


def test_who_trains_a_large_model_with_ten_clients_is_told_before_anybody_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The case that was seen: 11 M parameters, ten clients, epsilon 8, and a loss of 5246."""
    strategy = budgeted(tmp_path, epsilon=8.0, num_clients=10, rounds=50)
    assert noise_left(strategy.plan, 11_181_642).ratio > 10.0 * HOPELESS
    said: list[bool] = []

    def answer(message: Any, node: int) -> None:
        said.append("this model will hardly learn" in caplog.text)

    with caplog.at_level(logging.INFO):
        strategy.start(LocalGrid(answer, 10), record(w=np.zeros(1_000_000)), num_rounds=1)
    assert said == [True] * 10
    assert "Error of the released sum: standard deviation" in caplog.text
    assert "over 1,000,000 parameters is" in caplog.text


def test_a_training_that_can_learn_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = budgeted(tmp_path, epsilon=8.0, num_clients=10, rounds=50)
    answer = answer_with_app(numpy_client_app(client_fn(lambda _: FixedClient(np.ones(100)))), 10)
    with caplog.at_level(logging.INFO):
        strategy.start(LocalGrid(answer, 10), record(w=np.zeros(100)), num_rounds=1)
    assert "Error of the released sum" in caplog.text
    assert "hardly learn" not in caplog.text


def test_the_warning_begins_at_a_tenth_of_the_squared_length() -> None:
    left = noise_left(PLANS["central"], 100)
    at = replace(left, of_all=HOPELESS * left.releases * left.longest)
    assert at.warning is not None
    assert replace(at, of_all=0.999 * at.of_all).warning is None
    assert pytest.approx(0.1) == 1.0 / (1.0 + HOPELESS**2)
