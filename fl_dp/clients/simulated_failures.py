"""Failures in a simulated node's work, stored until its reply reports them.

Code that confines a failure to its unit notes it here; the outermost layer reports it to the
server. On a real node nothing is stored; the node's log has the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.protocol.failures import Failure

from .owner.node_privacy import in_simulation

_noted: list[Failure] | None = None  # of the message that is answered now: one at a time


def note_failure(error: BaseException | None, *, whole_node: bool = True) -> None:
    """Store a failure of user code, if any, for the reply, in a simulation.

    `whole_node`: whether the node contributes nothing.
    """
    if error is not None and _noted is not None and in_simulation():
        _noted.append(Failure.from_exception(error, whole_node=whole_node))


@contextmanager
def noted_failures() -> Iterator[list[Failure]]:
    """Collect the failures noted in a block; empty on a real node."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before


def failures_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add the first failure to a simulated node's reply; on a real node do nothing."""
    with noted_failures() as noted:
        reply = call_next(message, context)
        for failure in noted[:1]:
            failure.attach_to(reply)
        return reply


def unless_simulated(message: str) -> str | None:
    """A real node's log text for a failure; None where the server reports it instead."""
    return None if in_simulation() else message
