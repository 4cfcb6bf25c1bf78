"""Buffered releases: law, sensitivity, charges and order, whatever answers arrive when."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import calibrated_plan
from flwr.app import Array, ArrayRecord, Error, Message
from killed_servers import Deadly, Killed, Watched
from local_grid import FIRST_NODE, Answer, LocalGrid, answer_with_app, introducing, reply
from noise_covariance import covariance, covariance_p
from own_grids import LateAnswers, unequal_delays
from trainings import FixedClient, client_fn, plan_of

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonSampling, VisibleSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.clients import numpy_client_app
from fl_dp.mechanisms import AdaptiveClipping, SecureRandom
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.statement import privacy_statement
from fl_dp.strategies import (
    BufferedSelection,
    Checkpoint,
    DPFedAvg,
    DPFedBuff,
    PublicSelection,
)

ALARM = 1e-6
N = 8
SIZE = 10_000
ALONE = (4096,)  # bands of noise that is independent over releases
CLIP = 0.5
QUIET = 1e-5  # a noise multiplier whose noise is below what is looked at

Delays = Callable[[int], float]


def plan(size: int = 2, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(
        rounds=6,
        sampling=BufferedSampling(cohort=size),
        clipping=None,
        clipping_norm=CLIP,
    )
    fields |= changes
    if fields["clipping"] is not None:
        fields["clipping_norm"] = None
    return plan_of(fields.pop("clients", N), **fields)


def model(size: int = 2) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(size))})


def moving_by(update: Any, nodes: int = N) -> Answer:
    """Nodes that tell a lasting name and move by `update`, or by that of their place."""
    update_of = update if callable(update) else lambda _: update
    app = numpy_client_app(client_fn(lambda place: FixedClient(update_of(place))))
    return introducing(answer_with_app(app, nodes))


@dataclass
class Buffered:
    """What became of a training.

    Attributes:
        models: `w` of each, the first included.
        asked: Places of the nodes in the order of their asks.
    """

    strategy: DPFedBuff
    clock: LateAnswers
    asked: list[int]
    models: list[Any] = field(default_factory=list)

    @property
    def moves(self) -> list[Any]:
        return [b - a for a, b in zip(self.models, self.models[1:], strict=False)]


def train(
    folder: Path,
    promised: Plan,
    answer: Answer,
    first: ArrayRecord | None = None,
    *,
    delay: Delays = lambda _: 1.0,
    grid: LocalGrid | None = None,
    rng: SecureRandom | None = None,
    timeout: float = 30.0,
    rounds: int | None = None,
    **of_selection: Any,
) -> Buffered:
    sampling = promised.sampling
    assert isinstance(sampling, BufferedSampling)
    selection = BufferedSelection(sampling, **of_selection)
    grid = grid or LocalGrid(answer, promised.num_clients)
    clock = LateAnswers(grid, delay)
    with PrivacyLedger.open(folder / "ledger.db", promised, rng=rng) as ledger:
        strategy = DPFedBuff(plan=promised, ledger=ledger, selection=selection, rng=rng)
        done = Buffered(strategy, clock, [])
        strategy.start(
            clock,
            first or model(),
            num_rounds=rounds or promised.rounds,
            timeout=timeout,
            evaluate_fn=lambda _, arrays: done.models.append(arrays["w"].numpy()),
        )
    done.asked = [
        sent.metadata.dst_node_id - FIRST_NODE
        for sent in grid.sent
        if sent.metadata.message_type == "train"
    ]
    return done


# --- The law and the price ------------------------------------------------------------------------


def test_released_noise_has_the_law_that_the_plan_charges_for(tmp_path: Path) -> None:
    # False alarms below 1e-6 each; 10 % of sigma move the sum of squares by 15 of its deviations.
    promised = plan()
    done = train(
        tmp_path,
        promised,
        moving_by(np.zeros(SIZE)),
        model(SIZE),
        delay=unequal_delays(spread=1.0, seed=1),
    )
    # The denominator is the buffer's size, however many answers there were.
    noise = np.array(done.moves) * 2.0 / (promised.noise_multiplier * CLIP)
    designed = covariance(ALONE, range(promised.rounds))
    assert covariance_p(noise, designed) > ALARM
    for wrong in (0.9, 1.1):
        assert covariance_p(wrong * noise, designed) < ALARM


def test_a_plan_is_charged_as_so_many_gaussians_in_full() -> None:
    budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    promised = calibrated_plan(
        budget,
        rounds=50,
        num_clients=100,
        sampling=BufferedSampling(cohort=10),
        participation_cap=10,
        clipping_norm=1.0,
        contribution_check=False,
    )
    assert promised.noise_multiplier == pytest.approx(11.79729, rel=1e-3)  # ten of them, epsilon 1
    event = GaussianEvent(noise_multiplier=promised.noise_multiplier)
    assert dict(promised.history) == {event: 10}
    uncapped = plan(rounds=7)
    assert dict(uncapped.history) == {GaussianEvent(noise_multiplier=0.5): 7}


# --- Late answers ---------------------------------------------------------------------------------


def slow_first(place: int) -> float:
    return [3.0, 1.0, 1.1][place]


def three_units(tmp_path: Path, **options: Any) -> list[float]:
    """Releases of two answers each, of three units that move by .1, .2 and .3.

    Units 1 and 2 fill two releases, at times 1.1 and 2.2. Units 0 and 1 fill the third, and the
    model of unit 0 is that of time 0.
    """
    promised = plan(clients=3, rounds=4, noise_multiplier=QUIET)
    done = train(
        tmp_path,
        promised,
        moving_by(lambda place: np.array([0.1 * (place + 1), 0.0]), 3),
        delay=slow_first,
        concurrency=3,
        **options,
    )
    return [float(move[0]) for move in done.moves]


def test_a_late_answer_is_an_update_of_its_own_model_with_a_weight_for_its_age(
    tmp_path: Path,
) -> None:
    moves = three_units(tmp_path)
    late = 0.1 / np.sqrt(3.0)
    one_late = 0.3 / np.sqrt(2.0)  # unit 2 found the third buffer full
    assert moves[:3] == pytest.approx([0.25, 0.25, (late + 0.2) / 2], abs=1e-3)
    assert moves[3] == pytest.approx((one_late + 0.2) / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("max_staleness", "third"),
    [(10, 0.15), (1, 0.1)],
    ids=["without a power all weigh one", "one that is too old is zero and fills its place"],
)
def test_an_old_answer_counts_by_the_selection_s_rule(
    tmp_path: Path, max_staleness: int, third: float
) -> None:
    moves = three_units(tmp_path, staleness_power=0.0, max_staleness=max_staleness)
    assert moves[2:] == pytest.approx([third, 0.25], abs=1e-3)


def test_weights_fall_with_age_and_never_exceed_one() -> None:
    selection = BufferedSelection(BufferedSampling(cohort=2), max_staleness=3, staleness_power=0.5)
    weights = [selection.weight(age) for age in range(6)]
    assert weights == pytest.approx([1.0, 2**-0.5, 3**-0.5, 0.5, 0.0, 0.0])


def test_adaptive_clipping_takes_the_norm_of_the_release_that_an_answer_enters(
    tmp_path: Path,
) -> None:
    clipping = AdaptiveClipping(norm=0.05)
    promised = plan(rounds=6, clipping=clipping, noise_multiplier=0.01)
    done = train(tmp_path, promised, moving_by(1.0), delay=unequal_delays(spread=1.0, seed=3))
    assert done.strategy.clipping_norms[0] != 0.05
    # Two answers, each within its release's norm: their mean is, too.
    assert all(np.linalg.norm(move) < 0.25 for move in done.moves)


# --- Hostile answers ------------------------------------------------------------------------------

HOSTILE = {
    "huge": lambda message, sent: reply(message, {"w": sent + 1e9}),
    "not finite": lambda message, sent: reply(message, {"w": sent * np.nan}),
    "another shape": lambda message, sent: reply(message, {"w": np.ones(3)}),
    "no numbers": lambda message, sent: reply(message, {"w": np.array(7)}),
    "an error": lambda message, sent: Message(Error(code=2, reason="down"), reply_to=message),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_unit_moves_all_releases_by_no_more_than_it_is_charged_and_none_in_time(
    tmp_path: Path, kind: str
) -> None:
    # The same coins and noise twice, with unit 0 and without its contribution.
    cap = 3
    promised = plan(rounds=7, participation_cap=cap)
    honest, runs = moving_by(np.full(100, 0.001)), []
    for zero in (False, True):

        def answer(message: Message, partition: int, zero: bool = zero) -> Message | None:
            if partition != 0 or message.metadata.message_type != "train":
                return honest(message, partition)
            [arrays] = message.content.array_records.values()
            sent = arrays["w"].numpy()
            return reply(message, {"w": sent}) if zero else HOSTILE[kind](message, sent)

        folder = tmp_path / str(zero)
        folder.mkdir()
        runs.append(
            train(
                folder,
                promised,
                introducing(answer),
                model(100),
                rng=SecureRandom(insecure_seed=3),
                delay=unequal_delays(spread=0.5, seed=4),
            )
        )
    assert runs[0].asked == runs[1].asked  # what an answer holds never decides who is next
    assert runs[0].clock.now == runs[1].clock.now
    moved = (np.array(runs[0].moves) - np.array(runs[1].moves)) * 2.0
    # The models are float64: what is left of a round's exact sum is good to a relative 1e-9.
    assert np.square(moved).sum() <= cap * CLIP**2 * (1 + 1e-6)
    own = [t for t, each in enumerate(moved) if np.abs(each).max() > 1e-9]
    assert len(own) <= cap
    if kind == "huge":  # the test can see it
        assert own and np.square(moved).sum() > 0.2 * CLIP**2


class Confused(LocalGrid):
    """Hands each reply over twice, with one that nobody asked for."""

    def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().replies_to(message_ids))
        strays = [deepcopy(each) for each in replies[:1]]
        for stray in strays:
            stray.metadata.__dict__["_reply_to_message_id"] = "m-of-nobody"
        return [*replies, *deepcopy(replies), *strays]


def test_duplicates_and_strays_neither_count_nor_fill_a_place(tmp_path: Path) -> None:
    runs = []
    for kind in (LocalGrid, Confused):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        rng = SecureRandom(insecure_seed=5)
        answer = moving_by(lambda place: np.full(2, 0.01 * place))
        done = train(folder, plan(), answer, grid=kind(answer, N), rng=rng)
        runs.append(done)
    assert runs[0].asked == runs[1].asked
    assert np.array_equal(runs[0].models, runs[1].models)


def test_an_answer_from_another_node_than_the_asked_is_zero(tmp_path: Path) -> None:
    honest = moving_by(0.1)

    def answer(message: Message, partition: int) -> Message | None:
        answered = honest(message, partition)
        if answered is not None and message.metadata.message_type == "train":
            answered.metadata.__dict__["_src_node_id"] = FIRST_NODE + (partition + 1) % N
        return answered

    done = train(tmp_path, plan(noise_multiplier=QUIET), introducing(answer))
    assert len(done.moves) == 6 and np.abs(done.moves).max() < 1e-3


# --- Who is asked when ----------------------------------------------------------------------------


class Watching(LocalGrid):
    """Looks into the ledger whenever something is sent, and notes who is under way."""

    ledger: PrivacyLedger
    most: int = 0

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer, N, introduces=True)
        self.under_way: dict[str, int] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = list(super().push_messages(sent))
        for message, message_id in zip(sent, ids, strict=True):
            if message.metadata.message_type != "train":
                continue
            node = message.metadata.dst_node_id
            with PrivacyLedger.read(self.path) as ledger:  # on disk before it is sent
                assert f"partition-{node - FIRST_NODE}" in ledger.asked
            assert node not in self.under_way.values()  # one ask at a time
            self.under_way[message_id] = node
        self.most = max(self.most, len(self.under_way))
        return ids

    def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().replies_to(message_ids))
        for each in replies:
            self.under_way.pop(each.metadata.reply_to_message_id, None)
        return replies

    path: Path


def test_asks_are_on_disk_first_and_a_unit_waits_for_one_at_a_time(tmp_path: Path) -> None:
    grid = Watching(moving_by(0.1))
    grid.path = tmp_path / "ledger.db"
    done = train(
        tmp_path,
        plan(rounds=8),
        grid.answer,
        grid=grid,
        delay=unequal_delays(spread=1.5, seed=6),
        concurrency=5,
    )
    assert grid.most == 5 and set(done.asked) == set(range(N))


def test_contributions_are_on_disk_before_they_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl_dp.strategies import modes

    added = []
    plainly = modes.BufferedMode.fold_answer

    def fold_answer(self: Any, content: Any, unit: Any, **rest: Any) -> Any:
        with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
            name = f"partition-{unit.node - FIRST_NODE}"
            assert ledger.last_index[name] == ledger.next_index() - 1
        added.append(unit)
        return plainly(self, content, unit, **rest)

    monkeypatch.setattr(modes.BufferedMode, "fold_answer", fold_answer)
    train(tmp_path, plan(), moving_by(0.1))
    assert len(added) == 12


def test_the_one_who_has_waited_longest_is_asked_next(tmp_path: Path) -> None:
    done = train(tmp_path, plan(rounds=12, size=1), moving_by(0.0), concurrency=1)
    assert sorted(done.asked[:N]) == list(range(N))
    assert done.asked[N:12] == done.asked[: 12 - N]


def answering(first: int, last: int) -> LocalGrid:
    """Nodes that move by 0.1, of which these alone answer when they are asked to train."""
    honest = moving_by(0.1)

    def answer(message: Message, partition: int) -> Message | None:
        silent = not first <= partition <= last and message.metadata.message_type == "train"
        return None if silent else honest(message, partition)

    return LocalGrid(introducing(answer), N)


def test_silent_nodes_hold_up_no_release_as_long_as_others_answer(tmp_path: Path) -> None:
    promised = plan(noise_multiplier=QUIET)
    with PrivacyLedger.open(tmp_path / "ledger.db", promised) as ledger:
        selection = BufferedSelection(
            BufferedSampling(cohort=2), concurrency=6, staleness_power=0.0
        )
        strategy = DPFedBuff(plan=promised, ledger=ledger, selection=selection)
        result = strategy.start(answering(3, N), model(), num_rounds=6, timeout=30.0)
        assert result.arrays["w"].numpy() == pytest.approx(0.6, abs=1e-2)
        assert ledger.rounds_committed == 6


def test_a_buffer_that_is_not_filled_in_time_is_released_as_it_is(tmp_path: Path) -> None:
    promised = plan(rounds=2, noise_multiplier=QUIET)
    with PrivacyLedger.open(tmp_path / "ledger.db", promised) as ledger:
        selection = BufferedSelection(BufferedSampling(cohort=2), concurrency=N, max_staleness=0)
        strategy = DPFedBuff(plan=promised, ledger=ledger, selection=selection)
        result = strategy.start(answering(0, 0), model(), num_rounds=2, timeout=0.3)
        # One of two answered; in the second release the silent ones were given up: they fill it.
        assert 0.04 < result.arrays["w"].numpy()[0] < 0.11
        assert ledger.rounds_committed == 2


def test_a_training_ends_with_its_last_model_when_nobody_may_be_asked_any_more(
    tmp_path: Path,
) -> None:
    promised = plan(rounds=8, participation_cap=2)
    done = train(tmp_path, promised, moving_by(0.0))
    assert done.strategy.rounds_completed == 8  # 16 asks of 8 units
    folder = tmp_path / "lost"
    folder.mkdir()
    with PrivacyLedger.open(folder / "ledger.db", promised) as ledger:
        ledger.reserve(round=1)
        ledger.ask([f"partition-{place}" for place in range(N)])  # by a server that died
    done = train(folder, promised, moving_by(0.0))
    assert done.strategy.budget_exhausted and done.strategy.rounds_completed == 4


# --- Restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_random_kills_and_arrivals_keep_contributions_apart_and_capped(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl_dp.strategies import modes

    dice, cap = random.Random(seed), 6
    promised = plan(rounds=10, participation_cap=cap)
    drawn: list[int] = []
    added: dict[str, list[int]] = defaultdict(list)
    asks: dict[str, int] = {}
    saved: list[Checkpoint] = []
    checks = 0

    def dies() -> None:
        nonlocal checks
        checks += 1
        if dice.random() < 0.04 or checks == 6 + seed:
            raise Killed

    plainly = modes.BufferedMode.fold_answer
    order: list[int] = []

    def fold_answer(self: Any, content: Any, unit: Any, **rest: Any) -> Any:
        added[f"partition-{order[unit.node - FIRST_NODE]}"].append(self._charged.index)
        dies()
        return plainly(self, content, unit, **rest)

    monkeypatch.setattr(modes.BufferedMode, "fold_answer", fold_answer)
    inner = moving_by(np.zeros(2))
    ended, processes = False, 0
    while not ended and processes < 60:
        order[:] = random.Random(processes).sample(range(N), N)  # ids change, names last
        processes += 1

        def answer(message: Message, partition: int) -> Message | None:
            return inner(message, order[partition])

        with PrivacyLedger.open(tmp_path / "ledger.db", promised) as ledger:
            assert all(ledger.participations[name] >= count for name, count in asks.items())
            strategy = DPFedBuff(plan=promised, ledger=ledger, after_round=saved.append)
            strategy.loop.noise_stream = Watched(ALONE, drawn, dies)
            if saved:
                strategy.resume(saved[-1])
            try:
                clock = LateAnswers(
                    Deadly(answer, N, dies), unequal_delays(spread=1.0, seed=processes)
                )
                strategy.start(clock, model(), num_rounds=promised.rounds)
                ended = True
            except Killed:
                pass
            asks = ledger.participations
    assert ended and processes > 1 and added
    assert sorted(set(drawn)) == drawn  # no index twice
    assert max(asks.values()) <= cap
    for name, indices in added.items():
        assert len(indices) <= asks[name] and (np.diff(indices) >= 1).all()
    of_index: dict[int, int] = defaultdict(int)
    for indices in added.values():
        for index in indices:
            of_index[index] += 1
    assert max(of_index.values()) <= 2


# --- What does not hold ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (dict(participation_cap=1), "allow at least 2"),
        (dict(sampling=BufferedSampling(cohort=9)), "at most the roster's 8"),
    ],
)
def test_what_does_not_hold_is_refused_with_what_to_write(
    changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        plan(**changes)
    plan(participation_cap=3, rounds=6)


def test_a_buffer_needs_its_own_strategy_and_selection(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "a.db", plan()) as ledger:
        with pytest.raises(ValueError, match="use DPFedBuff, not DPFedAvg"):
            DPFedAvg(plan=plan(), ledger=ledger)

        class Foreign(PublicSelection):
            pass

        foreign = Foreign(BufferedSampling(cohort=2))
        with pytest.raises(TypeError, match="got Foreign"):
            DPFedBuff(plan=plan(), ledger=ledger, selection=foreign)
    visible = plan_of(N, sampling=VisibleSampling(cohort=2))
    with (
        PrivacyLedger.open(tmp_path / "b.db", visible) as ledger,
        pytest.raises(ValueError, match="or use DPFedAvg"),
    ):
        DPFedBuff(plan=visible, ledger=ledger)
    poisson = plan_of(N, sampling=PoissonSampling(sampling_rate=0.5))
    with (
        PrivacyLedger.open(tmp_path / "c.db", poisson) as ledger,
        pytest.raises(ValueError, match="only for a buffer"),
    ):
        ledger.ask(["a"])


def test_a_training_is_charged_what_its_plan_says_and_its_statement_says_what_is_seen(
    tmp_path: Path,
) -> None:
    promised = plan(rounds=7)
    train(tmp_path, promised, moving_by(0.1), delay=unequal_delays(spread=1.0, seed=2))
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == 7 and ledger.history == promised.history
        statement = privacy_statement(ledger)
    assert "2 clients that answer next" in statement.sampling
    assert "sees who took part" in statement.adversary
    assert any("when an answer arrives" in sentence for sentence in statement.not_covered)


@pytest.mark.parametrize(
    "wrong, match",
    [
        (dict(concurrency=1), "at least the buffer's 2"),
        (dict(concurrency=0), "concurrency"),
        (dict(max_staleness=-1), "must not be negative"),
        (dict(max_staleness=1.5), "max_staleness must be an integer"),
        (dict(staleness_power=-0.5), "must not weigh more"),
        (dict(staleness_power=float("nan")), "must be finite"),
    ],
)
def test_a_selection_refuses_numbers_out_of_range(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        BufferedSelection(BufferedSampling(cohort=2), **wrong)
