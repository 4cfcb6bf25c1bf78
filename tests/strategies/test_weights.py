"""Clients that count for more than others: never for more than one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.modes import CentralMode
from flwr.app import Message
from local_grid import Answer, answer_with_app, arrays_of, reply
from trainings import SIX_SIGMA, FixedClient, Training, able, client_fn, plan_of, record, train

from fl_dp import PrivacyPlan
from fl_dp.app.played_rounds import HandOver, PaperLedger, reply_from
from fl_dp.clients import numpy_client_app
from fl_dp.mechanisms import FixedClipping, GaussianMechanism, SecureRandom
from fl_dp.protocol.identity import Ability
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import WEIGHT_METRIC
from fl_dp.strategies import DPFedAvg, Unit
from fl_dp.updates import VectorLayout

N, CAP, CLIP = 10, 20, 0.5
QUIET: dict[str, Any] = dict(noise_multiplier=1e-4, clipping=FixedClipping(norm=CLIP))
SIZES = [0, 1, 5, 10, 15, 20, 21, 100, 10**6, 20]
SHARES = np.minimum(np.array(SIZES) / CAP, 1.0)


def quiet_plan(**changes: Any) -> PrivacyPlan:
    return plan_of(N, **(QUIET | changes))


def tolerance(plan: PrivacyPlan) -> float:
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
        claims = {"num-examples": claim if node == 3 else 1, WEIGHT_METRIC: claim}
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


# --- a denominator that follows the cohort ------------------------------------------------------


def capped(least: float, **changes: Any) -> PrivacyPlan:
    """The estimator f~c, whose denominator is at least `least`."""
    return quiet_plan(total_weight=least, capped_denominator=True, **changes)


def capped_training(folder: Path, plan: PrivacyPlan, answer: Answer) -> Training:
    return train(folder, plan, answer, MODEL, weight_cap=CAP)


def capped_tolerance(plan: PrivacyPlan) -> float:
    """Six deviations of the noise on the mean: of twice the clipping norm."""
    return SIX_SIGMA * plan.noise_multiplier * 2 * CLIP / plan.denominator


def test_a_capped_denominator_divides_by_what_the_cohort_weighs(tmp_path: Path) -> None:
    plan = capped(2.0)
    trained = capped_training(tmp_path, plan, clients_of(SIZES, 0.4))
    np.testing.assert_allclose(trained.move, [0.4, 0, 0], atol=capped_tolerance(plan))


def test_a_capped_denominator_is_never_less_than_its_public_bound(tmp_path: Path) -> None:
    plan = capped(9.0)
    trained = capped_training(tmp_path, plan, clients_of(SIZES, 0.4))
    expected = 0.4 * SHARES.sum() / 9.0
    np.testing.assert_allclose(trained.move, [expected, 0, 0], atol=capped_tolerance(plan))


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (0.5, 0.5),
        (1.0, 1.0),
        (7.0, 1.0),
        (math.inf, 1.0),
        (-3.0, 0.0),
        (-math.inf, 0.0),
        (math.nan, 0.0),
        (None, 0.0),
        ([1.0, 1.0], 0.0),
    ],
)
def test_a_reported_weight_counts_as_what_is_allowed(
    tmp_path: Path, told: Any, counted: float
) -> None:
    plan = capped(4.0)

    @able(Ability.WEIGHTS)
    def answer(message: Message, node: int) -> Message:
        weight = {WEIGHT_METRIC: told} if told is not None and node == 0 else {}
        return reply(message, {"w": np.array([CLIP, 0.0, 0.0])}, **weight)

    trained = capped_training(tmp_path, plan, answer)
    expected = [CLIP * counted / 4.0, 0, 0]
    np.testing.assert_allclose(trained.move, expected, atol=capped_tolerance(plan))


def capped_sum(plan: PrivacyPlan) -> CentralMode:
    layout, norms = VectorLayout.of(MODEL), (CLIP,)
    return CentralMode(
        plan, 1.0, layout, np.zeros(3), RoundInstruction(server_round=1), clipping_norms=norms
    )


def capped_mean(plan: PrivacyPlan, cohort: list[tuple[float, np.ndarray]]) -> np.ndarray:
    """Release a cohort of weights and updates; the caller has taken the noise away."""
    total = capped_sum(plan)
    for weight, update in cohort:
        made = reply_from(0, {"w": update}, **{WEIGHT_METRIC: weight})
        total.fold(made.content, [Unit(0)], server_round=1)
    return np.asarray(total.release(SecureRandom(), lambda messages, timeout: iter(())).mean)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GaussianMechanism, "release", lambda mechanism, total, noise, **_: total * mechanism.grid
    )


@pytest.mark.usefixtures("no_noise")
def test_taking_one_unit_away_moves_a_capped_mean_by_at_most_twice_the_norm_over_the_bound() -> (
    None
):
    # Random cohorts around the bound, of updates that agree or not; the worst that is known has
    # all in one direction and one against them: 4/3 of C over the bound of 2.
    least = 2.0
    plan = capped(least, noise_multiplier=1.0)
    rng = np.random.default_rng(7)
    worst = 0.0
    for trial in range(150):
        size = int(rng.integers(1, 6))
        weights = rng.choice([0.0, 0.25, 0.5, 1.0], size)
        updates = rng.normal(size=(size, 3)) * 10.0
        if trial % 3 == 0:
            updates = np.zeros((size, 3))
            updates[:, 0] = 5.0
            updates[0, 0] = rng.choice([-5.0, 5.0])
        cohort = list(zip(weights, updates, strict=True))
        apart = capped_mean(plan, cohort) - capped_mean(plan, cohort[1:])
        worst = max(worst, float(np.linalg.norm(apart)))
    known = [(1.0, np.array([sign * 5.0, 0.0, 0.0])) for sign in (-1, 1, 1)]
    apart = capped_mean(plan, known) - capped_mean(plan, known[1:])
    worst = max(worst, float(np.linalg.norm(apart)))
    assert CLIP / least < worst <= 2.0 * CLIP / least
    assert worst == pytest.approx(4.0 / 3.0 * CLIP / least, rel=0.01)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_capped_mean_has_the_noise_of_twice_the_sensitivity_whatever_it_weighs(
    tmp_path: Path, weight: float
) -> None:
    # 300,000 draws: six deviations are 0.8 %, and half the noise is 50 % away.
    size, z = 300_000, 0.7
    plan = capped(4.0, noise_multiplier=z)

    @able(Ability.WEIGHTS)
    def answer(message: Message, node: int) -> Message:
        return reply(message, arrays_of(message), **{WEIGHT_METRIC: weight})

    trained = train(tmp_path, plan, answer, record(w=np.zeros(size)), weight_cap=CAP)
    assert np.std(trained.move) == pytest.approx(z * 2 * CLIP / 4.0, rel=0.01)


def test_a_capped_denominator_without_a_weight_cap_is_refused() -> None:
    plan = capped(4.0)
    with pytest.raises(ValueError, match="give weight_cap"):
        DPFedAvg(HandOver(), plan=plan, ledger=PaperLedger(plan))  # type: ignore[arg-type]  # plays one


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_cap_that_is_not_positive_and_finite_is_refused(cap: float) -> None:
    plan = quiet_plan()
    with pytest.raises(ValueError, match="weight_cap"):
        DPFedAvg(HandOver(), plan=plan, ledger=PaperLedger(plan), weight_cap=cap)  # type: ignore[arg-type]  # plays one
