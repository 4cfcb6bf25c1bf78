"""Coins that several records of one pass would share, or that somebody knows.

Records of a pass draw from torch's generator together, each its own numbers, which nobody knows. A
number of Python's or NumPy's is one for all of them: which records have it in common depends on how
many there are. And numbers of a generator with a seed of the model's own are known, and go by a
record's place in the pass. Either way one record that is left out moves the gradients of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode


class SharedCoins(RuntimeError):
    """Records of a pass drew numbers that are not each record's own: each is to go alone."""


class CoinsOfRecords(TorchFunctionMode):
    """A pass whose records have secret coins of their own, or that raises.

    Python's and NumPy's generators are looked at once, at the end; torch's at each call, as a seed
    may be taken back. What a C extension draws by itself is not seen.
    """

    def __init__(self, records: int) -> None:
        """Take a pass of that many records; one alone may draw what it likes."""
        super().__init__()
        self._several = records > 1
        self._seed, self._state = torch.initial_seed(), torch.get_rng_state()
        self._before = _of_the_process()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch.

        Raises:
            SharedCoins: If several records would draw from a generator with a known seed.
        """
        named = kwargs or {}
        if self._several and (
            torch.initial_seed() != self._seed or named.get("generator") is not None
        ):
            raise SharedCoins("the model seeds torch's generator, or has one of its own")
        return func(*args, **named)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the pass.

        Raises:
            SharedCoins: If several records drew numbers of Python's or NumPy's generators.
        """
        super().__exit__(kind, failure, traceback)  # type: ignore[no-untyped-call]  # torch
        if torch.initial_seed() != self._seed:  # the next pass is to have unknown coins again
            torch.set_rng_state(self._state)
            torch.manual_seed(int(torch.randint(1 << 62, ())))
        if failure is None and self._several and _of_the_process() != self._before:
            raise SharedCoins("the model draws numbers of random or numpy.random")


def _of_the_process() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=True)
    return random.getstate(), state[1].tobytes(), state[2:]
