"""Mark of a gate in each of its answers to a round: the enforcement of the policy at its site.

The first answer without a mark shows that a node, under the same id, has no gate any more. A mark
is only the site's statement, as is its introduction.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Error, Message

from fl_dp.promise import Enforcement, enforcement_named

from .failures import kind_in
from .message_keys import GATE_KEY

_HOLDS = "holds"


def mark(answer: Message, enforcement: Enforcement) -> Message:
    """Return a gate's answer with its mark, the policy's enforcement at this site.

    The answer has content, or is an error whose reason is one line.
    """
    if answer.has_error():
        error = answer.error
        answer.error = Error(error.code, f"{kind_in(error.reason)}\n{enforcement}")
    else:
        answer.content[GATE_KEY] = ConfigRecord({_HOLDS: str(enforcement)})
    return answer


def enforcement_in(reply: Message) -> Enforcement:
    """The enforcement in an untrusted node's reply; `APP` without a mark."""
    if reply.has_error():
        return enforcement_named((reply.error.reason or "").partition("\n")[2])
    record = reply.content.get(GATE_KEY)
    if not isinstance(record, ConfigRecord):
        return Enforcement.APP
    return enforcement_named(record.get(_HOLDS))
