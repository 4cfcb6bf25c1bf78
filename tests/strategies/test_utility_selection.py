"""Choosing by utility: exact laws, and what is drawn is what was charged, before it was drawn.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trainings
from draws import a_draw
from flat_plans import calibrated_plan
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from hypothesis import given
from hypothesis import strategies as st
from laws import ALARM, counts_p, plackett_luce
from local_grid import FIRST_NODE, LocalGrid, answer_with_app, answer_with_update
from trainings import able

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    History,
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyEvent,
    VisibleSampling,
    freeze,
    tight_epsilon,
)
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.clients import numpy_client_app
from fl_dp.mechanisms import ExponentialMechanism, SecureRandom
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent
from fl_dp.protocol.introduction import Ability
from fl_dp.statement import privacy_statement
from fl_dp.strategies import (
    ExponentialSelection,
    Observation,
    Selection,
    Unit,
)

DRAWS = 20_000
ZERO_OUT = NeighboringRelation.ZERO_OUT


@pytest.fixture(autouse=True, scope="module")
def _a_run_s_identity() -> None:
    """Messages can be written only where Flower knows which run it is."""
    LocalGrid(answer_with_update([]), 0)


def told(selection: Selection, utilities: Iterable[float], server_round: int = 1) -> None:
    """Let every unit report a utility."""
    for node, utility in enumerate(utilities):
        selection.observe(seen(node, utility, server_round=server_round))


def seen(
    node: int, utility: float | None, *, norm: float = 1.0, server_round: int = 1
) -> Observation:
    return Observation(
        unit=Unit(node), server_round=server_round, update_norm=norm, utility=utility
    )


def nodes(units: Iterable[Unit]) -> tuple[int, ...]:
    return tuple(unit.node for unit in units)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return the utilities of every draw from now on."""
    vectors: list[np.ndarray] = []
    select_top = ExponentialMechanism.select_top

    def spy(self: ExponentialMechanism, utilities: Any, k: int, rng: SecureRandom) -> Any:
        vectors.append(np.array(utilities))
        return select_top(self, utilities, k, rng)

    monkeypatch.setattr(ExponentialMechanism, "select_top", spy)
    return vectors


# --- The exponential mechanism over clients: its law ----------------------------------------------

UTILITIES = (0.3, 4.9, 2.5, 1.0, 3.3)


def test_one_client_is_chosen_like_the_softmax() -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=1), epsilon=1.0, utility_high=5.0)
    told(selection, UTILITIES)
    draw = a_draw(5)
    counts = Counter(nodes(selection.select(draw))[0] for _ in range(DRAWS))
    # One unit moves its own utility by at most 2.5: exp(epsilon u / 2.5), no further half.
    observed = np.array([counts[node] for node in range(5)])
    for factor, right in ((1.0, True), (0.9, False), (1.1, False), (0.5, False)):
        law = plackett_luce(np.exp(factor * np.array(UTILITIES) / 2.5), 1)
        assert (counts_p(observed, np.array(list(law.values()))) > ALARM) is right


def test_two_of_five_are_chosen_one_after_the_other() -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=2), epsilon=1.0, utility_high=5.0)
    told(selection, UTILITIES)
    draw = a_draw(5)
    counts = Counter(nodes(selection.select(draw)) for _ in range(DRAWS))
    for factor, right in ((1.0, True), (0.9, False), (1.1, False)):
        law = plackett_luce(np.exp(factor * np.array(UTILITIES) / 2.5), 2)
        observed = np.array([counts[choice] for choice in law])
        assert (counts_p(observed, np.array(list(law.values()))) > ALARM) is right


RANGES = st.floats(1e-2, 1e3)


def ratios_of(selection: ExponentialSelection, first: Any, second: Any) -> np.ndarray:
    return selection.mechanism.log_probabilities(first) - selection.mechanism.log_probabilities(
        second
    )


ODD = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([1e308, -1e308]))


@given(RANGES, st.floats(0.01, 4.0), st.lists(ODD, min_size=2, max_size=6), st.data())
def test_whatever_a_unit_says_instead_of_nothing_the_log_ratios_keep_within_epsilon(
    utility_high: float, epsilon: float, reports: list[float], data: st.DataObject
) -> None:
    selection = ExponentialSelection(
        VisibleSampling(cohort=1), epsilon=epsilon, utility_high=utility_high
    )
    told(selection, reports)
    place = data.draw(st.integers(0, len(reports) - 1))
    both = []
    for _ in range(2):
        both.append([selection._utility_of(Unit(node), 2) for node in range(len(reports))])
        selection._observations.pop(Unit(place), None)  # zeroed out: it was never seen
    ratios = ratios_of(selection, *both)
    assert np.ptp(ratios) <= epsilon * (1 + 1e-6) + 1e-9
    assert np.abs(ratios).max() <= epsilon * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("utility_high", [5.0, 0.1])
@pytest.mark.parametrize("end", [0, 1])
def test_from_the_null_to_an_end_is_epsilon_and_from_end_to_end_twice_that(
    utility_high: float, end: int
) -> None:
    """The first is charged under zero-out neighbours, the second under replace-one."""
    selection = ExponentialSelection(
        VisibleSampling(cohort=1), epsilon=0.7, utility_high=utility_high
    )
    null, ends = selection.mechanism.null_utility, (0.0, utility_high)
    assert null == pytest.approx(utility_high / 2)
    others = [null] * 4
    zeroed = ratios_of(selection, [ends[end], *others], [null, *others])
    assert np.ptp(zeroed) == pytest.approx(0.7)
    replaced = ratios_of(selection, [ends[end], *others], [ends[1 - end], *others])
    assert np.ptp(replaced) == pytest.approx(1.4)


@pytest.mark.parametrize("records", [1, 7, 500])
def test_one_record_moves_the_mean_of_many_by_that_much_less(records: int) -> None:
    selection = ExponentialSelection(
        VisibleSampling(cohort=1), epsilon=0.7, utility_high=5.0, records_per_client=records
    )
    full, zeroed = np.full(records, 5.0), np.full(records, 5.0)
    zeroed[0] = selection.mechanism.null_utility
    others = [1.0, 4.0]
    ratios = ratios_of(selection, [full.mean(), *others], [zeroed.mean(), *others])
    assert np.ptp(ratios) == pytest.approx(0.7)
    assert selection.mechanism.rate == pytest.approx(records * 0.7 / 2.5)


def test_means_are_clipped_to_the_range_for_records_too(looked_at: list[np.ndarray]) -> None:
    selection = ExponentialSelection(
        VisibleSampling(cohort=1), epsilon=0.1, utility_high=5.0, records_per_client=10
    )
    told(selection, [-math.inf, 1e300, math.nan, 3.5])
    selection.select(a_draw(4))
    np.testing.assert_array_equal(looked_at[0], [0.0, 5.0, 2.5, 3.5])


@given(st.lists(st.floats(0, 5), min_size=4, max_size=4), st.floats(0, 5), st.integers(0, 3))
def test_a_cohort_of_two_has_at_most_two_ranges(
    utilities: list[float], other: float, place: int
) -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=2), epsilon=0.5, utility_high=5.0)
    assert selection.releases(1) == {ExponentialEvent(epsilon=0.5, draws=2, one_coordinate=True): 1}
    neighbour = list(utilities)
    neighbour[place] = selection.mechanism.null_utility
    rate = selection.mechanism.rate
    laws = [plackett_luce(np.exp(rate * np.array(scores)), 2) for scores in (utilities, neighbour)]
    ratios = [math.log(laws[0][choice] / laws[1][choice]) for choice in laws[0]]
    assert max(ratios) - min(ratios) <= 2 * 0.5 + 1e-9


# --- What it looks at -----------------------------------------------------------------------------


def test_utilities_are_bounded_and_who_was_not_seen_has_the_null(
    looked_at: list[np.ndarray],
) -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=2), epsilon=1.0, utility_high=5.0)
    told(selection, [math.nan, math.inf, -math.inf, 1e308, -7.0, 2.0])
    selection.observe(seen(6, None))
    selection.select(a_draw(8))
    np.testing.assert_array_equal(looked_at[0], [2.5, 5.0, 0.0, 5.0, 0.0, 2.0, 2.5, 2.5])


def test_the_norm_and_the_age_of_the_last_update_are_known_to_the_server(
    looked_at: list[np.ndarray],
) -> None:
    for utility, expected in (("update_norm", [0.5, 5.0, 2.5]), ("staleness", [4.0, 1.0, 2.5])):
        selection = ExponentialSelection(VisibleSampling(cohort=1), epsilon=1.0, utility=utility)
        assert selection.utility is None  # clients are asked for nothing
        selection.observe(seen(0, None, norm=0.5, server_round=3))
        selection.observe(seen(1, None, norm=math.inf, server_round=6))
        selection.select(a_draw(3, server_round=7))
        np.testing.assert_array_equal(looked_at[-1], expected)


def test_a_whole_roster_is_taken_if_it_is_no_larger_and_nobody_from_none() -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=4), epsilon=1.0)
    assert sorted(nodes(selection.select(a_draw(3)))) == [0, 1, 2]
    assert selection.select(a_draw(0)) == []


# --- In whole runs --------------------------------------------------------------------------------

N = 8


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(3))})


def plan_of(selection: Selection, *, rounds: int = 12, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(
        rounds=rounds,
        sampling=selection.sampling,
        noise_multiplier=1.0,
        other_releases=freeze(selection.releases(rounds)),
    )
    return trainings.plan_of(N, **(fields | changes))


def calibrated(selection: Selection, rounds: int, **changes: Any) -> Plan:
    """A plan whose budget ends with its rounds."""
    return calibrated_plan(
        PrivacyBudget(epsilon=8.0, delta=1e-3),
        rounds=rounds,
        num_clients=N,
        sampling=selection.sampling,
        clipping_norm=1.0,
        contribution_check=False,  # these updates are zero
        other_releases=selection.releases(rounds),
        **changes,
    )


def still() -> LocalGrid:
    """Nodes that move nothing and report nothing."""
    return LocalGrid(able(Ability.UTILITY)(answer_with_update([{}] * N)), N)


def reporting(metrics: Callable[[int], dict[str, float]]) -> LocalGrid:
    """Nodes that move nothing and report with their update what they were asked for."""

    class Told(NumPyClient):
        def __init__(self, partition: int) -> None:
            self.partition = partition

        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 10, metrics(self.partition)

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return metrics(self.partition)["loss"], 10, {}

    app = numpy_client_app(lambda context: Told(int(context.node_config["partition-id"])))
    return LocalGrid(answer_with_app(app, N), N, introduces=True)


def trained(grid: LocalGrid) -> list[int]:
    return [
        message.metadata.dst_node_id - FIRST_NODE
        for message in grid.sent
        if message.metadata.message_type == "train"
    ]


def test_draws_are_on_disk_before_they_are_made_and_committed_after(
    open_ledger: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=3), epsilon=0.2)
    plan = plan_of(selection)
    ledger = open_ledger(plan)
    on_disk: list[tuple[int, int, str]] = []
    drawn: list[PrivacyEvent] = []
    select_top = ExponentialMechanism.select_top

    def spy(self: ExponentialMechanism, utilities: Any, k: int, rng: SecureRandom) -> Any:
        with PrivacyLedger.read(ledger.location) as there:
            last = there.entries[-1]
            on_disk.append((there.other_releases_spent, there.rounds_spent, last.kind))
            drawn.append(self.event(draws=k))
            assert last.fields["epsilon"] == self.epsilon
        return select_top(self, utilities, k, rng)

    monkeypatch.setattr(ExponentialMechanism, "select_top", spy)
    start(plan, still(), model(), rounds=4, ledger=ledger, selection=selection)
    assert on_disk == [(1, 0, "reserve"), (2, 1, "reserve"), (3, 2, "reserve"), (4, 3, "reserve")]
    history = dict(ledger.history)
    assert history == {drawn[0]: 4, GaussianEvent(noise_multiplier=1.0): 4}
    assert set(drawn) == {ExponentialEvent(epsilon=0.2, draws=3, one_coordinate=True)}
    kinds = [entry.kind for entry in ledger.entries]
    assert kinds.count("reserve") == kinds.count("commit") == 8


def test_a_draw_that_fails_stays_spent(
    open_ledger: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no randomness left")

    selection = ExponentialSelection(VisibleSampling(cohort=3), epsilon=0.2)
    plan = plan_of(selection)
    ledger = open_ledger(plan)
    monkeypatch.setattr(ExponentialMechanism, "select_top", broken)
    with pytest.raises(RuntimeError, match="no randomness"):
        start(plan, still(), model(), rounds=1, ledger=ledger, selection=selection)
    assert (ledger.other_releases_spent, ledger.rounds_spent) == (1, 0)
    assert ledger.entries[-1].kind == "reserve"


def test_when_draws_no_longer_fit_training_ends_with_the_last_private_model(
    open_ledger: Any, start: Any
) -> None:
    selection = ExponentialSelection(VisibleSampling(cohort=3), epsilon=0.2)
    plan = calibrated(selection, 3)
    ledger = open_ledger(plan)
    (event,) = selection.releases(1)
    ledger.reserve_release("selection 1", event)  # a crash lost one draw
    done = start(plan, grid := still(), model(), ledger=ledger, selection=selection)
    assert (done.strategy.rounds_completed, done.strategy.budget_exhausted) == (2, True)
    assert len(trained(grid)) == 2 * 3
    assert done.result.arrays["w"].numpy().any()
    assert ledger.epsilon().best <= 8.0


def test_nobody_is_chosen_more_often_than_the_cap_and_the_run_ends_when_all_are_used_up(
    start: Any,
) -> None:
    law = VisibleSampling(cohort=3, participation_cap=2)
    selection = ExponentialSelection(law, epsilon=0.5, utility="loss")
    plan = calibrated(selection, 8)
    # One client whose loss stands out: chosen again and again, if it could be.
    grid = reporting(lambda node: {"loss": 1e9 if node == 5 else 0.0})
    done = start(plan, grid, model(), selection=selection)
    ledger = done.ledger
    assert Counter(trained(grid)) == dict.fromkeys(range(N), 2)
    assert done.strategy.budget_exhausted
    assert ledger.participations == {f"partition-{node}": 2 for node in range(N)}
    rounds = [entry.fields for entry in ledger.entries if "round" in entry.fields]
    per_round = [len(fields["participants"]) for fields in rounds if "participants" in fields]
    assert sum(per_round) == 2 * N
    assert max(per_round) == 3
    statement = privacy_statement(ledger).to_dict()
    assert all(math.isfinite(value) for value in statement["epsilon"].values())
    assert min(statement["epsilon"].values()) <= 8.0
    # One unit is charged for its two rounds, and for every draw that it could have been in.
    assert dict(ledger.history) == {
        GaussianEvent(noise_multiplier=plan.noise_multiplier): 2,
        ExponentialEvent(epsilon=0.5, draws=3, one_coordinate=True): ledger.other_releases_spent,
    }


@pytest.mark.parametrize("utility", ["loss", "records", "entropy"])
def test_clients_report_what_the_selection_looks_at(
    start: Any, utility: str, looked_at: list[np.ndarray]
) -> None:
    selection = ExponentialSelection(
        VisibleSampling(cohort=N), epsilon=0.1, utility=utility, utility_high=40.0
    )
    grid = reporting(lambda node: {"loss": 0.5 * node, "entropy": 2.0 * node, "secret": 7.0})
    start(plan_of(selection), grid, model(), rounds=2, selection=selection)
    np.testing.assert_array_equal(looked_at[0], np.full(N, 20.0))
    factor = {"loss": 0.5, "entropy": 2.0, "records": 0.0}[utility]
    constant = 10.0 if utility == "records" else 0.0
    np.testing.assert_array_equal(looked_at[1], constant + factor * np.arange(N))


# --- What selection costs the training ------------------------------------------------------------

DELTA = 1e-5


def around_eight(history: Callable[[float], History], noise: float) -> None:
    """The noise that spends (8, 1e-5) is `noise`, to the three digits that it is given with."""
    assert tight_epsilon(freeze(history(noise + 6e-4)), DELTA) < 8.0
    assert tight_epsilon(freeze(history(noise - 6e-4)), DELTA) > 8.0


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 0.696), (0.1, 0.936), (0.2, 1.444)])
def test_a_hundred_uniform_rounds(rate: float, noise: float) -> None:
    around_eight(
        lambda z: {PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate): 100}, noise
    )


def chosen(noise: float, epsilon: float | None) -> Any:
    draws: History = (
        []
        if epsilon is None
        else ExponentialSelection(VisibleSampling(cohort=10), epsilon=epsilon).releases(100)
    )
    rounds = VisibleSampling(cohort=10).event(noise, 1000)
    return freeze([(rounds, 10), *freeze(draws)])


@pytest.mark.parametrize(
    ("epsilon", "by_renyi", "ours"),
    [(None, 2.017, 1.898), (0.01, 2.027, 1.903), (0.03, 2.116, 1.945), (0.05, 2.335, 2.040)],
)
def test_ten_of_a_thousand_by_utility_need_twice_the_noise_of_a_secret_tenth(
    epsilon: float | None, by_renyi: float, ours: float
) -> None:
    """By single draws in Renyi DP, and by the smaller of that and all noisy scores at once."""
    single = [
        (replace(event, one_coordinate=False), count)
        if isinstance(event, ExponentialEvent)
        else (event, count)
        for event, count in chosen(by_renyi, epsilon)
    ]
    assert renyi_epsilon(freeze(single), DELTA, ZERO_OUT) == pytest.approx(8.0, abs=5e-3)
    assert tight_epsilon(chosen(by_renyi, epsilon), DELTA) < 8.0
    around_eight(lambda z: chosen(z, epsilon), ours)
    assert ours > 2.0 * 0.936 * 0.99


def test_an_update_that_is_not_finite_does_not_silence_the_report(start: Any) -> None:
    # One record can spoil a training; the report must move by no more than that record is worth.
    class Diverging(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.full_like(each, np.nan) for each in parameters], 9, {"loss": 4.5}

    selection = ExponentialSelection(VisibleSampling(cohort=N), epsilon=0.1)
    app = numpy_client_app(lambda _: Diverging())
    told_of: list[Observation] = []
    observe = selection.observe

    def watched(observation: Observation) -> None:
        told_of.append(observation)
        observe(observation)

    selection.observe = watched  # type: ignore[method-assign]  # watched

    grid = LocalGrid(answer_with_app(app, N), N)
    start(plan_of(selection), grid, model(), rounds=1, selection=selection)
    assert {seen.utility for seen in told_of} == {4.5}
    assert {seen.update_norm for seen in told_of} == {math.inf}
    assert len(told_of) == N
