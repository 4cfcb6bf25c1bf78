"""Canaries in sums whose noise has memory in shares, by the code that nodes run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from remembering_nodes import RememberingNode, covariance_of_sums, share_of

from fl_dp.accounting import CyclicSampling, PoissonSampling, optimal_coefficients
from fl_dp.accounting.shared_noise import shared_noise_multiplier
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.noise_findings import NEW_COORDINATES, NEW_NOISE, SIZE_OF_NOISE
from fl_dp.lab.audit.whole_run import WHOLE_RUN
from fl_dp.lab.games.played_sums import play_sums, report_of_sums, shares_of, turns_of
from fl_dp.lab.games.seen_run import Audited, claims_of
from fl_dp.mechanisms.banded_share import CarriedNoise
from fl_dp.mechanisms.banded_stream import column_norm
from fl_dp.plan import Banded, PrivacyPlan, SecureSum
from fl_dp.plan.shared_bundle import SharedBundle

ROUNDS, TURNS, NODES, HONEST = 40, 8, 5, 4
SCALE, Z = 40.0, 1.5
COEFFICIENTS = optimal_coefficients(ROUNDS, TURNS, momentum=0.9)
COLUMN = np.array(COEFFICIENTS) / 4096.0
TURN = range(3, ROUNDS, TURNS)  # the canaries' own: five, and the last block ends with the run
TRIALS = 20_000

Floats = NDArray[np.float64]
Sign = Callable[[int, list[Floats]], Floats]


def norm_in_steps() -> float:
    """The norm of a canary for which four shares of noise are multiplier 1.5."""
    total = float(COLUMN.sum())
    return shared_noise_multiplier(SCALE, column_norm(COEFFICIENTS), HONEST, total) / Z


@dataclass(kw_only=True)
class Federation:
    """Nodes, of which one at random is late in each sum, and mostly told so.

    Attributes:
        size: Coordinates; each is a trial of its own, as noise is fresh in each.
        count: Nodes; the charge is for four.
        late: Whether any is late: else all are in each sum.
        lies: Whether nodes are told to forget what was in a sum.
        sums: That were opened.
    """

    size: int
    count: int = NODES
    late: bool = True
    lies: bool = False
    sums: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        share = share_of(COEFFICIENTS, size=self.size, noise_scale=SCALE)
        self.nodes = [RememberingNode(share) for _ in range(self.count)]
        self.random = np.random.default_rng(7)
        self.opened: dict[int, frozenset[int]] = {}

    def run(self, values: Callable[[int, list[Floats]], Floats]) -> None:
        """Open all sums; values are those of the first node, which is never late."""
        for index in range(ROUNDS):
            given = [values(index, self.sums), *[np.zeros(self.size)] * (self.count - 1)]
            sent = [
                node.answer(index, value) for node, value in zip(self.nodes, given, strict=True)
            ]
            late = int(self.random.integers(1, self.count)) if self.late else self.count
            self.opened[index] = frozenset(range(self.count)) - {late}
            self.sums.append(
                np.sum([sent[node] for node in self.opened[index]], axis=0, dtype=float)
            )
            if self.late and self.random.random() < 0.8:
                self.nodes[late].memory.forget([index])
            if self.lies and self.random.random() < 0.2:
                self.nodes[int(self.random.integers(self.count))].memory.forget([index - 1])


def seen_mu(
    visits: tuple[int, ...], *, best: bool = False, adaptive: bool = False, **given: Any
) -> tuple[float, float]:
    """How far apart canaries in some indices are from none, by one threshold, and its error."""
    there, norm = np.arange(TRIALS) % 2 == 0, norm_in_steps()
    signs = np.ones((ROUNDS, TRIALS))

    def values(index: int, sums: list[Floats]) -> Floats:
        if adaptive and sums:
            signs[index] = np.where(sums[-1] > 0.0, 1.0, -1.0)
        given: Floats = signs[index] * there * (norm if index in visits else 0.0)
        return given

    federation = Federation(size=TRIALS, **given)
    federation.run(values)
    seen = np.array(federation.sums)
    if best:  # by the covariance of the sums, which everybody can compute who knows what was told
        logs = [node.log for node in federation.nodes]
        weights = np.linalg.inv(covariance_of_sums(logs, federation.opened))
    else:  # the matched filter on C Y, as if nobody had ever been late
        matrix = sum(w * np.eye(ROUNDS, k=-back) for back, w in enumerate(COLUMN))
        weights = matrix.T @ matrix
    shift = np.zeros((ROUNDS, TRIALS))
    shift[list(visits)] = signs[list(visits)]
    score: Floats = (shift * (weights @ seen)).sum(axis=0)
    return apart(score[there], score[~there])


def apart(present: Floats, absent: Floats) -> tuple[float, float]:
    """Return mu of the two error rates at the threshold between the means, and its error."""
    middle, normal = (present.mean() + absent.mean()) / 2, NormalDist()
    mu, variance = 0.0, 0.0
    for side, sign in ((present, 1.0), (absent, -1.0)):
        share = float((side > middle).mean())
        quantile = normal.inv_cdf(share)
        mu += sign * quantile
        variance += share * (1.0 - share) / len(side) / normal.pdf(quantile) ** 2
    return mu, math.sqrt(variance)


CHARGED = math.sqrt(len(TURN)) / Z


# No more nodes than the charge counts, and none late: then it is all that there is.
TIGHT: dict[str, Any] = {"count": HONEST, "late": False}


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_canary_in_its_turns_is_seen_as_what_is_charged(adaptive: bool) -> None:
    # Adaptive: its sign is that of the last sum.
    mu, error = seen_mu(tuple(TURN), adaptive=adaptive, **TIGHT)
    assert mu == pytest.approx(CHARGED, abs=4.0 * error)


@pytest.mark.slow
@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("best", [False, True])
def test_whoever_is_late_and_whatever_is_told_shows_no_more(
    best: bool, adaptive: bool, lies: bool
) -> None:
    mu, error = seen_mu(tuple(TURN), best=best, adaptive=adaptive, lies=lies)
    # What a late share left in memory hides canaries, too.
    assert 0.3 * CHARGED < mu <= CHARGED + 3.0 * error


@pytest.mark.slow
@pytest.mark.parametrize("best", [False, True])
def test_one_visit_twice_is_convicted(best: bool) -> None:
    # The batch of a "failed" index again at the next.
    mu, error = seen_mu((*TURN, TURN[2] + 1), best=best, **TIGHT)
    assert mu > CHARGED + 3.0 * error


def plan_of(**given: Any) -> PrivacyPlan:
    options: dict[str, Any] = {
        "noise_multiplier": Z,
        "rounds": ROUNDS,
        "num_clients": 400,
        "units_per_node": 400 // NODES,
        "coins_at_nodes": True,
        "clipping_norm": 1.0,
        "secure_sum": SecureSum(reply_after=30.0),
        "contribution_check": False,
    }
    return PrivacyPlan.from_noise_multiplier(delta=1e-5, **options | given)


PLAN = plan_of(
    sampling=CyclicSampling(groups=TURNS, inside=PoissonSampling(sampling_rate=1.0)),
    correlation=Banded(coefficients=COEFFICIENTS),
)
CANARIES = Canaries(count=1000, size=4_000, seed=0)


def violated(
    plan: PrivacyPlan = PLAN, *, less: float = 1.0, asked: NDArray[np.bool_] | None = None
) -> set[str]:
    """What `fl-dp audit` says of sums of the nodes that the plan counts on.

    Args:
        less: Noise of each share over that which is charged.
        asked: Canaries in each sum; those whose turn it is by default.
    """
    assert shares_of(plan).honest_shares == HONEST
    shares = [plan.shared_bundle(each, size=CANARIES.size) for each in plan.noise_multipliers]
    shares = [
        replace(each, share=replace(each.share, noise_scale=less * each.noise_scale))
        for each in shares
    ]
    turns = turns_of(plan, CANARIES.count)
    audited = Audited(
        seen=play_sums(plan, shares, CANARIES, turns if asked is None else asked),
        canaries=CANARIES,
        sampling=plan.sampling,
        claims=claims_of(plan, plan.history, plan.epsilon().best),
        delta=plan.budget.delta,
    )
    return {each.name for each in audited.findings(alpha=1e-6) if not each.stands}


INDEPENDENT = [plan_of(sampling_rate=rate) for rate in (0.25, 1.0)]


@pytest.mark.parametrize("plan", [PLAN, *INDEPENDENT], ids=["turns", "coins", "all"])
def test_the_audit_of_sums_convicts_nine_tenths_of_the_noise(plan: PrivacyPlan) -> None:
    assert violated(plan) == set()
    assert violated(plan, less=0.9) == {SIZE_OF_NOISE}
    assert violated(plan, less=0.4) == {SIZE_OF_NOISE, WHOLE_RUN}


def test_the_audit_of_sums_convicts_units_that_come_too_often() -> None:
    often = np.arange(ROUNDS)[:, None] % 2 == np.arange(CANARIES.count) % 2
    assert violated(asked=often) == {WHOLE_RUN}


def test_the_audit_of_sums_convicts_nodes_that_remember_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def forgotten(memory: CarriedNoise, *_: Any) -> Iterator[np.ndarray[Any, Any]]:
        yield np.empty(memory.rows.shape[1])

    monkeypatch.setattr(CarriedNoise, "remembering", forgotten)
    assert {NEW_NOISE, NEW_COORDINATES} <= violated()


def test_more_canaries_than_a_node_can_send_are_refused() -> None:
    (small,) = (PLAN.shared_bundle(Z, size=64),)
    first = small.segments[0]
    cut = replace(small.share, segments=(replace(first, cap=0.1 * first.scale),))
    canaries = Canaries(count=32, size=64, seed=0)
    with pytest.raises(ValueError, match="have fewer --canaries"):
        play_sums(PLAN, [replace(small, share=cut)], canaries, turns_of(PLAN, 32)[:1])


def narrow(size: int, **given: Any) -> tuple[PrivacyPlan, SharedBundle]:
    """A plan whose words of 8 bits rotate and cut sums, and what a node adds to one."""
    plan = plan_of(
        sampling_rate=1.0, secure_sum=SecureSum(reply_after=30.0, bits=8), rounds=1, **given
    )
    shared = plan.shared_bundle(plan.noise_multipliers[0], size=size)
    assert shared.share.rotated
    return plan, shared


@pytest.mark.parametrize(("seed", "cut"), [(168, True), (0, False)])
def test_canaries_are_refused_where_their_rotated_sum_is_cut(seed: int, cut: bool) -> None:
    # Before it is rotated, the first is short enough and the second too long.
    plan, shared = narrow(650, noise_multiplier=0.2)
    canaries = Canaries(count=201, size=650, seed=seed)
    refused = pytest.raises(ValueError, match="1 times: have fewer --canaries")
    with refused if cut else nullcontext():
        play_sums(plan, [shared], canaries, turns_of(plan, canaries.count))


def test_as_many_canaries_as_fit_are_not_cut_where_sums_are_rotated() -> None:
    # As many as would fit if they were not rotated are cut for some of their directions.
    plan, _ = narrow(100, noise_multiplier=0.6, units_per_node=40)
    report_of_sums(plan, "digits", size=100, alpha=1e-6, seed=26)
    with pytest.raises(ValueError, match="have fewer --canaries"):
        report_of_sums(plan, "digits", size=100, alpha=1e-6, seed=26, count=45)


def test_where_no_canary_fits_it_is_said_which_setting_cuts() -> None:
    plan = plan_of(sampling_rate=1.0, secure_sum=SecureSum(element_cap=0.005))
    with pytest.raises(ValueError, match=r"no canary fits.*leave privacy\.secure_sum\.element_cap"):
        report_of_sums(plan, "digits", size=64, alpha=1e-6)
