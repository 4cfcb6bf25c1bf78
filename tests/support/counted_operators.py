"""Counts what torch runs: operators, copies between host and device, and waits of the host.

Counted on the CPU, as calls that would copy or wait if the tensors lay on a GPU: a number that no
machine changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_VIEWS = {"view", "_unsafe_view", "select", "slice", "split", "split_with_sizes", "unbind"}
_VIEWS |= {"transpose", "t", "permute", "expand", "alias", "detach", "unsqueeze", "squeeze"}
_VIEWS |= {"as_strided", "unfold", "lift_fresh"}
_COPIES = {"to", "cpu", "cuda", "tolist", "item"}
_TO_HOST = {"cpu", "tolist", "item"}
_WAITS = {"cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "is_nonzero"}
_WAITS |= {"nonzero", "argwhere", "masked_select", "unique", "equal", "allclose"}


@dataclass(frozen=True)
class Counts:
    """What a block has run, by name.

    Attributes:
        operators: Operators that are no views.
        copies: Calls of Python that move a tensor between host and device.
        waits: Calls of Python that wait for a device.
        to_host: Entries that calls of Python bring to the host.
    """

    operators: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    to_host: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Number of operators."""
        return sum(self.operators.values())


@contextmanager
def counted() -> Iterator[Counts]:
    """Count what the block runs."""
    counts = Counts()
    with _Calls(counts), _Operators(counts):
        yield counts


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    def __init__(self, counts: Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            self._counts.operators[name] += 1
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], Tensor):
            options = [*args[1:], *(kwargs or {}).values()]
            if name in _COPIES - {"to"} or (
                name == "to" and any(isinstance(each, torch.device | str) for each in options)
            ):
                self._counts.copies[name] += 1
                if name in _TO_HOST:
                    self._counts.to_host[name] += args[0].numel()
            if name in _WAITS:
                self._counts.waits[name] += 1
        return func(*args, **(kwargs or {}))
