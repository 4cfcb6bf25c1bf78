"""Failures of simulated clients, told whole: nobody is protected from the one who simulates.

A real node tells the kind of an error alone, as its text can hold data. Nothing here is sent by
one, nor read by a server whose nodes are not simulated.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message

_KEY = "fl-dp-failure"
_TEXT, _OF_ALL = "text", "of-all"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure in a simulated client's work.

    Attributes:
        text: Its traceback.
        of_all: Whether the node contributes nothing: each unit that was to take part failed.
    """

    text: str
    of_all: bool = True

    @classmethod
    def of(cls, raised: BaseException, *, of_all: bool = True) -> Failure:
        """Return what was raised, as a failure."""
        return cls(text="".join(traceback.format_exception(raised)).strip(), of_all=of_all)

    @property
    def kind(self) -> str:
        """Last line: two failures of one kind differ in their clients alone."""
        return self.text.rpartition("\n")[2]

    def attach_to(self, reply: Message) -> None:
        """Let a reply tell it, besides what it says."""
        reply.content[_KEY] = ConfigRecord({_TEXT: self.text, _OF_ALL: self.of_all})


def reason_in_full(kind: str, failure: Failure) -> str:
    """Return the reason of an error reply: its kind as a real node tells it, and the traceback."""
    return f"{kind}\n{failure.text}"


def kind_in(reason: str | None) -> str:
    """Return the kind that an error's reason begins with."""
    return (reason or "").partition("\n")[0]


def failure_told_by(reply: Message) -> Failure | None:
    """Return the failure that a simulated node's reply tells, and take it out; None: there is none.

    An error reply that Flower's engine made holds the traceback of its worker.
    """
    if reply.has_error():
        kind, _, text = (reply.error.reason or "").partition("\n")
        return Failure(text=text.strip() or kind)
    told = reply.content.pop(_KEY, None)
    if not isinstance(told, ConfigRecord):
        return None
    return Failure(text=str(told[_TEXT]), of_all=bool(told[_OF_ALL]))
