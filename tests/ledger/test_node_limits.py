"""Two limits of a node's ledger: the owner's cap over all runs, and what one run asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_files import fresh_path
from made_events import gaussian
from numpy.typing import NDArray
from scipy.stats import norm

from fl_dp.accounting import (
    EpsilonBounds,
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    epsilon,
    tight_epsilon,
)
from fl_dp.accounting.events import FixedSizeGaussianEvent
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account, RunLimit, Spending
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent

DELTA = 1e-5
RELATION = NeighboringRelation.ZERO_OUT
CAP = PrivacyBudget(epsilon=40.0, delta=DELTA)
WARD = Account(unit="record", source="ward")
DP_SGD = PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1)


def limit(run: str, epsilon: float, delta: float = DELTA) -> RunLimit:
    return RunLimit(run=run, budget=PrivacyBudget(epsilon=epsilon, delta=delta))


def fitting(
    ledger: NodeLedger,
    event: PrivacyEvent,
    *,
    budget: PrivacyBudget | None = CAP,
    limit: RunLimit | None = None,
    most: int = 10_000,
) -> int:
    """Charge one release after the other, and count those that fit."""
    for number in range(most):
        try:
            ledger.charge(WARD, event, budget=budget, limit=limit, what=f"release {number}")
        except PrivacyBudgetExhausted:
            return number
    return most


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# What fits.


def test_after_one_run_others_fit_up_to_the_owner_s_cap(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        served = fitting(ledger, gaussian(8.0), limit=limit("run 1", 3.5))
        assert 0.98 * 3.5 < tight_epsilon({gaussian(8.0): served}, 0.9 * DELTA) <= 3.5
        for run, (epsilon, multiplier) in enumerate(((4.0, 6.0), (8.0, 4.0), (16.0, 3.0)), 2):
            event, before = gaussian(multiplier), ledger.spending(WARD).releases
            alone = fitting(ledger, event, limit=limit(f"run {run}", epsilon))
            # By its own limit each run gets what it would have had from a fresh ledger.
            assert tight_epsilon({event: alone}, 0.9 * DELTA) <= epsilon
            assert tight_epsilon({event: alone + 1}, 0.9 * DELTA) > epsilon
            assert ledger.spending(WARD).releases == before + Counter({event: alone})
        spent = ledger.spending(WARD)
        assert 20.0 < tight_epsilon(spent.releases, DELTA) <= spent.epsilon().best <= CAP.epsilon


# Measured on this code.
@pytest.mark.parametrize(
    ("cap", "least"), [(4.0, 0.7), (8.0, 0.75), (16.0, 0.8), (40.0, 0.8), (100.0, 0.8)]
)
def test_most_of_a_cap_is_there_for_runs_of_several_noises(
    path: Path, cap: float, least: float
) -> None:
    budget, sampled = PrivacyBudget(epsilon=cap, delta=DELTA), replace(DP_SGD, sampling_rate=0.02)
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, gaussian(40.0), budget=budget, what="run 1")
        for event, part in ((sampled, 0.5), (gaussian(20.0), 1.0)):
            spent = ledger.spending(WARD)
            most = spent.most(event, budget=budget, neighboring_relation=RELATION)
            with pytest.raises(PrivacyBudgetExhausted):
                ledger.charge(WARD, event, count=most + 1, budget=budget, what="too many")
            ledger.charge(WARD, event, count=int(part * most), budget=budget, what="a run")
        total = ledger.spending(WARD).releases
    assert least * cap < tight_epsilon(total, DELTA, interval=1e-3) <= cap


def test_a_run_s_own_limit_counts_that_run_alone_and_the_cap_all(path: Path) -> None:
    event = gaussian(4.0)
    with NodeLedger.open(path) as ledger:
        one = fitting(ledger, event, limit=limit("run 1", 2.0))
        assert one == fitting(ledger, event, limit=limit("run 2", 2.0)) > 0
        assert fitting(ledger, event, limit=limit("run 1", 2.0)) == 0
        assert fitting(ledger, event, limit=limit("run 3", 40.0)) > one  # up to the cap
        assert fitting(ledger, event, limit=limit("run 4", 40.0)) == 0
    with NodeLedger.open(path) as again:  # and after a restart
        assert fitting(again, event, limit=limit("run 2", 2.0)) == 0


def test_the_refusal_names_the_limit(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        with pytest.raises(
            PrivacyBudgetExhausted, match=r"epsilon 2 .*what run 1 asked for itself"
        ):
            ledger.charge(
                WARD, gaussian(0.5), budget=CAP, limit=limit("run 1", 2.0), what="round 1"
            )
        with pytest.raises(PrivacyBudgetExhausted, match=r"epsilon 40 .*the cap over all runs"):
            ledger.charge(
                WARD, gaussian(0.01), budget=CAP, limit=limit("run 1", 1e6), what="round 1"
            )


def test_without_a_cap_each_run_has_its_own_limit_and_what_is_quoted_holds_at_every_look(
    path: Path,
) -> None:
    event = gaussian(8.0)
    with NodeLedger.open(path) as ledger:
        one = fitting(ledger, event, budget=None, limit=limit("run 1", 2.0))
        spent = ledger.spending(WARD)
        assert spent.budget == PrivacyBudget(epsilon=2.0, delta=DELTA)
        assert spent.epsilon().best == pytest.approx(tight_epsilon({event: one}, DELTA))
        assert fitting(ledger, event, budget=None, limit=limit("run 2", 2.0)) == one
        spent = ledger.spending(WARD)
        assert spent.budget is None  # how many runs follow was fixed by nobody
        assert spent.epsilon().best > tight_epsilon({event: 2 * one}, DELTA)
        with pytest.raises(ValueError, match="a charge needs a limit"):
            ledger.charge(WARD, event, budget=None, what="for nobody")


def test_data_are_answered_for_by_noise_where_either_limit_is_spent_under_another_name(
    path: Path,
) -> None:
    event, own = gaussian(8.0), limit("run 1", 2.0)
    old = Account(unit="record", source="old ward")
    with NodeLedger.open(path) as ledger:
        count = fitting(ledger, event, limit=own)
        for account, released in ((WARD, True), (old, False)):
            # The name alone decides, and each has room; the data are one.
            if account is old:
                charge = ledger.charge_unread(account, event, budget=CAP, limit=own, what="round")
                assert ledger.name_data(charge, "print") is released
            else:
                named = ledger.charge_unread(
                    account, event, budget=CAP, limit=limit("run 2", 2.0), what="round"
                )
                assert ledger.name_data(named, "print") is released
        together = ledger.spending(Account(unit="record", source="new", fingerprint="print"))
        assert together.releases == Counter({event: count + 1})
        assert together.runs["run 1"].releases == Counter({event: count})


# What a server that asks for odd noise can't do.

FIRST: tuple[PrivacyEvent, ...] = (
    gaussian(8.0),
    PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.02),
    LaplaceEvent(noise_multiplier=30.0),
)
SMALL_CAP = PrivacyBudget(epsilon=4.0, delta=DELTA)


def quiet(event: PrivacyEvent) -> PrivacyEvent:
    """The same release with noise that costs about nothing."""
    assert isinstance(event, GaussianEvent | LaplaceEvent | PoissonGaussianEvent)
    return replace(event, noise_multiplier=1e6)


@pytest.mark.parametrize("event", FIRST)
@pytest.mark.parametrize("run", ["run 1", "run 2"])
def test_a_message_of_more_noise_takes_the_room_of_one_answer_at_most(
    path: Path, event: PrivacyEvent, run: str
) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, event, budget=SMALL_CAP, limit=limit("run 1", 4.0), what="round 1")
        alone = ledger.spending(WARD).most(event, budget=SMALL_CAP, neighboring_relation=RELATION)
        ledger.charge(
            WARD, quiet(event), budget=SMALL_CAP, limit=limit(run, 4.0), what="an odd message"
        )
        spent = ledger.spending(WARD)
        left = spent.most(event, budget=SMALL_CAP, neighboring_relation=RELATION)
        assert alone - 1 <= left <= alone
        # It is quoted as two answers, and never as less than what it was.
        assert spent.epsilon() == ledger_epsilon(event, 2)
        assert fitting(ledger, event, budget=SMALL_CAP, limit=limit("run 1", 4.0)) >= alone - 1
        total = ledger.spending(WARD)
    assert total.epsilon().best <= SMALL_CAP.epsilon
    assert tight_epsilon(total.releases, DELTA, interval=1e-3) <= SMALL_CAP.epsilon


def ledger_epsilon(event: PrivacyEvent, count: int) -> EpsilonBounds:
    return epsilon({event: count}, DELTA)


@pytest.mark.parametrize("event", FIRST[1:])
def test_a_message_of_less_noise_than_the_first_does_not_count_as_that(
    path: Path, event: PrivacyEvent
) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, quiet(event), budget=SMALL_CAP, what="an odd first message")
        most = ledger.spending(WARD).most(event, budget=SMALL_CAP, neighboring_relation=RELATION)
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, event, count=most + 1, budget=SMALL_CAP, what="too many")
    assert 0 < tight_epsilon({event: most}, DELTA, interval=1e-3) <= SMALL_CAP.epsilon


def test_gaussians_of_any_noise_and_order_fill_the_whole_cap(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, gaussian(1e6), budget=SMALL_CAP, what="an odd first message")
        for multiplier in (12.0, 5.0, 8.0):
            ledger.charge(WARD, gaussian(multiplier), count=3, budget=SMALL_CAP, what="a run")
        assert 0.0 < ledger.spending(WARD).room(SMALL_CAP) < SMALL_CAP.epsilon
        made = fitting(ledger, gaussian(20.0), budget=SMALL_CAP)
        spent = ledger.spending(WARD)
        room = spent.room(SMALL_CAP)
    releases = Counter(dict(spent.history))
    share = 0.9 * DELTA
    assert made > 0
    assert tight_epsilon(releases, share) <= SMALL_CAP.epsilon
    assert tight_epsilon(releases + Counter({gaussian(20.0): 1}), share) > SMALL_CAP.epsilon
    assert spent.epsilon().best == SMALL_CAP.epsilon  # what holds at every look
    assert room < tight_epsilon({gaussian(20.0): 1}, DELTA)


@pytest.mark.parametrize("budget", [SMALL_CAP, None])
def test_neighbours_further_apart_than_those_charged_before_are_refused(
    path: Path, budget: PrivacyBudget | None
) -> None:
    own, event = limit("run 1", 4.0), gaussian(8.0)
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, event, budget=budget, limit=own, what="round 1")
        with pytest.raises(PrivacyBudgetExhausted, match="replace-one would count those again"):
            ledger.charge(
                WARD,
                quiet(event),
                budget=budget,
                limit=own,
                what="round 2",
                neighboring_relation=NeighboringRelation.REPLACE_ONE,
            )
        assert ledger.spending(WARD).history == ((event, 1),)
        # Neighbours that are no further apart are served: they move a sum by no more.
        ledger.charge(
            WARD,
            event,
            budget=budget,
            limit=own,
            what="round 2",
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )


# What never happens.


KINDS: tuple[PrivacyEvent, ...] = (
    gaussian(3.0),
    gaussian(9.0),
    DP_SGD,
    PoissonGaussianEvent(noise_multiplier=0.7, sampling_rate=0.02),
    LaplaceEvent(noise_multiplier=6.0),
)


def of_dp_accounting(event: PrivacyEvent) -> dpa.DpEvent:
    match event:
        case GaussianEvent(noise_multiplier=multiplier):
            return dpa.GaussianDpEvent(multiplier)
        case PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=rate):
            return dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(multiplier))
        case LaplaceEvent(noise_multiplier=scale):
            return dpa.LaplaceDpEvent(scale)
    raise AssertionError(event)


def their_epsilon(releases: Counter[PrivacyEvent], delta: float) -> float:
    accountant = PLDAccountant(dpa.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3)
    for event, count in releases.items():
        accountant.compose(of_dp_accounting(event), count)
    return float(accountant.get_epsilon(delta))


@settings(max_examples=20, deadline=None)
@given(
    cap=st.sampled_from((1.0, 4.0, 12.0, 40.0)),
    script=st.lists(
        st.tuples(
            st.sampled_from(("run 1", "run 2", "run 3")),
            st.sampled_from(KINDS),
            st.integers(1, 400),
            st.sampled_from((0.5, 2.0, 8.0, 100.0)),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_no_history_exceeds_a_limit_by_dp_accounting_s_own_figure(
    cap: float, script: list[tuple[str, PrivacyEvent, int, float]]
) -> None:
    budget = PrivacyBudget(epsilon=cap, delta=DELTA)
    by_run: dict[str, Counter[PrivacyEvent]] = {}
    largest: dict[str, float] = {}
    with fresh_path() as path, NodeLedger.open(path) as ledger:
        for run, event, count, asked in script:
            try:
                ledger.charge(
                    WARD,
                    event,
                    count=count,
                    budget=budget,
                    limit=limit(run, asked),
                    what="release",
                )
            except PrivacyBudgetExhausted:
                continue
            by_run.setdefault(run, Counter())[event] += count
            largest[run] = max(largest.get(run, 0.0), asked)
        total = sum(by_run.values(), Counter())
        assert ledger.spending(WARD).releases == total
    # Their discretisation is as coarse as a thousandth.
    assert their_epsilon(total, DELTA) <= cap * 1.002
    for run, releases in by_run.items():
        assert their_epsilon(releases, DELTA) <= largest[run] * 1.002


# A server that chooses each noise after it has seen what came before. The privacy loss so far is
# all that matters of that; the best gain of all ways to go on and to stop, by backward induction.

_WIDTH, _BELOW, _REACH = 0.02, 1500, 400
_LOSSES = np.arange(-_BELOW, 2 * _BELOW) * _WIDTH
LOUD, RARE = gaussian(3.0), PoissonGaussianEvent(noise_multiplier=0.7, sampling_rate=0.1)
AT = PrivacyBudget(epsilon=4.0, delta=0.05)
_EDGES = (np.arange(-_REACH, _REACH + 2) - 0.5) * _WIDTH


def losses_of_gaussian(mu: float) -> NDArray[np.float64]:
    masses: NDArray[np.float64] = np.diff(norm.cdf(_EDGES, mu**2 / 2, mu))
    return masses


def losses_of_sampled(multiplier: float, rate: float) -> NDArray[np.float64]:
    x = np.linspace(-12 * multiplier, 1 + 12 * multiplier, 200_001)
    law = (1 - rate) * norm.pdf(x, 0, multiplier) + rate * norm.pdf(x, 1, multiplier)
    loss = np.log(1 - rate + rate * np.exp((2 * x - 1) / (2 * multiplier**2)))
    masses, _ = np.histogram(loss, bins=_EDGES, weights=law * (x[1] - x[0]))
    return masses


def best_gain(
    admits: Callable[[int, int], bool],
    epsilon: float,
    laws: tuple[NDArray[np.float64], NDArray[np.float64]],
    most: int = 30,
) -> float:
    """The largest sum over outcomes of P - e^epsilon Q, for who chooses among two noises."""
    stopping = 1.0 - np.exp(np.minimum(epsilon - _LOSSES, 0.0))
    best: dict[tuple[int, int], NDArray[np.float64]] = {}
    for total in range(2 * most, -1, -1):
        for loud in range(max(0, total - most), min(most, total) + 1):
            rare = total - loud
            if total and not admits(loud, rare):
                continue
            gain = stopping
            for law, after in zip(laws, ((loud + 1, rare), (loud, rare + 1)), strict=True):
                if after in best:
                    padded = np.pad(best[after], _REACH, mode="edge")
                    gain = np.maximum(gain, np.convolve(padded, law[::-1], mode="valid"))
            best[loud, rare] = gain
    return float(best[0, 0][_BELOW])


def test_a_server_that_chooses_noise_by_what_it_saw_gains_nothing() -> None:
    @cache
    def ours(loud: int, rare: int) -> bool:
        """Whether the ledger admits as many, the last one of whatever kind."""
        before = Spending(unit="record")
        first, count = (LOUD, loud) if loud else (RARE, rare)
        second = rare if loud else 0
        if second:
            before.releases[first] = count
            before.first_limit = AT
            before.neighboring_relations = {RELATION}
            first, count = RARE, second
        return not before.would_exceed(first, count=count, budget=AT, neighboring_relation=RELATION)

    def by_distributions(loud: int, rare: int) -> bool:
        return tight_epsilon({LOUD: loud, RARE: rare}, AT.delta, interval=1e-2) <= AT.epsilon

    laws = (
        losses_of_gaussian(1 / LOUD.noise_multiplier),
        losses_of_sampled(RARE.noise_multiplier, RARE.sampling_rate),
    )
    # The gate is in between, for each noise and for both.
    assert ours(2, 2) and ours(9, 0) and ours(0, 9) and not ours(9, 9)
    assert 0.3 * AT.delta < best_gain(ours, AT.epsilon, laws) <= AT.delta
    # The power: "go on while the privacy-loss distribution fits" is no filter, and is found out.
    assert best_gain(by_distributions, AT.epsilon, laws) > 1.15 * AT.delta


def test_a_server_that_chooses_among_gaussians_gains_nothing() -> None:
    quieter = gaussian(1.7 * LOUD.noise_multiplier)

    @cache
    def ours(loud: int, quiet: int) -> bool:
        before = Spending(unit="record")
        if loud and quiet:
            before.releases[LOUD], before.first_event, before.first_limit = loud, LOUD, AT
            before.neighboring_relations = {RELATION}
        event, count = (quieter, quiet) if quiet else (LOUD, loud)
        return not before.would_exceed(event, count=count, budget=AT, neighboring_relation=RELATION)

    @cache
    def looser(loud: int, quiet: int) -> bool:
        return tight_epsilon({LOUD: loud, quieter: quiet}, AT.delta) <= 1.1 * AT.epsilon

    laws = (
        losses_of_gaussian(1 / LOUD.noise_multiplier),
        losses_of_gaussian(1 / quieter.noise_multiplier),
    )
    assert 0.7 * AT.delta < best_gain(ours, AT.epsilon, laws) <= AT.delta
    # The power: a gate at a tenth more is found out.
    assert best_gain(looser, AT.epsilon, laws) > 1.1 * AT.delta


def test_a_limit_is_kept_under_each_relation_that_was_asked_for(tmp_path: Path) -> None:
    # A removed unit's place is taken by another: twice the clipping norm, for this sample alone.
    event = FixedSizeGaussianEvent(noise_multiplier=3.0, num_units=100, cohort=10)
    removed, replaced = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
    cap = PrivacyBudget(epsilon=8.0, delta=DELTA)
    with NodeLedger.open(tmp_path / "ledger.db") as ledger:
        made = 0
        with pytest.raises(PrivacyBudgetExhausted):
            for number in range(100):
                relation = removed if number else replaced
                name = f"release {number}"
                ledger.charge(WARD, event, budget=cap, what=name, neighboring_relation=relation)
                made += 1
        spent = ledger.spending(WARD)
    true = tight_epsilon({event: made}, DELTA, neighboring_relation=removed)
    assert made > 1
    assert true <= cap.epsilon
    assert spent.epsilon().best == pytest.approx(true, rel=1e-5)
    assert spent.room(cap) < 0.5 * cap.epsilon
