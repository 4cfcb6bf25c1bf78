"""Failures in a simulated node's work, kept until its reply tells them.

Layers that let one unit's failure end with that unit note it here; the outermost one tells the
server. On a real node nothing is kept, and the node's own log has the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.protocol.failures import Failure

from .node_privacy import in_simulation

_noted: list[Failure] | None = None  # of the message that is answered now: one at a time


def note_failure(raised: BaseException | None, *, of_all: bool = True) -> None:
    """Keep what failed for the reply, in a simulation.

    Args:
        raised: What user code raised; None: nothing.
        of_all: Whether the node contributes nothing.
    """
    if raised is not None and _noted is not None and in_simulation():
        _noted.append(Failure.of(raised, of_all=of_all))


@contextmanager
def noted_failures() -> Iterator[list[Failure]]:
    """Collect what is noted in a block; empty on a real node."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before


def told_failures_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let a simulated node's reply tell what failed within; on a real node do nothing."""
    with noted_failures() as noted:
        reply = call_next(message, context)
        for failure in noted[:1]:
            failure.attach_to(reply)
        return reply


def unless_simulated(message: str) -> str | None:
    """Return what a real node's log says of a failure; None where the server tells it instead."""
    return None if in_simulation() else message
