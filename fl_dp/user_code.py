"""Code of an app's author, of one unit or one record: what it draws and raises stays its own.

**Chance.** Apps draw from generators that belong to the whole process: dropout from torch's,
augmentation from NumPy's and `random`'s. Where an app, or a server through it, has seeded them, a
unit that fails before it draws shifts the coins of all others, and so moves a sum by far more than
its own update.

    >>> with own_chance() as seed_again:
    ...     for record in records:
    ...         seed_again()
    ...         read(record)

Code that seeds the process's generators inside such a block fixes the coins of that unit or record
alone. Generators that an app keeps elsewhere are its own business: a module's
`np.random.default_rng(0)`, `random.Random(0)`, a `torch.Generator`, or TensorFlow's. Let each unit
make its own.

**Failure.** One unit or record that fails contributes nothing, and decides about no other one. A
native library's panic and `sys.exit` are no `Exception`, and fail it all the same.

    >>> for unit in units:
    ...     with Contained("unit %d failed and contributes zero", unit):
    ...         total.add(train(unit))
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any, Self

import numpy as np

from fl_dp.mechanisms import SecureRandom

logger = logging.getLogger("flwr.fl_dp.client")


@contextmanager
def own_chance(source: SecureRandom | None = None) -> Iterator[Callable[[], None]]:
    """Seed the process's generators of torch, NumPy and `random` for a block, and put them back.

    Accelerators are seeded too; of these CUDA's generators are put back. Not for two threads at
    once: they would share the generators.

    Args:
        source: What the seeds are drawn from; a fresh secure one by default.

    Yields:
        A function that seeds them once more, for the next unit or record.
    """
    drawn = SecureRandom() if source is None else source
    torch = _torch()
    of_random = random.getstate()
    of_numpy = np.random.mtrand.get_bit_generator()
    state_of_numpy = np.random.get_state(legacy=False)
    of_torch = None if torch is None else torch.get_rng_state()
    of_cuda = None
    if torch is not None and torch.cuda.is_initialized():
        of_cuda = torch.cuda.get_rng_state_all()

    def seed() -> None:
        first, second, third = (int(word) for word in drawn.words(3))
        random.seed(first)
        # Again each time, as code in the block may have put in another.
        np.random.mtrand.set_bit_generator(_own_of_numpy())
        np.random.seed(second >> 32)
        if torch is not None:
            _seed_torch(torch, third >> 1)

    try:
        seed()
        yield seed
    finally:
        random.setstate(of_random)
        np.random.mtrand.set_bit_generator(of_numpy)
        np.random.set_state(state_of_numpy)  # with half of a pair of normals
        if torch is not None:
            torch.set_rng_state(of_torch)
        if torch is not None and of_cuda is not None:
            torch.cuda.set_rng_state_all(of_cuda)


@cache
def _own_of_numpy() -> np.random.MT19937:
    """Return NumPy's generator in such blocks: making one takes as long as all the rest."""
    return np.random.MT19937()


@cache
def _torch() -> Any:
    """Return torch, or None where it is not installed.

    It is imported here, as the first unit to import it would have the seed that it begins with.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _seed_torch(torch: Any, seed: int) -> None:
    if torch.accelerator.current_accelerator() is None:
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes 200 times as long
    else:
        torch.manual_seed(seed)


class Contained:
    """A block of user code whose failure ends the block, and nothing behind it.

    What is raised is logged and kept, whatever it is but the keyboard's interrupt. A generator may
    not yield inside such a block: its end is an exception, too.

    Where Flower stops a process, which raises `SystemExit` wherever that process is, the block ends
    early, too; Flower has closed the connection by then and ends the process itself in seconds.

    Attributes:
        failure: What the block raised; None: nothing.
    """

    def __init__(self, message: str | None = None, *values: object) -> None:
        """Say what is logged of a failure.

        Args:
            message: With the places of `values`, as of `logging`; None: nothing is logged.
            values: Nothing that depends on a record's content.
        """
        self.failure: BaseException | None = None
        self._message, self._values = message, values

    def __enter__(self) -> Self:
        """Return it, for its `failure`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Keep what was raised, and go on behind the block."""
        if failure is None or isinstance(failure, KeyboardInterrupt):
            return False
        self.failure = failure
        if self._message is not None:
            logger.error(self._message, *self._values, exc_info=failure)
        return True
