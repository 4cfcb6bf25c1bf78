"""Who takes part: the laws of cohorts, and that nothing else is charged.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import a_draw
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from laws import ALARM, counts_p
from local_grid import FIRST_NODE, LocalGrid, answer_with_update
from trainings import able, plan_of

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import (
    FixedSizeSampling,
    PoissonGaussianEvent,
    PoissonSampling,
    PrivacyEvent,
    Sampling,
    TruncatedPoissonSampling,
    VisibleSampling,
)
from fl_dp.accounting.events import FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent, freeze
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.protocol.introduction import Ability
from fl_dp.strategies import (
    DPFedAvg,
    Draw,
    ExponentialSelection,
    LawSelection,
    PublicSelection,
    Selection,
    Unit,
)

DRAWS = 20_000
N = 6
Law = dict[frozenset[int], float]


def drawn(selection: Selection, draw: Draw, draws: int = DRAWS) -> Counter[frozenset[int]]:
    return Counter(frozenset(unit.node for unit in selection.select(draw)) for _ in range(draws))


def of_declared(present: int, declared: int) -> Draw:
    """A draw in which the first of the declared units are there."""
    return a_draw(declared, roster=[Unit(node) for node in range(present)])


def p_of(counts: Counter[frozenset[int]], law: Law) -> float:
    assert set(counts) <= set(law), "a cohort lies outside the law"
    cells = list(law)
    return counts_p(np.array([counts[cell] for cell in cells]), np.array([law[c] for c in cells]))


def cut_law(rate: float, places: int, cut: int, present: int) -> Law:
    """Coins for every place, a uniform part of at most `cut`, of which only units present answer.

    Enumerated over all coins and all parts.
    """
    law: Law = defaultdict(float)
    for coins in itertools.product((0, 1), repeat=places):
        heads = [place for place, coin in enumerate(coins) if coin]
        chance = rate ** len(heads) * (1 - rate) ** (places - len(heads))
        parts = list(itertools.combinations(heads, min(cut, len(heads))))
        for part in parts:
            law[frozenset(place for place in part if place < present)] += chance / len(parts)
    return dict(law)


def fixed_law(places: int, cohort: int, present: int) -> Law:
    law: Law = defaultdict(float)
    parts = list(itertools.combinations(range(places), cohort))
    for part in parts:
        law[frozenset(place for place in part if place < present)] += 1 / len(parts)
    return dict(law)


# --- Poisson --------------------------------------------------------------------------------------


def test_poisson_cohorts_are_independent_coins() -> None:
    counts = drawn(LawSelection(PoissonSampling(sampling_rate=0.3)), a_draw(N))
    assert p_of(counts, cut_law(0.3, N, N, N)) > ALARM
    for wrong in (0.27, 0.33):
        assert p_of(counts, cut_law(wrong, N, N, N)) < ALARM


# --- Truncated Poisson ----------------------------------------------------------------------------


@pytest.mark.parametrize("present", [N, 4])
def test_truncated_cohorts_are_a_uniform_part_of_the_coins(present: int) -> None:
    # So many that a rate that is 10 % off is seen in all but one in a million runs.
    counts = drawn(
        LawSelection(TruncatedPoissonSampling(sampling_rate=0.5, max_cohort=2)),
        of_declared(present, N),
        3 * DRAWS,
    )
    assert p_of(counts, cut_law(0.5, N, 2, present)) > ALARM
    for wrong in (0.45, 0.55):
        assert p_of(counts, cut_law(wrong, N, 2, present)) < ALARM


def test_units_that_are_not_there_keep_their_place_in_the_cut() -> None:
    counts = drawn(
        LawSelection(TruncatedPoissonSampling(sampling_rate=0.5, max_cohort=2)), of_declared(4, N)
    )
    assert p_of(counts, cut_law(0.5, 4, 2, 4)) < ALARM  # as if those who left had no coins


def test_a_comfortable_cut_is_four_and_a_half_roots_above_the_mean() -> None:
    made = TruncatedPoissonSampling.comfortable(0.05, 1000)
    assert made == TruncatedPoissonSampling(sampling_rate=0.05, max_cohort=82)
    few = TruncatedPoissonSampling.comfortable(0.5, 4)
    assert few.max_cohort == 4


# --- Fixed size -----------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [N, 4, 1])
def test_fixed_cohorts_are_uniform_parts_of_the_declared_units(present: int) -> None:
    counts = drawn(LawSelection(FixedSizeSampling(cohort=2)), of_declared(present, N))
    assert p_of(counts, fixed_law(N, 2, present)) > ALARM
    if present < N:  # nobody's chance rises when others leave
        alone = fixed_law(present, min(2, present), present)
        assert not set(counts) <= set(alone) or p_of(counts, alone) < ALARM


def test_a_lopsided_draw_would_be_noticed() -> None:
    def lopsided() -> frozenset[int]:
        # The first unit is one and a half times as likely as the others.
        chances = np.array([1.5, 1, 1, 1, 1, 1]) / 6.5
        return frozenset(rng.choice(N, 2, replace=False, p=chances).tolist())

    rng = np.random.default_rng(1)
    assert p_of(Counter(lopsided() for _ in range(DRAWS)), fixed_law(N, 2, N)) < ALARM


@pytest.mark.parametrize(
    "selection",
    [
        LawSelection(TruncatedPoissonSampling(sampling_rate=0.5, max_cohort=3)),
        LawSelection(FixedSizeSampling(cohort=3)),
    ],
)
def test_more_units_than_were_declared_take_no_part_and_change_no_chance(
    selection: Selection,
) -> None:
    first = selection.select(of_declared(N, N))
    for _ in range(200):
        cohort = selection.select(of_declared(N + 3, N))
        assert all(unit.node < N for unit in [*first, *cohort])


@pytest.mark.parametrize(
    "selection",
    [
        LawSelection(TruncatedPoissonSampling(sampling_rate=1.0, max_cohort=N)),
        LawSelection(FixedSizeSampling(cohort=N)),
    ],
)
def test_a_place_is_kept_for_who_left_and_comes_back(selection: Selection) -> None:
    everybody = [Unit(node) for node in range(N)]
    assert sorted(selection.select(a_draw(N, roster=everybody))) == everybody
    assert sorted(selection.select(a_draw(N, roster=everybody[2:]))) == everybody[2:]
    strangers = [*everybody[2:], Unit(77), Unit(78)]
    assert sorted(selection.select(a_draw(N, roster=strangers))) == everybody[2:]
    assert sorted(selection.select(a_draw(N, roster=everybody))) == everybody


# --- Public ---------------------------------------------------------------------------------------


def test_the_public_cohort_has_the_best_scores_best_first() -> None:
    scores = [0.5, -math.inf, 3.0, 2.0, math.nan, math.inf]
    selection = PublicSelection(VisibleSampling(cohort=4), score=lambda unit, _: scores[unit.node])
    assert [unit.node for unit in selection.select(a_draw(N))] == [5, 2, 3, 0]


def test_equal_scores_are_told_apart_at_random() -> None:
    tied = PublicSelection(VisibleSampling(cohort=2), score=lambda *_: 1.0)
    assert p_of(drawn(tied, a_draw(N)), fixed_law(N, 2, N)) > ALARM


def test_without_a_score_who_has_waited_longest_comes_first() -> None:
    selection = PublicSelection(VisibleSampling(cohort=2))
    rounds = [
        {unit.node for unit in selection.select(a_draw(N, server_round=now))} for now in range(1, 7)
    ]
    for start in (0, 3):
        assert set.union(*rounds[start : start + 3]) == set(range(N))
    assert rounds[:3] == rounds[3:]


def test_a_public_cohort_is_everybody_if_they_are_fewer() -> None:
    assert len(PublicSelection(VisibleSampling(cohort=9)).select(a_draw(N))) == N
    assert PublicSelection(VisibleSampling(cohort=9)).select(a_draw(0)) == []


# --- With a plan ----------------------------------------------------------------------------------


MULTIPLIER = 8.0  # with much noise privacy-loss distributions are short


def plan_for(sampling: Sampling, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(rounds=8, sampling=sampling, noise_multiplier=MULTIPLIER)
    return plan_of(N, **(fields | changes))


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(3))})


def nobody_moves(num_nodes: int = N) -> LocalGrid:
    answer = able(Ability.UTILITY)(answer_with_update([{}] * (num_nodes + 2)))
    return LocalGrid(answer, num_nodes)


class Asking(LawSelection):
    """Everybody by coins, after a question to the whole roster that is charged as a release."""

    event = GaussianEvent(noise_multiplier=2.0)

    def __init__(self) -> None:
        super().__init__(PoissonSampling(sampling_rate=1.0))
        self.answered: list[list[int]] = []

    def releases(self, rounds: int) -> dict[PrivacyEvent, int]:
        return {self.event: rounds}

    def select(self, draw: Draw) -> list[Unit]:
        asked = [
            Message(RecordDict({"arrays": draw.model}), unit.node, "query.ages")
            for unit in draw.roster
        ]
        with draw.charged(f"ages {draw.server_round}", self.event):
            replies = draw.ask(asked)
            self.answered.append([reply.metadata.src_node_id - FIRST_NODE for reply in replies])
        return super().select(draw)


SELECTIONS: dict[str, Callable[[], Selection]] = {
    "poisson": lambda: LawSelection(PoissonSampling(sampling_rate=0.5)),
    "truncated": lambda: LawSelection(TruncatedPoissonSampling(sampling_rate=0.5, max_cohort=4)),
    "fixed": lambda: LawSelection(FixedSizeSampling(cohort=3)),
    "public": lambda: PublicSelection(VisibleSampling(cohort=3)),
    "exponential": lambda: ExponentialSelection(VisibleSampling(cohort=3), epsilon=0.1),
    "asking": Asking,
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_is_refused_by_every_plan_that_charges_for_another(
    open_ledger: Any, name: str
) -> None:
    selection = SELECTIONS[name]()
    for other in SELECTIONS.values():
        sampling = other().sampling
        if sampling == selection.sampling:
            continue
        plan = plan_for(sampling, other_releases=_frozen(selection, 8))
        with pytest.raises(ValueError, match="the selection draws by"):
            DPFedAvg(plan=plan, ledger=open_ledger(plan), selection=selection)


def _frozen(selection: Selection, rounds: int) -> tuple[tuple[Any, int], ...]:
    return freeze(selection.releases(rounds))


EVENTS = {
    "poisson": PoissonGaussianEvent(noise_multiplier=MULTIPLIER, sampling_rate=0.5),
    "truncated": TruncatedPoissonGaussianEvent(
        noise_multiplier=MULTIPLIER, sampling_rate=0.5, num_units=N, max_cohort=4
    ),
    "fixed": FixedSizeGaussianEvent(noise_multiplier=MULTIPLIER, num_units=N, cohort=3),
    "public": GaussianEvent(noise_multiplier=MULTIPLIER),
    "exponential": GaussianEvent(noise_multiplier=MULTIPLIER),
    "asking": GaussianEvent(noise_multiplier=MULTIPLIER),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_every_round_is_charged_as_its_own_law(start: Any, name: str) -> None:
    selection = SELECTIONS[name]()
    plan = plan_for(selection.sampling, other_releases=_frozen(selection, 8))
    ledger = start(plan, nobody_moves(), model(), rounds=2, selection=selection).ledger
    assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 2)
    assert dict(ledger.history)[EVENTS[name]] == 2


@pytest.mark.parametrize("name", ["exponential", "asking"])
def test_releases_that_the_plan_does_not_declare_are_refused(open_ledger: Any, name: str) -> None:
    selection = SELECTIONS[name]()
    ((event, count),) = _frozen(selection, 60)
    full = plan_for(selection.sampling, rounds=60, other_releases=((event, count),))
    DPFedAvg(plan=full, ledger=open_ledger(full), selection=selection)
    short = ((event, count - 1),)
    other = ((replace(event, **_cheaper(event)), count),)
    for declared in ((), short, other):
        plan = replace(full, other_releases=declared)
        with pytest.raises(ValueError, match=f"the selection releases {count} times"):
            DPFedAvg(plan=plan, ledger=open_ledger(plan), selection=selection)


def _cheaper(event: Any) -> dict[str, float]:
    if isinstance(event, GaussianEvent):
        return {"noise_multiplier": 2.0 * event.noise_multiplier}
    return {"epsilon": event.epsilon / 2.0}


@pytest.mark.parametrize("name", ["truncated", "fixed"])
def test_when_nodes_leave_the_others_are_drawn_as_before(
    open_ledger: Any, start: Any, name: str
) -> None:
    selection = SELECTIONS[name]()
    plan = plan_for(selection.sampling)
    seen: list[Draw] = []
    select = selection.select

    def watched(draw: Draw) -> Sequence[Unit]:
        seen.append(draw)
        return select(draw)

    selection.select = watched  # type: ignore[method-assign]  # watched

    grid = nobody_moves()
    ledger = open_ledger(plan)

    def leave(*_: Any) -> None:
        grid.num_nodes -= 1

    start(plan, grid, model(), rounds=4, evaluate_fn=leave, ledger=ledger, selection=selection)
    assert [len(draw.roster) for draw in seen] == [5, 4, 3, 2]
    assert {draw.num_units for draw in seen} == {N}
    assert set(dict(ledger.history)) == {EVENTS[name]}


def test_poisson_rounds_go_on_when_nodes_join_or_leave(start: Any) -> None:
    plan = plan_for(PoissonSampling(sampling_rate=0.5))
    grid = nobody_moves()
    sizes = iter([N + 2, N - 4, 0, N, N])

    def change(*_: Any) -> None:
        grid.num_nodes = next(sizes)

    done = start(plan, grid, model(), rounds=4, evaluate_fn=change)
    assert done.strategy.rounds_completed == 4
    assert dict(done.ledger.history) == {EVENTS["poisson"]: 4}


def test_what_a_selection_asks_is_on_disk_before_anyone_hears_it(
    open_ledger: Any, start: Any
) -> None:
    selection = Asking()
    plan = plan_for(selection.sampling, rounds=2, other_releases=_frozen(selection, 2))
    ledger = open_ledger(plan)
    on_disk: list[int] = []
    train = answer_with_update([{}] * N)

    def answer(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type == "query.ages":
            with PrivacyLedger.read(ledger.location) as there:
                on_disk.append(there.other_releases_spent)
            return Message(RecordDict(), reply_to=message)
        return train(message, partition)

    start(plan, LocalGrid(answer, N), model(), rounds=2, ledger=ledger, selection=selection)
    assert selection.answered == [list(range(N))] * 2
    assert on_disk == [1] * N + [2] * N
    assert ledger.history == plan.history


# --- The names of units in the ledger -------------------------------------------------------------


def names_of(grid: LocalGrid, start: Any) -> dict[str, int]:
    """Run two rounds of everybody under a cap and return who took part how often."""
    plan = plan_for(VisibleSampling(cohort=N), participation_cap=2)
    counted: dict[str, int] = start(plan, grid, model(), rounds=2).ledger.participations
    return counted


def calling_themselves(names: dict[int, str]) -> LocalGrid:
    train = answer_with_update([{}] * N)

    def answer(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type == "train":
            return train(message, partition)
        told: dict[str, Any] = {"name": names[partition]} if partition in names else {}
        return Message(RecordDict({"identity": ConfigRecord(told)}), reply_to=message)

    return LocalGrid(answer, N, introduces=True)


def test_units_go_by_the_names_that_their_nodes_say(start: Any) -> None:
    grid = calling_themselves({0: "ward 7", 1: "ward 8", 2: "", 3: "a\nb", 4: "twin", 5: "twin"})
    ids = {f"node-{FIRST_NODE + node}": 2 for node in (2, 3)}  # the twins take no part
    assert names_of(grid, start) == {"ward 7": 2, "ward 8": 2} | ids


def test_a_name_that_is_another_node_s_id_is_not_taken(start: Any) -> None:
    grid = calling_themselves({0: f"node-{FIRST_NODE + 1}", 1: str(FIRST_NODE)})
    ids = {f"node-{FIRST_NODE + node}": 2 for node in range(N) if node != 1}
    assert names_of(grid, start) == {str(FIRST_NODE): 2} | ids


def test_poisson_coins_do_not_know_how_many_units_were_declared() -> None:
    for declared in (N - 3, N, 10 * N):
        counts = drawn(LawSelection(PoissonSampling(sampling_rate=0.3)), of_declared(N, declared))
        assert p_of(counts, cut_law(0.3, N, N, N)) > ALARM
