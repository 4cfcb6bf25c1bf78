"""Messages out and replies in, a window at a time.

Flower's `send_and_receive` keeps every reply in memory until the last one is in, and its simulation
engine slows down with each message that waits. Here only a window of messages is under way and each
reply is handed over as it comes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

_SIMULATION_WINDOW = 32
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


class RosterIncomplete(RuntimeError):
    """Fewer nodes connected than the plan declares."""


def default_window(grid: Grid) -> int | None:
    """Return the window that suits a grid: small in a simulation, none for real nodes."""
    return _SIMULATION_WINDOW if type(grid).__name__ == "InMemoryGrid" else None


def exchange(
    grid: Grid, messages: Iterable[Message], *, window: int | None, timeout: float
) -> Iterator[Message]:
    """Send `messages` and yield each one's reply as it arrives, at most one a message.

    Args:
        grid: Flower's grid.
        messages: What to send.
        window: How many may be under way at once; None sends all of them at the start.
        timeout: Seconds until what is still missing is given up, silently: a late reply is
            never looked at.
    """
    deadline = time.monotonic() + timeout
    waiting = deque(messages)
    under_way: set[str] = set()
    pause = _SHORTEST_PAUSE
    while (waiting or under_way) and time.monotonic() < deadline:
        room = len(waiting) if window is None else window - len(under_way)
        if room and waiting:
            batch = [waiting.popleft() for _ in range(min(room, len(waiting)))]
            # A message that could not be stored has no id: its client is missing.
            under_way.update(sent for sent in grid.push_messages(batch) if sent)
        arrived = False
        for reply in grid.pull_messages(under_way):
            if reply.metadata.reply_to_message_id in under_way:
                under_way.discard(reply.metadata.reply_to_message_id)
                arrived = True
                yield reply
        pause = _SHORTEST_PAUSE if arrived else min(2.0 * pause, _LONGEST_PAUSE)
        if under_way and not arrived:
            time.sleep(pause)


def wait_for_roster(grid: Grid, num_clients: int, *, timeout: float) -> Sequence[int]:
    """Wait until at least `num_clients` nodes are connected and return all their ids.

    Raises:
        RosterIncomplete: If they are not there after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < num_clients:
        if time.monotonic() >= deadline:
            raise RosterIncomplete(
                f"the plan declares {num_clients} clients, but {len(nodes)} nodes are connected "
                f"after {timeout:.0f} s: connect the others (in a simulation, "
                f"--federation-config 'num-supernodes={num_clients}'), or declare "
                f"task.num_clients={len(nodes)}"
            )
        time.sleep(0.2)
    return nodes
