"""An app author's code, run for one unit or record, so that it affects no other one.

**Modes.** Torch's gradient mode, autocast, default dtype and device are of the whole process, too.
A unit that leaves gradients turned off would end the training of all after it: a block restores
them.

**Chance.** Apps draw from generators of the whole process: dropout from torch's, augmentation from
NumPy's and `random`'s. Suppose an app, or a server through it, has seeded them. Then a unit that
fails before it draws shifts all others' coins. That moves a sum by far more than its own update.

    >>> with own_chance() as seed_again:
    ...     for record in records:
    ...         seed_again()
    ...         read(record)

Code that seeds the process's generators in the block fixes that unit's or record's coins alone.
Other generators are the app's responsibility: a module's `np.random.default_rng(0)`,
`random.Random(0)`, a `torch.Generator`, or TensorFlow's. Let each unit make its own.

**Failure.** A unit or record that fails contributes nothing and affects no other. This includes a
native library's panic and `sys.exit`, which are no `Exception`.

    >>> for unit in units:
    ...     with Contained("unit %d failed and contributes zero", unit):
    ...         total.add(train(unit))
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fl_dp.files import StorageUnavailable
from fl_dp.mechanisms import SecureRandom

logger = logging.getLogger("flwr.fl_dp.client")


class Words(Protocol):
    """A source of numbers, such as `SecureRandom` or `SeededWords`."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next numbers, uint64 of shape `(count,)`."""


class SeededWords:
    """Numbers that follow from whole numbers; other whole numbers give independent ones."""

    def __init__(self, *entropy: int) -> None:
        """Start from whole numbers of at least 0."""
        self._generator = np.random.default_rng(entropy)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next numbers, uint64 of shape `(count,)`."""
        return self._generator.integers(1 << 64, size=count, dtype=np.uint64)


@contextmanager
def own_chance(source: Words | None = None) -> Iterator[Callable[[], None]]:
    """Seed the process's torch, NumPy and `random` generators for a block, then restore them.

    Accelerators are seeded too; of these only CUDA's are restored. Torch's modes and defaults are
    restored. Not for two threads at once: they would share the generators.

    Args:
        source: Source of the seeds; by default a fresh secure one.

    Yields:
        A function that seeds once more, for the next unit or record.
    """
    seeds = SecureRandom() if source is None else source
    torch = _torch()
    random_state = random.getstate()
    numpy_generator = np.random.mtrand.get_bit_generator()
    numpy_state = np.random.get_state(legacy=False)
    torch_state = None if torch is None else torch.get_rng_state()
    cuda_states = None
    if torch is not None and torch.cuda.is_initialized():
        cuda_states = torch.cuda.get_rng_state_all()

    def seed() -> None:
        first, second, third = _seeds(seeds)
        random.seed(first)
        # Set each time, as code in the block may have set another.
        np.random.mtrand.set_bit_generator(_numpy_generator())
        np.random.seed(second)
        if torch is not None:
            _seed_torch(torch, third)

    def begin() -> None:
        set_back()
        seed()

    try:
        with nullcontext(_do_nothing) if torch is None else _own_modes(torch) as set_back:
            begin()
            yield begin
    finally:
        random.setstate(random_state)
        np.random.mtrand.set_bit_generator(numpy_generator)
        np.random.set_state(numpy_state)  # with half of a pair of normals
        if torch is not None:
            torch.set_rng_state(torch_state)
        if torch is not None and cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)


def seed_of_torch(source: Words) -> int:
    """The seed that torch's generators get at the begin of a block of `own_chance`."""
    return _seeds(source)[2]


def _seeds(source: Words) -> tuple[int, int, int]:
    """Seeds of `random`, of NumPy and of torch."""
    first, second, third = (int(word) for word in source.words(3))
    return first, second >> 32, third >> 1


def _do_nothing() -> None:
    """Set back no modes, without torch."""


@contextmanager
def _own_modes(torch: Any) -> Iterator[Callable[[], None]]:
    """Restore torch's modes and defaults after a block.

    Yields:
        A function that sets them back within it, for the next unit or record.
    """
    modes = [(read, write, read()) for read, write in _modes(torch)]
    device = torch.get_default_device()

    def set_back() -> None:
        for read, write, value in modes:
            if read() != value:  # some are slow to write
                write(value)

    try:
        # Its end sets the gradient mode back, too, even if the block left another one entered.
        with torch.inference_mode(torch.is_inference_mode_enabled()):
            yield set_back
    finally:
        set_back()
        if torch.get_default_device() != device:  # slow to read, so not for each record
            torch.set_default_device(device)


@cache
def _modes(torch: Any) -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """How each mode of the process is read, and written."""
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
        (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_num_threads, torch.set_num_threads),
    ]


@cache
def _numpy_generator() -> np.random.MT19937:
    """NumPy's generator for the blocks; cached, as making one is slow."""
    return np.random.MT19937()


@cache
def _torch() -> Any:
    """Torch, or None where it is not installed.

    Imported here: otherwise the first unit to import it would get its initial seed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _seed_torch(torch: Any, seed: int) -> None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type != "cuda":
        torch.manual_seed(seed)
        return
    # `torch.manual_seed` walks through every kind of device, which takes milliseconds.
    torch.default_generator.manual_seed(seed)
    if accelerator is not None:
        torch.cuda.manual_seed_all(seed)


class Contained:
    """A block of user code whose failure ends only the block.

    The exception is logged and stored; only `KeyboardInterrupt` passes. A generator may not yield
    inside, as its end is an exception, too.

    Flower stops a process by `SystemExit`, wherever it is: the block then ends early. By then
    Flower has closed the connection, and it ends the process itself in seconds.

    Attributes:
        failure: The block's exception. None: there was none.
    """

    def __init__(
        self,
        message: str | None = None,
        *values: object,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """Set what is logged of a failure.

        Args:
            message: A `logging` format for `values`. None: nothing is logged.
            values: Must not depend on a record's content.
            expected: Exceptions whose text says all: they are logged without a traceback, as is
                a full disk.
        """
        self.failure: BaseException | None = None
        self._message, self._values = message, values
        self._told_in_one_line: tuple[type[Exception], ...] = (StorageUnavailable, *expected)

    def __enter__(self) -> Self:
        """Return the block, for its `failure`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Store the exception, and continue after the block."""
        if failure is None or isinstance(failure, KeyboardInterrupt):
            return False
        self.failure = failure
        if self._message is not None:
            if isinstance(failure, self._told_in_one_line):
                logger.error(f"{self._message}: %s", *self._values, failure)
            else:
                logger.error(self._message, *self._values, exc_info=failure)
        return True
