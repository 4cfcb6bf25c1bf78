"""Noise of one release after another: what any stream promises, with memory or without."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from noise_covariance import covariance, covariance_p

from fl_dp.mechanisms import (
    BandedStream,
    GaussianBundle,
    GaussianMechanism,
    LaplaceMechanism,
    NoiseStream,
    SecureRandom,
    WhiteStream,
    noise_stream,
)

ALARM = 1e-6
SIZE = 20_000
MECHANISM = GaussianMechanism(noise_multiplier=1.1, clipping_norm=0.7)
BANDED = (4096, 2048, 1024)


def banded() -> BandedStream:
    return BandedStream(BANDED)


each_stream = pytest.mark.parametrize("stream_of", [WhiteStream, banded])


def drawn(stream: NoiseStream, indices: range | list[int], rng: SecureRandom) -> np.ndarray:
    """Noise in standard deviations of the fresh one."""
    law = MECHANISM.law
    rows = [stream.next(law, SIZE, rng, index=index) / law.scale for index in indices]
    return np.array(rows)


# --- The law --------------------------------------------------------------------------------------


def test_white_noise_is_the_mechanisms_own_bit_for_bit() -> None:
    seeded, again = (SecureRandom(insecure_seed=5) for _ in range(2))
    stream = WhiteStream()
    for index in range(3):
        noise = stream.next(MECHANISM.law, SIZE, seeded, index=index)
        assert (noise == MECHANISM.noise(SIZE, again)).all()


def test_one_band_is_white_noise_bit_for_bit() -> None:
    white = drawn(WhiteStream(), range(4), SecureRandom(insecure_seed=5))
    assert (drawn(BandedStream((4096,)), range(4), SecureRandom(insecure_seed=5)) == white).all()


def test_noise_is_correlated_as_designed_and_the_test_sees_it() -> None:
    banded = drawn(BandedStream(BANDED), range(6), SecureRandom())
    white = drawn(WhiteStream(), range(6), SecureRandom())
    designed = covariance(BANDED, range(6))
    assert designed[1, 0] == -0.5
    assert covariance_p(banded, designed) > ALARM
    assert covariance_p(white, np.eye(6)) > ALARM
    assert covariance_p(white, designed) < ALARM
    assert covariance_p(banded, np.eye(6)) < ALARM
    assert covariance_p(1.1 * banded, designed) < ALARM


# --- Memory is cut --------------------------------------------------------------------------------


def test_noise_after_a_cut_does_not_depend_on_what_was_before() -> None:
    stream, rng = BandedStream(BANDED), SecureRandom()
    before = drawn(stream, range(3), rng)
    held = stream._memory
    assert held is not None and held.any() and stream.remembered == 2
    stream.cut()
    assert not held.any()  # overwritten, not left to the allocator
    assert stream.remembered == 0
    noise = np.concatenate([before, drawn(stream, range(3, 6), rng)])
    apart = covariance(BANDED, [0, 1, 2, 13, 14, 15])
    assert covariance_p(noise, apart) > ALARM
    assert covariance_p(noise, covariance(BANDED, range(6))) < ALARM


def test_a_gap_between_indices_cuts() -> None:
    # Index 3 went to another process, or to a round that failed.
    noise = drawn(BandedStream(BANDED), [0, 1, 2, 4, 5], SecureRandom())
    assert covariance_p(noise, covariance(BANDED, [0, 1, 2, 4, 5])) > ALARM
    assert covariance_p(noise, covariance(BANDED, range(5))) < ALARM


def test_a_forked_process_does_not_go_on_with_the_memory() -> None:
    stream, rng = BandedStream(BANDED), SecureRandom()
    drawn(stream, range(2), rng)
    cuts = stream.cuts
    child = os.fork()
    if child == 0:
        code = 1
        try:
            stream.next(MECHANISM.law, SIZE, rng, index=2)
            code = 0 if stream.cuts == cuts + 1 else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stream.next(MECHANISM.law, SIZE, rng, index=2)
    assert stream.cuts == cuts


# --- Once, and here only --------------------------------------------------------------------------


@each_stream
@pytest.mark.parametrize("index", [4, 5])
def test_no_index_is_drawn_twice(stream_of: Callable[[], NoiseStream], index: int) -> None:
    stream, rng = stream_of(), SecureRandom()
    assert stream.index == -1
    stream.next(MECHANISM.law, 3, rng, index=5)
    stream.cut()  # does not give an index back
    with pytest.raises(ValueError, match=f"release {index} was asked for after release 5"):
        stream.next(MECHANISM.law, 3, rng, index=index)
    assert stream.index == 5


def test_an_index_whose_draw_fails_is_spent_and_cuts() -> None:
    stream, rng = BandedStream(BANDED), SecureRandom()
    stream.next(MECHANISM.law, 3, rng, index=0)
    with pytest.raises(ValueError, match="one law and one size"):
        stream.next(MECHANISM.law, 4, rng, index=1)
    # Otherwise participations at 0 and 3 would be two draws apart, and three bands reach over both.
    assert (stream.remembered, stream.cuts) == (0, 1)
    with pytest.raises(ValueError, match="gets its noise once"):
        stream.next(MECHANISM.law, 3, rng, index=1)


@each_stream
@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_stream_can_not_be_copied(
    stream_of: Callable[[], NoiseStream], copied: Callable[[object], object]
) -> None:
    stream = stream_of()
    stream.next(MECHANISM.law, 3, SecureRandom(), index=0)
    for hidden in (stream, [stream], {"of a strategy": (stream,)}):
        if copied is copy.copy and hidden is not stream:
            continue  # a shallow copy of a container shares the stream
        with pytest.raises(TypeError, match="can't be pickled or copied"):
            copied(hidden)


def test_no_noise_is_shown() -> None:
    stream = BandedStream(BANDED)
    noise = stream.next(MECHANISM.law, 3, SecureRandom(), index=7)
    assert repr(stream) == "BandedStream(index=7)"
    assert str(noise[0]) not in f"{stream} {stream!r}"


# --- Drawn ahead, while replies are awaited -------------------------------------------------------


@pytest.fixture
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_stream, "_WORTH_A_THREAD", 1)


def drawn_ahead(stream: NoiseStream, indices: range, rng: SecureRandom) -> np.ndarray:
    """Noise in standard deviations of the fresh one."""
    law, rows = MECHANISM.law, []
    for index in indices:
        stream.draw_ahead(law, SIZE, rng, index=index)
        rows.append(stream.next(law, SIZE, rng, index=index) / law.scale)
    return np.array(rows)


def at(stream: NoiseStream, index: int, size: int = SIZE) -> np.ndarray:
    return stream.next(MECHANISM.law, size, SecureRandom(), index=index)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("stream_of", [WhiteStream, banded])
def test_noise_drawn_ahead_has_the_same_law(stream_of: Callable[[], NoiseStream]) -> None:
    noise = drawn_ahead(stream_of(), range(6), SecureRandom())
    mine, other = covariance(BANDED, range(6)), np.eye(6)
    if stream_of is WhiteStream:
        mine, other = other, mine
    assert covariance_p(noise, mine) > ALARM
    assert covariance_p(noise, other) < ALARM
    assert covariance_p(1.1 * noise, mine) < ALARM


@pytest.mark.usefixtures("_threads")
@each_stream
def test_noise_drawn_ahead_comes_from_a_branch_whatever_is_drawn_meanwhile(
    stream_of: Callable[[], NoiseStream],
) -> None:
    noises = []
    for meanwhile in (0, 1000):
        stream, rng = stream_of(), SecureRandom(insecure_seed=8)
        stream.draw_ahead(MECHANISM.law, SIZE, rng, index=0)
        rng.words(meanwhile)
        noises.append(stream.next(MECHANISM.law, SIZE, rng, index=0))
    branch = SecureRandom(insecure_seed=8).branch()
    assert (noises[0] == MECHANISM.law.sample(SIZE, branch)).all()
    assert (noises[1] == noises[0]).all()


@pytest.mark.usefixtures("_threads")
@each_stream
def test_what_is_drawn_ahead_is_drawn_once_and_handed_out_once(
    stream_of: Callable[[], NoiseStream],
) -> None:
    stream, rng = stream_of(), SecureRandom()
    stream.draw_ahead(MECHANISM.law, SIZE, rng, index=3)
    assert stream.index == 3  # spent before it is asked for
    with pytest.raises(ValueError, match="release 3 was asked for after release 3"):
        stream.draw_ahead(MECHANISM.law, SIZE, rng, index=3)
    at(stream, 3)
    for again in (3, 2):
        with pytest.raises(ValueError, match="gets its noise once"):
            at(stream, again)


@pytest.mark.usefixtures("_threads")
@each_stream
def test_a_release_that_never_asks_leaves_no_noise(stream_of: Callable[[], NoiseStream]) -> None:
    # An aborted round: its index is spent, its noise overwritten, and memory is cut.
    stream, rng = stream_of(), SecureRandom()
    at(stream, 0)
    stream.draw_ahead(MECHANISM.law, SIZE, rng, index=1)
    assert stream._ahead is not None
    secret = stream._ahead.drawing.result()
    assert secret.any()
    noise = at(stream, 2)
    assert not secret.any() and noise.any()
    with pytest.raises(ValueError, match="gets its noise once"):
        at(stream, 1)
    if isinstance(stream, BandedStream):
        assert (stream.cuts, stream.remembered) == (1, 1)


@pytest.mark.usefixtures("_threads")
def test_noise_is_not_carried_over_a_release_that_never_asks() -> None:
    stream, rng = BandedStream(BANDED), SecureRandom()
    noise = [drawn_ahead(stream, range(2), rng)]
    stream.draw_ahead(MECHANISM.law, SIZE, rng, index=2)
    noise.append(drawn_ahead(stream, range(3, 5), rng))
    both = np.concatenate(noise)
    assert covariance_p(both, covariance(BANDED, [0, 1, 3 + 9, 4 + 9])) > ALARM
    assert covariance_p(both, covariance(BANDED, range(4))) < ALARM


@pytest.mark.usefixtures("_threads")
@each_stream
def test_a_cut_waits_for_the_thread_and_overwrites_what_it_drew(
    stream_of: Callable[[], NoiseStream],
) -> None:
    stream = stream_of()
    stream.draw_ahead(MECHANISM.law, 5_000_000, SecureRandom(), index=0)
    assert stream._ahead is not None
    drawing = stream._ahead.drawing
    stream.cut()
    assert drawing.cancelled() or not drawing.result().any()
    if isinstance(stream, BandedStream):
        assert stream.remembered == 0
    with pytest.raises(ValueError, match="gets its noise once"):
        at(stream, 0)


@pytest.mark.usefixtures("_threads")
@each_stream
def test_a_thread_that_fails_gives_no_noise(
    stream_of: Callable[[], NoiseStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise MemoryError("of the draw")

    stream = stream_of()
    at(stream, 0)
    monkeypatch.setattr(stream, "_draw", fails)
    stream.draw_ahead(MECHANISM.law, SIZE, SecureRandom(), index=1)
    with pytest.raises(MemoryError, match="of the draw"):
        at(stream, 1)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="gets its noise once"):
        at(stream, 1)
    if isinstance(stream, BandedStream):
        assert stream.remembered == 0


@pytest.mark.usefixtures("_threads")
@each_stream
@pytest.mark.parametrize("asked", ["another size", "another law"])
def test_noise_drawn_for_another_sum_is_refused(
    stream_of: Callable[[], NoiseStream], asked: str
) -> None:
    stream, rng = stream_of(), SecureRandom()
    stream.draw_ahead(MECHANISM.law, SIZE, rng, index=0)
    less = GaussianMechanism(noise_multiplier=1.0, clipping_norm=0.7)
    law, size = (less.law, SIZE) if asked == "another law" else (MECHANISM.law, SIZE - 1)
    with pytest.raises(ValueError, match="drawn ahead for 20000 coordinates of scale"):
        stream.next(law, size, rng, index=0)
    with pytest.raises(ValueError, match="gets its noise once"):
        at(stream, 0)


@pytest.mark.usefixtures("_threads")
@each_stream
def test_a_fork_has_no_noise_that_was_drawn_ahead(stream_of: Callable[[], NoiseStream]) -> None:
    stream = stream_of()
    stream.draw_ahead(MECHANISM.law, 2_000_000, SecureRandom(), index=0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ValueError, match="gets its noise once"):
                at(stream, 0, 2_000_000)
            at(stream, 1)
            stream.cut()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert at(stream, 0, 2_000_000).any()  # the parent's is its own


# --- A release is handed its noise ----------------------------------------------------------------


@pytest.mark.parametrize("kind", [GaussianMechanism, LaplaceMechanism])
def test_a_release_is_the_sum_and_the_noise_it_was_handed(
    kind: type[GaussianMechanism] | type[LaplaceMechanism],
) -> None:
    mechanism = kind(noise_multiplier=1.0, clipping_norm=1.0)
    total = mechanism.encode(np.full((2, 3), 0.1))
    noise = mechanism.noise(6, SecureRandom())
    released = mechanism.release(total, noise)
    assert released.shape == (2, 3)
    assert (released / mechanism.grid == total + noise.reshape(2, 3)).all()


@pytest.mark.parametrize("memory", ["the noise's", "the sum's"])
def test_a_release_in_memory_that_it_reads_is_the_same_and_leaves_nothing_of_it(
    memory: str,
) -> None:
    total = MECHANISM.encode(np.linspace(-1.0, 1.0, 300_000))
    noise = MECHANISM.noise(total.size, SecureRandom())
    expected = (total + noise) * MECHANISM.grid / 7.0
    out = noise.view(np.float64) if memory == "the noise's" else total
    released = MECHANISM.release(total, noise, divided_by=7.0, out=out)
    assert (released == expected).all()
    assert np.shares_memory(released, out)


@pytest.mark.parametrize(
    "noise",
    [
        np.ones(1, dtype=np.int64),  # would be broadcast: one draw to hide six coordinates
        np.ones((2, 3), dtype=np.int64),
        np.ones(6),  # floats may leave the grid
        SecureRandom(),  # where noise comes from is no noise
    ],
    ids=["one draw", "two rows", "floats", "a source of randomness"],
)
def test_a_release_without_an_integer_for_each_coordinate_is_refused(noise: object) -> None:
    with pytest.raises(ValueError, match=r"sum of 6 coordinates .* noise\(total.size, rng\)"):
        MECHANISM.release(np.zeros((2, 3)), noise)  # type: ignore[arg-type]  # refused


def test_scalars_get_fresh_noise_each_in_its_own_steps() -> None:
    bundle = GaussianBundle(
        noise_multiplier=1.0,
        clipping_norms=(0.5,),
        unclipped_bit=True,
        scalar_noise_std=5.0,
        count_noise_std=7.0,
    )
    noise = bundle.scalar_noise(SecureRandom())
    released = bundle.release_scalars(np.zeros(2), noise)
    grids = [mechanism.grid for mechanism in bundle.scalar_mechanisms]
    assert released == [float(step) * grid for step, grid in zip(noise, grids, strict=True)]
    with pytest.raises(ValueError):
        bundle.release_scalars(np.zeros(2), noise[:1])
    bare = GaussianBundle(noise_multiplier=1.0, clipping_norms=(0.5,))
    assert bare.release_scalars(np.zeros(0), bare.scalar_noise(SecureRandom())) == []
