"""Common base of fl-dp's own grids, which need no process of Flower's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from flwr.app import Message
from flwr.serverapp import Grid

from .flower_compat import is_simulation


class OwnGrid(Grid):
    """A grid of simulated nodes and of one run, for Flower before and from 1.43 on.

    Attributes:
        answers_in_turn: Whether nodes answer one after the other: each has its own time to answer.
    """

    answers_in_turn: ClassVar[bool] = False

    def host(self, num_nodes: int) -> None:
        """Learn how many nodes a plan declares. A grid with given nodes ignores it."""
        return

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Refuse: this grid has no run of Flower's."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse, as Flower deprecated it: make a `Message`."""
        raise NotImplementedError

    def pull_messages(  # type: ignore[override]  # as in Flower 1.43, and before
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        """Return replies that have come, as `replies_to` does.

        `message_ids` is the name of `reply_to_message_ids` before Flower 1.43.

        Raises:
            TypeError: Neither is given, or both are.
        """
        if (reply_to_message_ids is None) == (message_ids is None):
            raise TypeError("say which replies: pull_messages(reply_to_message_ids=[...])")
        wanted = message_ids if reply_to_message_ids is None else reply_to_message_ids
        return self.replies_to(list(wanted or ()))

    @abstractmethod
    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """Replies to these messages that have come; perhaps not all at once."""


def simulates_nodes(grid: Grid) -> bool:
    """Tell whether all of a grid's nodes are simulated: that protects nobody from the user."""
    return is_simulation(grid) or isinstance(grid, OwnGrid)
