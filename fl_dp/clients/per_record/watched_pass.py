"""A pass of records, watched for coins that they would share, or that somebody knows.

Records of a pass draw from torch's generator together, each its own unknown numbers. A number of
Python's or NumPy's is shared by all of them, and depends on how many records there are. A
generator that the model seeds itself gives known numbers, which depend on a record's index in the
pass. In both cases, leaving out one record moves the gradients of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import torch

from .index_ranges import IndicesInRange


class SharedCoins(RuntimeError):
    """Records of a pass drew numbers that are not each one's own: they have to go one by one."""


class WatchedPass(IndicesInRange):
    """A pass that raises unless its records have their own secret coins, and indices in range.

    Python's and NumPy's generators are checked once, at the end; torch's at each call, as a seed
    may be set back. A C extension's own draws are not seen.
    """

    def __init__(self, records: int) -> None:
        """Prepare a pass of that many records; a single one may draw any numbers."""
        super().__init__()
        self._several = records > 1
        self._seed, self._state = torch.initial_seed(), torch.get_rng_state()
        self._before = _process_states()

    def check(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Check a call before it is made.

        Raises:
            SharedCoins: Several records would draw from a generator with a known seed.
            IndexError: It looks up a row out of range.
        """
        seeded = torch.initial_seed() != self._seed or kwargs.get("generator") is not None
        if self._several and seeded:
            raise SharedCoins("the model seeds torch's generator, or has one of its own")
        super().check(func, args, kwargs)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the pass.

        Raises:
            SharedCoins: Several records drew from Python's or NumPy's generators.
        """
        super().__exit__(kind, failure, traceback)  # type: ignore[no-untyped-call]  # torch
        if torch.initial_seed() != self._seed:  # the next pass needs unknown coins again
            torch.set_rng_state(self._state)
            torch.manual_seed(int(torch.randint(1 << 62, ())))
        if failure is None and self._several and _process_states() != self._before:
            raise SharedCoins("the model draws numbers of random or numpy.random")


def _process_states() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=True)
    return random.getstate(), state[1].tobytes(), state[2:]
