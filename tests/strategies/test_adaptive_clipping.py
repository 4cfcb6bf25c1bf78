"""A clipping norm that follows a quantile, and layers with norms of their own, in whole rounds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from local_grid import answer_with_update
from played_rounds import HandOver, PaperLedger, play, reply_from
from scipy import stats
from trainings import SIX_SIGMA, plan_of, record, train

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.mechanisms import AdaptiveClipping, PerLayerClipping
from fl_dp.strategies import DPFedAvg, PrivateLoop

ALARM = 1e-6
N = 40
SIZE = 20_000  # draws of noise a round: its deviation is known to 0.5 %


def lognormal_updates(sigma: float) -> list[dict[str, Any]]:
    """Norms at the 40 middle quantiles of lognormal(0, sigma), median 1."""
    norms = np.exp(sigma * stats.norm.ppf((np.arange(N) + 0.5) / N))
    return [{"w": np.array([norm, 0.0])} for norm in norms]


def adaptive_plan(rounds: int, **changes: Any) -> Plan:
    clipping = AdaptiveClipping(**changes.pop("clipping", {}))
    settings: dict[str, Any] = dict(clipping=clipping, rounds=rounds, scalar_noise_std=0.5)
    return plan_of(N, **(settings | changes))


def norm_after(plan: Plan, sigma: float, rounds: int) -> float:
    """Let the plan's nodes answer with lognormal(0, sigma) norms, whose median is 1."""
    replies = {n: reply_from(n, update) for n, update in enumerate(lognormal_updates(sigma))}
    strategy = DPFedAvg(HandOver(), plan=plan, ledger=PaperLedger(plan))  # type: ignore[arg-type]  # plays one
    play(strategy, replies, nodes=N, rounds=rounds, size=2)
    assert strategy.clipping_norms is not None
    return strategy.clipping_norms[0]


# Around the quantile the norm's logarithm is an AR(1) process. Bits with noise 0.5 out of 40 give
# it a deviation of 0.007, and 40 norms leave the quantile open by 0.04: a tenth is never reached.
@pytest.mark.parametrize(
    ("start", "quantile", "norm"),
    [
        (0.1, 0.5, 1.0),
        (10.0, 0.7, math.exp(0.5244)),
        pytest.param(10.0, 0.5, 1.0, marks=pytest.mark.nightly),
        pytest.param(0.1, 0.7, math.exp(0.5244), marks=pytest.mark.nightly),
    ],
)
def test_the_clipping_norm_finds_the_quantile_from_either_side(
    start: float, quantile: float, norm: float
) -> None:
    plan = adaptive_plan(1, clipping=dict(norm=start, target_quantile=quantile))
    assert norm_after(plan, 1.0, 110) == pytest.approx(norm, rel=0.1)


@pytest.mark.parametrize(("start", "reference"), [(0.5, 1.007), (2.0, 1.003)])
def test_without_noise_sixty_rounds_reach_the_known_reference(
    start: float, reference: float
) -> None:
    # The rule iterated on the exact law; the bits' noise here is a thousandth of the cohort.
    plan = adaptive_plan(1, clipping=dict(norm=start), noise_multiplier=0.01, scalar_noise_std=0.04)
    assert norm_after(plan, 0.5, 60) == pytest.approx(reference, rel=0.03)


def test_the_noise_of_a_round_is_for_the_norm_that_its_clients_were_clipped_with(
    tmp_path: Path,
) -> None:
    # Nobody is clipped, so the norm falls by 22 % a round: the next round's would be 22 % too
    # little. Six deviations of what 20,000 draws show are 3 %.
    plan = adaptive_plan(
        4,
        clipping=dict(norm=2.0, learning_rate=0.5),
        noise_multiplier=1.0,
        scalar_noise_std=2.0,
    )
    answer = answer_with_update([{}] * N)
    trained = train(tmp_path, plan, answer, record(w=np.zeros(SIZE)))
    clipping_norms = [norms for norms in trained.clipping_norms if norms is not None]
    assert len(clipping_norms) == len(trained.clipping_norms)
    for norms, move in zip(clipping_norms, trained.moves(), strict=False):
        multiplier = plan.bundle(1.0, clipping_norms=norms).updates.noise_multiplier
        assert np.std(move) * N == pytest.approx(multiplier * norms[0], rel=0.03)
    assert clipping_norms[3][0] < 0.6 * clipping_norms[0][0]


@pytest.mark.parametrize(("silent", "unclipped"), [(0, 0.0), (N // 2, 0.25), (N, 0.5)])
def test_a_unit_that_does_not_reply_is_neither_clipped_nor_unclipped(
    tmp_path: Path, silent: int, unclipped: float
) -> None:
    # Whoever replies is clipped; a missing unit adds 0 to the sum of -1/2 a unit.
    plan = adaptive_plan(
        1, clipping=dict(target_quantile=0.3), noise_multiplier=0.01, scalar_noise_std=0.02
    )
    long = answer_with_update([{"w": np.array([5.0, 0.0])}] * N)
    trained = train(
        tmp_path,
        plan,
        lambda message, node: None if node < silent else long(message, node),
        record(w=np.zeros(2)),
        timeout=1.5,
    )
    norm = 0.1 * math.exp(-0.2 * (unclipped - 0.3))
    tolerance = 0.2 * SIX_SIGMA * 0.02 / N
    assert trained.clipping_norms[-1] == pytest.approx((norm,), rel=tolerance)


def test_a_refused_update_adds_no_bit(tmp_path: Path) -> None:
    plan = adaptive_plan(1, noise_multiplier=0.01, scalar_noise_std=0.02)
    answer = answer_with_update([{"w": np.array([np.nan, 0.0])}] * N)
    trained = train(tmp_path, plan, answer, record(w=np.zeros(2)))
    assert trained.clipping_norms[-1] == pytest.approx((0.1,), rel=0.2 * SIX_SIGMA * 0.02 / N)


def test_updates_and_bits_are_charged_as_one_gaussian_of_the_joint_multiplier(
    tmp_path: Path,
) -> None:
    plan = adaptive_plan(3, sampling_rate=0.5, noise_multiplier=0.7)
    trained = train(tmp_path, plan, answer_with_update([{}] * N), record(w=np.zeros(2)))
    assert trained.ledger is not None
    event = PoissonGaussianEvent(noise_multiplier=0.7, sampling_rate=0.5)
    assert trained.ledger.history == ((event, 3),)
    kinds = [entry.fields["kind"] for entry in trained.ledger.entries]
    assert kinds.count("reserve") == 3


@pytest.mark.parametrize(
    ("multiplier", "cohort", "of_updates"),
    [(1.0, 100, 1.00503782), (1.0, 1000, 1.00005), (0.5, 50, 0.50251891), (2.0, 100, 2.04124145)],
)
def test_the_updates_get_the_noise_of_theorem_1(
    multiplier: float, cohort: int, of_updates: float
) -> None:
    # Andrew et al. 2021, theorem 1, with the bits' noise at a twentieth of the cohort.
    plan = plan_of(cohort, clipping=AdaptiveClipping(), noise_multiplier=multiplier)
    bundle = plan.bundle(multiplier)
    assert bundle.updates.noise_multiplier == pytest.approx(of_updates, abs=5e-9)
    assert bundle.scalar_noise_std == cohort / 20


# --- the game of the pair -----------------------------------------------------------------------

Z, BIT_NOISE = 0.25, 0.15
PAIR = plan_of(
    4,
    noise_multiplier=Z,
    scalar_noise_std=BIT_NOISE,
    clipping=AdaptiveClipping(norm=1.0, learning_rate=1.0),
)


class BitsForFree(PrivateLoop):
    """Gives the updates the noise that is charged, and the bits theirs on top of it."""

    def make_mode(self, reservation: Any, *rest: Any) -> Any:
        charged = reservation.noise_multiplier
        joint = (charged**-2 + (2 * BIT_NOISE) ** -2) ** -0.5
        return super().make_mode(replace(reservation, noise_multiplier=joint), *rest)


class NormPutBack(PrivateLoop):
    """Plays each round at the first norm, and remembers what the bits' release made of it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.next_norms: list[float] = []

    def release(self, *given: Any) -> Any:
        released = super().release(*given)
        assert self._clipping_norms is not None
        self.next_norms.append(self._clipping_norms[0])
        self._clipping_norms = (1.0,)
        return released


class BitsForFreePutBack(NormPutBack, BitsForFree):
    pass


def least_joint_mu(kind: type[NormPutBack], rounds: int) -> float:
    """A lower bound on the mu of updates and bits together, wrong once in a million.

    One of two units is silent, or sends what is clipped: C e1 and the bit -1/2. A hundred rounds
    more show how much weight each of the two deserves.
    """

    class Played(DPFedAvg):
        loop_class = kind
        loop: NormPutBack

    zero, long = (np.array([length, 0.0]) for length in (0.0, 1e6))
    worlds = []
    for replies in (
        {1: reply_from(1, {"w": zero})},
        {0: reply_from(0, {"w": long}), 1: reply_from(1, {"w": zero})},
    ):
        strategy = Played(HandOver(), plan=PAIR, ledger=PaperLedger(PAIR))  # type: ignore[arg-type]  # plays one
        released, _ = play(strategy, replies, nodes=4, rounds=100 + rounds, size=2)
        # The logarithm of the next norm is the noisy share of unclipped, but for constants.
        worlds.append(np.stack([released[:, 0], np.log(strategy.loop.next_norms)], axis=1))
    without, with_unit = (world[:100] for world in worlds)
    spread = without.var(axis=0) + with_unit.var(axis=0)
    weights = (with_unit.mean(axis=0) - without.mean(axis=0)) / spread
    without, with_unit = (world[100:] @ weights for world in worlds)
    deviation = math.sqrt((without.var() + with_unit.var()) / 2)
    mu = abs(with_unit.mean() - without.mean()) / deviation
    return float(mu - stats.norm.isf(ALARM) * math.sqrt(2 / rounds + mu**2 / (4 * rounds)))


def test_updates_and_bits_together_tell_no_more_than_the_joint_multiplier() -> None:
    # mu = 4 is charged. The bound is 0.5 below it, with a deviation of 0.11: six to the left end.
    assert 0.7 / Z <= least_joint_mu(NormPutBack, 500) <= 1 / Z


def test_bits_that_nobody_paid_for_are_caught_by_the_same_game() -> None:
    # Together they are 5.2-GDP, of which 4 are charged: four deviations beyond the alarm.
    assert least_joint_mu(BitsForFreePutBack, 500) > 1 / Z


# --- a norm for each layer ----------------------------------------------------------------------

NORMS = (3.0, 4.0)  # joint 5
LAYERS = plan_of(10, clipping=PerLayerClipping(norms=NORMS), noise_multiplier=1e-4)
NOISE = SIX_SIGMA * 1e-4 * 5.0 / 10


def layered(**first: Any) -> Any:
    """Nine units of zeros and one of these layers."""
    updates: list[dict[str, Any]] = [{} for _ in range(10)]
    updates[3] = first
    return answer_with_update(updates)


LAYERED = record(a=np.zeros(2), b=np.zeros(3))


@pytest.mark.parametrize("huge", [1e3, 1e300])
def test_each_layer_is_bounded_by_its_own_norm(tmp_path: Path, huge: float) -> None:
    answer = layered(a=np.array([0.0, -huge]), b=np.array([0.5, 0.0, 0.0]))
    trained = train(tmp_path, LAYERS, answer, LAYERED)
    np.testing.assert_allclose(trained.models[1]["a"], [0.0, -0.3], atol=NOISE)
    np.testing.assert_allclose(trained.models[1]["b"], [0.05, 0.0, 0.0], atol=NOISE)


def test_a_unit_that_is_long_in_every_layer_moves_the_mean_by_the_joint_norm(
    tmp_path: Path,
) -> None:
    answer = layered(a=np.array([1e9, 0.0]), b=np.array([0.0, 1e200, 0.0]))
    model = train(tmp_path, LAYERS, answer, LAYERED).models[1]
    moved = math.hypot(*model["a"], *model["b"]) * 10
    assert moved == pytest.approx(5.0, abs=NOISE * 10)
    assert LAYERS.clipping_norm == 5.0


def test_one_bad_layer_makes_the_whole_update_zero(tmp_path: Path) -> None:
    answer = layered(a=np.array([np.nan, 0.0]), b=np.array([1.0, 1.0, 1.0]))
    model = train(tmp_path, LAYERS, answer, LAYERED).models[1]
    np.testing.assert_allclose([*model["a"], *model["b"]], 0.0, atol=NOISE)


def test_every_layer_gets_the_noise_of_the_joint_norm(tmp_path: Path) -> None:
    plan = plan_of(4, clipping=PerLayerClipping(norms=NORMS), noise_multiplier=0.5)
    model = record(a=np.zeros(SIZE), b=np.zeros((SIZE // 10, 10)))
    trained = train(tmp_path, plan, answer_with_update([{}] * 4), model)
    for name in ("a", "b"):
        assert np.std(trained.models[1][name]) * 4 == pytest.approx(0.5 * 5.0, rel=0.03)


def test_a_plan_with_other_layers_than_the_model_is_refused_before_it_is_charged(
    tmp_path: Path,
) -> None:
    asked: list[Message] = []
    with pytest.raises(ValueError, match="clips 2 layers and the model has 3"):
        train(
            tmp_path,
            LAYERS,
            lambda message, _: asked.append(message),
            record(a=np.zeros(2), b=np.zeros(3), c=np.float32(0.0)),
        )
    assert not asked
    assert PrivacyLedger.read(tmp_path / "ledger.db").rounds_spent == 0
