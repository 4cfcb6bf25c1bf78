"""Threads that share work, and a stream whose draws several threads take."""

from __future__ import annotations

import os
import threading
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from fl_dp.mechanisms import SecureRandom, threads


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


def test_a_fork_shares_work_among_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_processors", lambda: 2)
    threads.share(9, lambda index: None)  # the parent's threads are there
    child = os.fork()
    if child == 0:
        done: list[int] = []
        threads.share(9, done.append)
        os._exit(0 if sorted(done) == list(range(9)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_a_part_fails_in_another_thread_no_other_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "usable_processors", lambda: 2)
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
    monkeypatch.setattr(threads, "usable_processors", lambda: 2)
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
