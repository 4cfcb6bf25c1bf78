"""Failures of simulated clients, with tracebacks: a simulation protects nobody from its user.

A real node sends only an error's kind, as its text can hold data. No real node sends anything of
this file, and no server of real nodes reads it.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message

_KEY = "fl-dp-failure"
_TEXT, _WHOLE_NODE = "text", "of-all"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure in a simulated client's work.

    Attributes:
        text: The traceback.
        whole_node: Whether the node contributes nothing: each unit that was to take part failed.
    """

    text: str
    whole_node: bool = True

    @classmethod
    def from_exception(cls, error: BaseException, *, whole_node: bool = True) -> Failure:
        """An exception as a failure."""
        text = "".join(traceback.format_exception(error)).strip()
        return cls(text=text, whole_node=whole_node)

    @property
    def kind(self) -> str:
        """Last line: failures of one kind differ only in their clients."""
        return self.text.rpartition("\n")[2]

    def attach_to(self, reply: Message) -> None:
        """Add the failure to a reply."""
        reply.content[_KEY] = ConfigRecord({_TEXT: self.text, _WHOLE_NODE: self.whole_node})


def reason_in_full(kind: str, failure: Failure) -> str:
    """An error reply's reason: its kind as a real node sends it, and the traceback."""
    return f"{kind}\n{failure.text}"


def kind_in(reason: str | None) -> str:
    """The kind with which an error's reason begins."""
    return (reason or "").partition("\n")[0]


def take_failure(reply: Message) -> Failure | None:
    """Remove and return the failure in a simulated node's reply; None: there is none.

    An error reply of Flower's engine holds its worker's traceback.
    """
    if reply.has_error():
        kind, _, text = (reply.error.reason or "").partition("\n")
        return Failure(text=text.strip() or kind)
    record = reply.content.pop(_KEY, None)
    if not isinstance(record, ConfigRecord):
        return None
    return Failure(text=str(record[_TEXT]), whole_node=bool(record[_WHOLE_NODE]))
