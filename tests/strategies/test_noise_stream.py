"""A training's noise comes from one stream; a stream with memory goes through a whole training."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from charged_rounds import charged_round
from fl_dp.strategies.modes import CentralMode
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import LocalGrid, answer_with_update
from noise_covariance import covariance, covariance_p
from numpy.typing import NDArray
from trainings import plan_of, record

from fl_dp import Plan, PrivacyLedger
from fl_dp.mechanisms import (
    BandedStream,
    NoiseStream,
    SecureRandom,
    WhiteStream,
    noise_stream,
)
from fl_dp.mechanisms.grid import IntegerLaw
from fl_dp.strategies import Checkpoint, DPFedAvg, Unit
from fl_dp.updates import VectorLayout

ALARM = 1e-6
BANDED = (4096, 2048, 1024)
N = 3
SIZE = 10_000
PLAN = plan_of(N, rounds=6)


@pytest.fixture(params=["at the release", "while replies are awaited"])
def _when(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise comes out the same, whenever it is drawn."""
    if request.param == "while replies are awaited":
        monkeypatch.setattr(noise_stream, "_WORTH_A_THREAD", 1)


either_way = pytest.mark.usefixtures("_when")


def nobody_moves(size: int = SIZE) -> LocalGrid:
    return LocalGrid(answer_with_update([{"w": np.zeros(size)} for _ in range(N)]), N)


def nobody(messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """What a mode can ask with: silence."""
    return iter(())


def memory_of(stream: BandedStream) -> np.ndarray:
    """The secret itself, not a copy: empty before the first draw."""
    return np.zeros((0, 1)) if stream._memory is None else stream._memory


def model(size: int = SIZE) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(size))})


def noise_of(models: list[np.ndarray], plan: Plan = PLAN) -> np.ndarray:
    """The rounds' noise where nobody moves, in standard deviations of the fresh one."""
    std = plan.bundle(plan.noise_multiplier).updates.noise_std
    return np.diff(models, axis=0) * plan.denominator / std


def trained(
    ledger: PrivacyLedger,
    stream: NoiseStream | None,
    *,
    rounds: int = PLAN.rounds,
    checkpoint: Checkpoint | None = None,
    rng: SecureRandom | None = None,
) -> tuple[DPFedAvg, list[np.ndarray]]:
    """Train, from a checkpoint if there is one, and return each model that was looked at."""
    models = [] if checkpoint is None else [checkpoint.model["w"].numpy()]
    strategy = DPFedAvg(plan=ledger.plan, ledger=ledger, rng=rng)
    if stream is not None:
        strategy.loop.noise_stream = stream
    if checkpoint is not None:
        strategy.resume(checkpoint)
    strategy.start(
        nobody_moves(),
        model(),
        num_rounds=rounds,
        evaluate_fn=lambda _, arrays: models.append(arrays["w"].numpy()),
    )
    return strategy, models


def a_round(strategy: DPFedAvg, number: int, arrays: ArrayRecord) -> ArrayRecord:
    """Play one round by hand in which nobody answers."""
    list(strategy.loop.open(number, arrays, ConfigRecord(), nobody_moves()))
    released, _ = strategy.loop.release(number, [])
    assert released is not None
    return released


# --- Today's noise --------------------------------------------------------------------------------


@either_way
def test_a_training_has_white_noise_unless_it_is_given_another_stream(open_ledger: Any) -> None:
    strategy, models = trained(open_ledger(PLAN), None)
    assert type(strategy.loop.noise_stream) is WhiteStream
    assert strategy.loop.noise_stream.index == PLAN.rounds - 1
    assert covariance_p(noise_of(models), np.eye(PLAN.rounds)) > ALARM
    assert covariance_p(noise_of(models), covariance(BANDED, range(PLAN.rounds))) < ALARM


@either_way
@pytest.mark.parametrize("make", [WhiteStream, lambda: BandedStream(BANDED)])
def test_fresh_noise_may_be_drawn_elsewhere_and_noise_with_memory_may_not(
    open_ledger: Any, make: Callable[[], NoiseStream]
) -> None:
    asked: list[int] = []

    def sample(law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        asked.append(size)
        return law.sample(size, rng)

    strategy = DPFedAvg(plan=PLAN, ledger=open_ledger(PLAN))
    strategy.loop.noise_stream = make()
    strategy.loop.sample_by(sample)
    strategy.start(nobody_moves(), model(), num_rounds=2)
    assert asked == ([SIZE] * 2 if make is WhiteStream else [])


@either_way
def test_one_band_trains_the_same_models_bit_for_bit(tmp_path: Path) -> None:
    runs = []
    for name, stream in (("white", None), ("one band", BandedStream((4096,)))):
        rng = SecureRandom(insecure_seed=11)
        with PrivacyLedger.open(tmp_path / f"{name}.db", PLAN, rng=rng) as ledger:
            runs.append(trained(ledger, stream, rng=rng)[1])
    white, one_band = runs
    assert np.array_equal(white, one_band)


def test_a_round_draws_its_scalars_noise_first_and_then_the_updates() -> None:
    # Seeded runs of earlier versions come out the same: this is the order of their draws.
    plan = plan_of(N, contribution_check=True)
    rng, again = (SecureRandom(insecure_seed=2) for _ in range(2))
    layout = VectorLayout.of(record(w=np.zeros(5)))
    opened = CentralMode(plan, charged_round(layout, noise_multiplier=0.5))
    opened.fold(RecordDict({"arrays": record(w=np.zeros(5))}), [Unit(0)], server_round=1)
    released = opened.release(rng, nobody)
    bundle = plan.bundle(0.5)
    [count] = bundle.scalar_mechanisms
    assert released.contributions == count.grid * count.law.sample(1, again)[0]
    noise = bundle.updates.law.sample(5, again) * bundle.updates.grid
    assert (released.mean == noise / plan.denominator).all()


@either_way
def test_a_sum_is_released_once() -> None:
    # Twice the same sum with fresh noise would halve the noise, and be charged once.
    layout = VectorLayout.of(record(w=np.zeros(5)))
    opened = CentralMode(PLAN, charged_round(layout, noise_multiplier=0.5))
    opened.release(SecureRandom(), nobody)
    with pytest.raises(ValueError, match="a release gets its noise once"):
        opened.release(SecureRandom(), nobody)


# --- Noise with memory ----------------------------------------------------------------------------


@either_way
def test_noise_with_memory_reaches_the_models_as_designed(open_ledger: Any) -> None:
    _, models = trained(open_ledger(PLAN), BandedStream(BANDED))
    noise = noise_of(models)
    assert covariance_p(noise, covariance(BANDED, range(PLAN.rounds))) > ALARM
    assert covariance_p(noise, np.eye(PLAN.rounds)) < ALARM


CUT = [0, 1, 2, 13, 14, 15]  # three rounds, and three that do not follow on them


@pytest.mark.parametrize("same_stream", [False, True], ids=["new process", "same object"])
def test_a_restart_begins_a_new_stream(open_ledger: Any, same_stream: bool) -> None:
    ledger, stream = open_ledger(PLAN), BandedStream(BANDED)
    first, before = trained(ledger, stream, rounds=3)
    assert stream.remembered == 0  # forgotten when training ends
    second = stream if same_stream else BandedStream(BANDED)
    _, after = trained(ledger, second, checkpoint=first.checkpoint())
    noise = noise_of([*before, *after[1:]])
    assert covariance_p(noise, covariance(BANDED, CUT)) > ALARM
    assert covariance_p(noise, covariance(BANDED, range(6))) < ALARM


@either_way
def test_a_start_does_not_go_on_with_rounds_that_were_played_by_hand(open_ledger: Any) -> None:
    # It begins with another model, which holds none of the noise that would be taken away.
    strategy, models = DPFedAvg(plan=PLAN, ledger=open_ledger(PLAN)), [np.zeros(SIZE)]
    strategy.loop.noise_stream = BandedStream(BANDED)
    models.append(a_round(strategy, 1, model())["w"].numpy())
    strategy.start(
        nobody_moves(),
        ArrayRecord({"w": Array(models[-1])}),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(arrays["w"].numpy()),
    )
    noise = noise_of([models[0], *models[2:]])
    assert covariance_p(noise, covariance(BANDED, [0, 11, 12])) > ALARM
    assert covariance_p(noise, covariance(BANDED, range(3))) < ALARM


def fails(strategy: DPFedAvg, arrays: ArrayRecord) -> None:
    list(strategy.loop.open(3, arrays, ConfigRecord(), nobody_moves()))


def belongs_to_another(strategy: DPFedAvg, arrays: ArrayRecord) -> None:
    assert strategy.ledger is not None
    with PrivacyLedger.open(strategy.ledger.location, PLAN) as other:
        other.reserve(round=3)


@either_way
@pytest.mark.parametrize("third", [fails, belongs_to_another])
def test_noise_is_not_carried_over_an_index_that_was_not_released_here(
    open_ledger: Any, third: Callable[[DPFedAvg, ArrayRecord], None]
) -> None:
    strategy = DPFedAvg(plan=PLAN, ledger=open_ledger(PLAN))
    strategy.loop.noise_stream = BandedStream(BANDED)
    arrays = [model()]
    for number in (1, 2):
        arrays.append(a_round(strategy, number, arrays[-1]))
    third(strategy, arrays[-1])
    for number in (3, 4):
        arrays.append(a_round(strategy, number, arrays[-1]))
    noise = noise_of([each["w"].numpy() for each in arrays])
    assert strategy.loop.noise_stream.index == 4
    assert covariance_p(noise, covariance(BANDED, [0, 1, 3, 4])) > ALARM
    assert covariance_p(noise, covariance(BANDED, range(4))) < ALARM


# --- Drawn ahead ----------------------------------------------------------------------------------


def test_noise_is_drawn_once_the_round_is_charged_and_before_anybody_is_asked(
    open_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_stream, "_WORTH_A_THREAD", 1)
    ledger = open_ledger(PLAN)
    charged: list[int] = []

    class Watched(WhiteStream):
        def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> np.ndarray:
            charged.append(ledger.rounds_spent)
            return super()._draw(law, size, rng)

    strategy = DPFedAvg(plan=PLAN, ledger=ledger)
    strategy.loop.noise_stream = Watched()
    messages = strategy.loop.open(1, model(), ConfigRecord(), nobody_moves())
    assert strategy.loop.noise_stream.index == 0
    list(messages)
    strategy.loop.release(1, [])
    assert charged == [1]


@either_way
def test_a_round_whose_draw_fails_releases_nothing_and_stays_charged(open_ledger: Any) -> None:
    ledger = open_ledger(PLAN)

    class Fails(WhiteStream):
        def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> np.ndarray:
            raise MemoryError("of the draw")

    with pytest.raises(MemoryError, match="of the draw"):
        trained(ledger, Fails())
    assert ledger.rounds_spent == 1
    assert not ledger._state.committed


@either_way
def test_a_training_that_breaks_while_replies_are_awaited_keeps_no_noise(open_ledger: Any) -> None:
    strategy = DPFedAvg(plan=PLAN, ledger=open_ledger(PLAN))
    stream = strategy.loop.noise_stream = BandedStream(BANDED)

    class Breaks(LocalGrid):
        def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
            if strategy.rounds_completed == 2:
                raise ConnectionError("gone")
            return super().replies_to(message_ids)

    answers = answer_with_update([{"w": np.zeros(SIZE)} for _ in range(N)])
    with pytest.raises(ConnectionError, match="gone"):
        strategy.start(Breaks(answers, N), model(), num_rounds=6)
    assert stream._ahead is None and stream.remembered == 0


# --- Memory is secret -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream_of", [WhiteStream, lambda: BandedStream(BANDED)])
def test_a_strategy_can_not_be_pickled(
    open_ledger: Any, stream_of: Callable[[], NoiseStream]
) -> None:
    strategy = DPFedAvg(plan=PLAN, ledger=open_ledger(PLAN))
    strategy.loop.noise_stream = stream_of()
    a_round(strategy, 1, model())
    with pytest.raises(TypeError, match="Stream can't be pickled or copied"):
        pickle.dumps(strategy)


@either_way
def test_memory_is_forgotten_when_a_training_breaks(open_ledger: Any) -> None:
    stream = BandedStream(BANDED)
    strategy = DPFedAvg(plan=PLAN, ledger=open_ledger(PLAN))
    strategy.loop.noise_stream = stream
    held: list[np.ndarray] = []

    def breaks(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 2:
            held.append(memory_of(stream))
            raise RuntimeError("out of disk")

    with pytest.raises(RuntimeError, match="out of disk"):
        strategy.start(nobody_moves(), model(), num_rounds=6, evaluate_fn=breaks)
    assert len(held) == 1
    assert not held[0].any()
    assert stream.remembered == 0


def files_with(folder: Path, secrets: list[np.ndarray]) -> set[str]:
    """The files that hold two neighbouring numbers of a secret: 16 bytes, never there by chance."""
    parts = {
        data[place : place + 16]
        for secret in secrets
        for data in [secret.tobytes()]
        for place in range(0, len(data) - 15, 8)
    }
    found = set()
    for path in folder.rglob("*"):
        content = path.read_bytes()
        if any(part in content for part in parts):
            found.add(path.name)
    return found


def test_no_file_of_a_run_holds_the_noise(tmp_path: Path) -> None:
    size = 300
    stream = BandedStream(BANDED)
    updates = np.random.default_rng(0).normal(size=(N, size))
    grid = LocalGrid(answer_with_update([{"w": each} for each in updates]), N)
    step = PLAN.bundle(PLAN.noise_multiplier).updates.grid
    secrets: list[np.ndarray] = []
    models: list[np.ndarray] = []

    def after_round(checkpoint: Checkpoint) -> None:
        # All that is handed out.
        (tmp_path / "checkpoint.pickle").write_bytes(pickle.dumps(checkpoint))
        models.append(checkpoint.model["w"].numpy())
        for noise in memory_of(stream)[: stream.remembered].astype(np.int64):
            noised = noise * step
            secrets.extend([noise.copy(), noise.astype(float), noised, noised / PLAN.denominator])
        assert files_with(tmp_path, secrets) == set()

    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        strategy = DPFedAvg(plan=PLAN, ledger=ledger, after_round=after_round)
        strategy.loop.noise_stream = stream
        strategy.start(grid, model(size), num_rounds=3)
        assert len(secrets) == 4 * (0 + 1 + 2 + 2)
        assert files_with(tmp_path, secrets) == set()
    # The search finds what is there: the last model, and noise as somebody might save it.
    assert files_with(tmp_path, models[-1:]) == {"checkpoint.pickle"}
    np.savez(tmp_path / "state.npz", buffer=secrets[-4])
    assert files_with(tmp_path, secrets) == {"state.npz"}
