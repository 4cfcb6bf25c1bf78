"""Rules of `vmap` that an author wrote, in which records of a pass could meet.

A `torch.autograd.Function` may have a static `vmap`, and an operator one of
`torch.library.register_vmap`: either gets the tensors of all records at once. Rules of PyTorch's
own, and those that `generate_vmap_rule = True` makes, treat each record alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from torch._functorch import autograd_function


class OwnRule(RuntimeError):
    """An author's rule of `vmap` was to be used: these records have to go one by one."""


class NoOwnRules:
    """A pass under `vmap` that raises where it would use an author's rule.

    Modes of PyTorch see neither what such a function calls nor its backward pass. So in its block,
    for all threads, the one object is missing that PyTorch makes for each author's rule.
    """

    _lock = threading.Lock()
    _blocks = 0
    _usual: Any = None

    def __enter__(self) -> None:
        """Begin the block."""
        with NoOwnRules._lock:
            if not NoOwnRules._blocks:
                NoOwnRules._usual = autograd_function.VmapInfo
                autograd_function.VmapInfo = _refuse  # type: ignore[assignment,misc]  # back below
            NoOwnRules._blocks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block; the last one puts PyTorch's own back."""
        with NoOwnRules._lock:
            NoOwnRules._blocks -= 1
            if not NoOwnRules._blocks:
                autograd_function.VmapInfo = NoOwnRules._usual  # type: ignore[misc]  # as it was


_allowed: ContextVar[bool] = ContextVar("_allowed", default=False)


@contextmanager
def own_rules_of_the_package() -> Iterator[None]:
    """Let a rule of this package pass `NoOwnRules`: each was written to keep models apart."""
    before = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(before)


def _refuse(**about: Any) -> Any:
    if _allowed.get():
        return NoOwnRules._usual(**about)
    raise OwnRule(
        "a function of the model has a vmap rule of its own: write generate_vmap_rule = True "
        "instead, with which each record is alone"
    )
