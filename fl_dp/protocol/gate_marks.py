"""Mark of a gate in each of its answers to a round: what keeps the app there to the policy.

A node that comes back without its gate, under the same id, is known by its first answer. A mark is
the site's word, as its introduction is.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Error, Message

from fl_dp.promise import Enforcement, enforcement_named

from .failures import kind_in
from .keys import GATE_KEY

_HOLDS = "holds"


def mark(answer: Message, enforcement: Enforcement) -> Message:
    """Return an answer of a gate with its mark.

    Args:
        answer: With content, or an error whose reason is one line.
        enforcement: What keeps apps of this site to the policy.
    """
    if answer.has_error():
        error = answer.error
        answer.error = Error(error.code, f"{kind_in(error.reason)}\n{enforcement}")
    else:
        answer.content[GATE_KEY] = ConfigRecord({_HOLDS: str(enforcement)})
    return answer


def enforcement_in(reply: Message) -> Enforcement:
    """Return what a reply of an untrusted node shows; `APP` where it has no mark."""
    if reply.has_error():
        return enforcement_named((reply.error.reason or "").partition("\n")[2])
    record = reply.content.get(GATE_KEY)
    return enforcement_named(record.get(_HOLDS) if isinstance(record, ConfigRecord) else None)
