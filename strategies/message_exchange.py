"""Messages out and replies in, a window at a time.

Flower's `send_and_receive` keeps every reply in memory until the last is in, and its simulation
engine slows down with each waiting message. Here a window bounds the open messages, and replies
are handed over on arrival.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from fl_dp import clock
from fl_dp.protocol.flower_compat import is_simulation
from fl_dp.protocol.own_grid import OwnGrid, simulates_nodes

from .log import Log

logger = logging.getLogger("flwr.fl_dp")

Ask: TypeAlias = Callable[[Iterable[Message], float], Iterator[Message]]
"""Exchange within a round: takes messages and seconds to wait, yields at most one reply each.

Nothing is sent before the first reply is taken. A reply may be an error, or come from any node:
check `reply.has_error()` and `reply.metadata.src_node_id`.
"""

_SIMULATION_WINDOW = 64
BATCH = 32
"""Number of messages that are pushed or pulled at once."""
SHORTEST_PAUSE = 0.02
"""Seconds before a grid is first polled again."""
_LONGEST_PAUSE, _BACKOFF = 0.25, 1.25
_LOOK_AGAIN = 5.0  # seconds between looks at which nodes are there, while nobody answers
_LONGEST_SILENCE = 300.0  # of simulated nodes: Ray starts in 4 s, and in minutes on a busy machine
_DAY = 86_400.0
ATTEMPTS = 3
"""Times that a silent node is asked in an exchange with reminders."""


def default_window(grid: Grid) -> int | None:
    """A grid's default window: bounded in simulations, none for real nodes.

    Flower's simulation engine looks ten times a second, for every node, at every open message. A
    smaller window leaves its workers (32 at most) idle; a larger one only makes it look longer.
    """
    return _SIMULATION_WINDOW if is_simulation(grid) else None


def patience(grid: Grid, timeout: float) -> float:
    """Seconds of silence after which nodes are given up before a training.

    Simulated nodes are never away, with any engine.
    """
    return max(timeout, _LONGEST_SILENCE) if simulates_nodes(grid) else timeout


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    window: int | None,
    timeout: float,
    remind: Callable[[], Iterable[Message]] | None = None,
    patient: bool = False,
) -> Iterator[Message]:
    """Send `messages` and yield replies as they arrive, at most one per message.

    A reply belongs to the message it names, whatever its sender: Flower may answer itself for a
    node that is gone. Where it does not (a nightly build of 1.43), such a node is not waited for
    either. Error replies are yielded, too. No yielded reply is kept; at most 32 wait here.
    The grid's exceptions propagate; Flower's own grids repeat a failed call without limit.

    Args:
        grid: Flower's grid.
        messages: Taken one at a time. Each has its own time to live; one that ends with `timeout`
            keeps slow nodes from working for nothing.
        window: Most messages without a reply; None stands for `default_window`.
        timeout: Seconds after which missing replies are given up. Where nodes answer in turn, each
            has that time.
        remind: Called after each third of `timeout` for messages to send again; a reply to any of
            the messages counts.
        patient: Whether to wait for simulated nodes as long as `patience` says, anew after each
            answer; their messages do not expire.
    """
    window = default_window(grid) if window is None else window
    unhurried = patient and simulates_nodes(grid)
    # One that takes long must not decide whether those after it are asked.
    in_turn = isinstance(grid, OwnGrid) and grid.answers_in_turn
    if unhurried:
        timeout, messages = patience(grid, timeout), map(_lasting, messages)
    deadline = clock.now() + timeout
    unsent = iter(messages)
    # After 1/3 and 2/3 of the time-out.
    reminders = deque(deadline - timeout * rest / ATTEMPTS for rest in range(ATTEMPTS - 1, 0, -1))
    under_way: dict[str, int | None] = {}  # messages without a reply, and their nodes if known
    pause = SHORTEST_PAUSE
    next_look = clock.now() + _LOOK_AGAIN
    while (now := clock.now()) < deadline:
        if remind is not None and reminders and now >= reminders[0]:
            reminders.popleft()
            unsent = chain(unsent, remind())
        _top_up(grid, unsent, under_way, window)
        if not under_way:
            return
        idle = True
        # In batches: a grid reads all the replies that it is asked for into memory.
        for asked in batches(list(under_way)):
            if clock.now() >= deadline:
                return
            # A generator: no local name holds a reply after it is yielded.
            replies = deque(
                reply
                for reply in grid.pull_messages(asked)
                if _was_under_way(reply.metadata.reply_to_message_id, under_way)
            )
            if replies:
                idle = False
                if unhurried or in_turn:
                    deadline = clock.now() + timeout
                # The next are sent before these are handed over: no node waits for our arithmetic.
                _top_up(grid, unsent, under_way, window)
            while replies:
                yield replies.popleft()
        if idle and clock.now() >= next_look and not simulates_nodes(grid):
            _give_up_those_gone(grid, under_way)
            next_look = clock.now() + _LOOK_AGAIN
        if idle:
            clock.sleep(min(pause, deadline - clock.now()))
            pause = longer(pause)
        else:
            pause = SHORTEST_PAUSE


def _give_up_those_gone(grid: Grid, under_way: dict[str, int | None]) -> None:
    """Wait no longer for nodes that Flower no longer lists."""
    present = {None, *grid.get_node_ids()}
    gone = [message_id for message_id, node in under_way.items() if node not in present]
    for message_id in gone:
        del under_way[message_id]
    if gone:
        logger.warning("%d nodes are gone, and their replies are not waited for", len(gone))


def _top_up(
    grid: Grid, unsent: Iterator[Message], under_way: dict[str, int | None], window: int | None
) -> None:
    """Send until the window is full or nothing is left."""
    while True:
        room = BATCH
        if window is not None:
            room = min(BATCH, window - len(under_way))
        if room <= 0:
            return
        batch = list(islice(unsent, room))
        if not batch:
            return
        pushed = grid.push_messages(batch)  # which gives each its id
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in batch}
        # A message that could not be stored has no id: its client is missing.
        under_way.update((sent, nodes.get(sent)) for sent in pushed if sent)


def _lasting(message: Message) -> Message:
    message.metadata.ttl = _DAY
    return message


def longer(pause: float) -> float:
    """The next pause in seconds, after one without a reply."""
    return min(_BACKOFF * pause, _LONGEST_PAUSE)


def batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield at most `BATCH` ids at a time: a grid reads all their replies into memory."""
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _was_under_way(message_id: str, under_way: dict[str, int | None]) -> bool:
    """Whether a message waited for its reply; then it no longer does."""
    if message_id not in under_way:
        return False
    del under_way[message_id]
    return True


def one_of_each(replies: Iterable[Message], nodes: Container[int], log: Log) -> Iterator[Message]:
    """Yield every error reply, and at most one other per asked node."""
    answered: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        if reply.has_error():
            yield reply
        # A second reply of one node would move a sum by more than was charged.
        elif node not in nodes or node in answered:
            log.warn_once("a reply came from a node that was not asked, or twice; it is ignored")
        else:
            answered.add(node)
            yield reply


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The nodes of a grid, and how long their answers are waited for.

    Attributes:
        grid: Flower's grid.
        window: Number of nodes that work at the same time; None leaves it to the grid.
        timeout: Seconds to wait for answers.
        roster_timeout: Seconds to wait for nodes to connect, and for answers that touch no data.
    """

    grid: Grid
    window: int | None
    timeout: float
    roster_timeout: float

    @property
    def rehearsal_timeout(self) -> float:
        """Seconds to wait for answers that touch no data; at most `timeout`."""
        return min(self.timeout, self.roster_timeout)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Send messages and yield the replies as they arrive. See `exchange`."""
        return exchange(self.grid, messages, window=self.window, timeout=self.timeout)

    def asking(self, *, patient: bool = False) -> Ask:
        """An `Ask` on the grid. See `asking`."""
        return asking(self.grid, window=self.window, patient=patient)


def asking(grid: Grid, *, window: int | None, patient: bool = False) -> Ask:
    """An `Ask` on a grid; its messages live no longer than its time-out.

    `window` and `patient` are those of `exchange`.
    """

    def ask(messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        ready = list(messages)
        for message in ready:
            message.metadata.ttl = timeout  # nobody works for an answer that is not waited for
        return exchange(grid, ready, window=window, timeout=timeout, patient=patient)

    return ask
