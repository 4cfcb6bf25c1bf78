"""Draws that threads share: as secret, as independent and as repeatable as those of one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from laws import ALARM
from scipy import stats

from fl_dp.mechanisms import SecureRandom, threads
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.mechanisms.laplace import DiscreteLaplace

SIZE = 400_000  # four parts
SCALE = 1.3 * 2.0**30
CENTRES = np.linspace(-1e9, 1e9, SIZE)

Draw = Callable[[SecureRandom], np.ndarray]

DRAWS: dict[str, Draw] = {
    "gaussian": lambda rng: DiscreteGaussian(SCALE).sample(SIZE, rng),
    "gaussian around centres": lambda rng: DiscreteGaussian(SCALE).sample_around(CENTRES, rng),
    "laplace": lambda rng: DiscreteLaplace(SCALE).sample(SIZE, rng),
    "exponential": lambda rng: GridExponentialMechanism(
        noise_multiplier=1.0, clipping_norm=1.0
    ).privatize(CENTRES, rng),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seeded_draw_does_not_depend_on_the_number_of_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for processors in (1, 2, 5):
        monkeypatch.setattr(threads, "processors", lambda many=processors: many)
        drawn.append(DRAWS[name](SecureRandom(insecure_seed=3)))
    assert (drawn[1] == drawn[0]).all() and (drawn[2] == drawn[0]).all()


@pytest.mark.parametrize("name", DRAWS)
def test_the_parts_of_a_draw_are_independent(name: str) -> None:
    first, second = np.split(DRAWS[name](SecureRandom()) - DRAWS[name](SecureRandom()), 2)
    lag = 1 << 17  # of one part after another
    for one, other in ((first, second), (first[lag:], first[:-lag])):
        correlation = np.corrcoef(one, other)[0, 1]
        assert 2 * stats.norm.sf(abs(correlation) * one.size**0.5) > ALARM
    assert not (first == second).all()


def test_threads_that_draw_from_one_stream_get_its_words_once_each() -> None:
    rng, taken = SecureRandom(insecure_seed=1), list[np.ndarray]()

    def take() -> None:
        for _ in range(200):
            taken.append(rng.words(33))  # not a whole number of the cipher's blocks

    running = [threading.Thread(target=take) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    whole = SecureRandom(insecure_seed=1).words(4 * 200 * 33)
    assert (np.sort(np.concatenate(taken)) == np.sort(whole)).all()


def test_a_branch_is_as_secret_as_its_stream_and_has_draws_of_its_own() -> None:
    secure, seeded = SecureRandom(), SecureRandom(insecure_seed=4)
    assert secure.branch().kind == SecureRandom.SECURE_KIND
    assert seeded.branch().kind == SecureRandom.INSECURE_KIND
    words = [stream.words(4).tobytes() for stream in (secure, secure.branch(), secure.branch())]
    assert len({*words}) == 3
    again = SecureRandom(insecure_seed=4)
    assert (again.branch().words(9) == SecureRandom(insecure_seed=4).branch().words(9)).all()


def test_a_fork_leaves_a_branch() -> None:
    branch = SecureRandom().branch()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, branch.words(2).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != branch.words(2).tobytes()
    os.close(read)
    os.close(write)


def test_a_fork_draws_in_threads_of_its_own() -> None:
    DRAWS["gaussian"](SecureRandom())  # the parent's threads are there
    child = os.fork()
    if child == 0:
        drawn = DRAWS["gaussian"](SecureRandom())
        os._exit(0 if drawn.size == SIZE else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_a_part_fails_in_another_thread_no_other_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "processors", lambda: 2)
    helpers: list[Future[None]] = []
    here: list[int] = []

    def submitted(*given: Any) -> Future[None]:
        helpers.append(submit(*given))
        return helpers[-1]

    def work(index: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("of a part")
        futures.wait(helpers)  # the other thread's error is over
        here.append(index)

    submit = threads.submit
    monkeypatch.setattr(threads, "submit", submitted)

    with pytest.raises(MemoryError, match="of a part"):
        threads.share(9, work)
    assert len(here) == 1


def test_nobody_works_on_behind_the_error_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "processors", lambda: 2)
    began, over = threading.Event(), threading.Event()
    late: list[int] = []

    def work(index: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert began.wait()
            raise MemoryError("of a part")
        began.set()
        over.wait(60.0)
        late.append(index)

    def waited_for(running: list[Future[None]]) -> None:
        over.set()
        futures.wait(running)

    monkeypatch.setattr(threads, "wait", waited_for)

    with pytest.raises(MemoryError, match="of a part"):
        threads.share(9, work)
    assert len(late) == 1  # the part that had begun is over, and no other began
