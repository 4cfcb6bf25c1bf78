"""Rules of `vmap` that an author wrote, in which records of a pass could meet.

A `torch.autograd.Function` may have a static `vmap`, and an operator one of
`torch.library.register_vmap`: either gets the tensors of all records at once. Rules of PyTorch's
own, and those that `generate_vmap_rule = True` makes, treat each record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch._functorch import autograd_function

from .process_wide import ProcessWide


class OwnRule(RuntimeError):
    """An author's rule of `vmap` was to be used: these records have to go one by one."""


class NoOwnRules(ProcessWide):
    """A pass under `vmap` that raises where it would use an author's rule.

    Modes of PyTorch see neither what such a function calls nor its backward pass. So in its block,
    for all threads, the one object is missing that PyTorch makes for each author's rule.
    """

    @staticmethod
    def change() -> Callable[[], None]:
        """Take the object away."""
        usual = autograd_function.VmapInfo

        def refuse(**about: Any) -> Any:
            if _allowed.get():
                return usual(**about)
            raise OwnRule(
                "a function of the model has a vmap rule of its own: write generate_vmap_rule = "
                "True instead, with which each record is alone"
            )

        def put_back() -> None:
            autograd_function.VmapInfo = usual  # type: ignore[misc]  # as it was

        autograd_function.VmapInfo = refuse  # type: ignore[assignment,misc]  # until `put_back`
        return put_back


_allowed: ContextVar[bool] = ContextVar("_allowed", default=False)


@contextmanager
def own_rules_of_the_package() -> Iterator[None]:
    """Let a rule of this package pass `NoOwnRules`: each was written to keep models apart."""
    before = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(before)
