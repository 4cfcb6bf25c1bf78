"""Threads that share work on parts of a vector; NumPy releases the interpreter inside.

    >>> share(len(blocks), lambda index: blocks[index].fill(0.0))

A part's result must depend on the part alone: neither timing nor the number of threads may change
a bit.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_dp import machine

BLOCK = 1 << 16
"""Numbers per block: a processor's cache holds them, and a NumPy call pays off."""

_MAX_THREADS = 8
_CACHE_LINE = 64  # bytes

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class WorkArrays(threading.local):
    """A thread's own arrays, used again: fresh memory for a block costs more than its arithmetic.

        >>> _work = WorkArrays(2, BLOCK)
        >>> update, spare = _work.first(block.size)

    What a function left there is gone as soon as another one with the same arrays is called.
    """

    def __init__(self, count: int, size: int) -> None:
        """Make `count` arrays of `size` float64, in each thread that asks for them."""
        self._arrays = []
        for _ in range(count):
            memory = np.empty(8 * size + _CACHE_LINE, dtype=np.uint8)
            start = -memory.ctypes.data % _CACHE_LINE  # vector units are slower across lines
            self._arrays.append(memory[start : start + 8 * size].view(np.float64))

    def first(self, size: int) -> list[NDArray[np.float64]]:
        """The first `size` numbers of each array, of any value."""
        return [array[:size] for array in self._arrays]


def share(count: int, work: Callable[[int], None], *, at_most: int | None = None) -> None:
    """Call `work` with each number below `count`, in as many threads as processors.

    At most `at_most` threads are used, this one included. Errors of `work` are raised here.
    """
    waiting = deque(range(count))

    def until_done() -> None:
        # A thread does not inherit NumPy's error state; overflow shows in the result.
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            while True:
                try:
                    index = waiting.popleft()
                except IndexError:
                    return
                try:
                    work(index)
                except BaseException:
                    waiting.clear()  # where a part fails, no other begins
                    raise

    most = count if at_most is None else at_most
    helpers = min(usable_processors(), most) - 1
    running = [submit(until_done) for _ in range(helpers)]
    try:
        until_done()
    finally:
        # Nobody works on behind an error.
        running = [future for future in running if not future.cancel()]
        wait(running)
    for future in running:
        future.result()


def in_blocks(size: int, work: Callable[[slice], None]) -> None:
    """Call `work` with each block's slice of a vector, in threads if it is long."""
    starts = range(0, size, BLOCK)
    share(
        len(starts),
        lambda index: work(slice(starts[index], min(starts[index] + BLOCK, size))),
        at_most=size // BLOCK,
    )


def submit(
    work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> Future[_Result]:
    """Submit work to the threads that this process shares."""
    return _pool().submit(work, *args, **kwargs)


@cache
def usable_processors() -> int:
    """The number of processors that this process may use, at most 8."""
    return min(machine.processors(), _MAX_THREADS)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_processors(), thread_name_prefix="fl-dp")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
