"""Error replies in the server's own words: their reasons come from nodes and can hold data."""

from __future__ import annotations

import builtins
import re
from typing import NamedTuple

from flwr.app import Error

from fl_dp.protocol.failures import kind_in
from fl_dp.protocol.flower_compat import ErrorCode

MOD_ADVICE = (
    "leave it out of the client app's mods: fl-dp clips and adds the noise, and the mod fails in "
    "every round without Flower's own wrapper at the server"
)
LEFTOVER_MODS = ("secaggplus_mod", "secagg_mod", "fixedclipping_mod", "adaptiveclipping_mod")
"""Flower's mods that need a counterpart at the server which fl-dp replaces."""

_OLD_API = (
    "its client app is made the old way, ClientApp(client_fn=...), which answers no message of "
    "today's strategies. Write instead: from fl_dp.clients import numpy_client_app; "
    "app = numpy_client_app(client_fn)"
)
_OLD_API_OR_MOD = (
    "its client app reads the messages of Flower's older API. If it is made by "
    "ClientApp(client_fn=...), write instead: from fl_dp.clients import numpy_client_app; "
    "app = numpy_client_app(client_fn). If it has fixedclipping_mod or adaptiveclipping_mod from "
    f"flwr.client.mod, {MOD_ADVICE}"
)


class Meaning(NamedTuple):
    """An error reply in the server's words, and whether every round would end in it."""

    text: str
    lasting: bool = True


_REFUSED_SUMS = {
    "stale": "it has answered that sum, or a later one",
    "terms": "its terms are not what the node was sent, or contradict themselves",
    "directory": "it has not taken this run's keys: an earlier line, or its log, says why",
    "policy": "its owner does not allow such a sum",
    "view": "members were told of other repliers",
    "thin": "too few neighbours replied",
    "quorum": "too few members have seen the same repliers",
    "budget": "its own budget is exhausted",
    "late": "its work was not done in time or ended its process, and it takes no further part",
    "busy": "it still works on an earlier message, and can be asked again",
}
# A pattern of an error's reason and its meaning: the reason itself may hold data and stays here.
_KNOWN_REASONS = (
    (r"Invalid message type: query", Meaning(_OLD_API)),
    (r"fitins\.parameters", Meaning(_OLD_API_OR_MOD)),
    (r"No evaluate function registered", Meaning("its client app has no @app.evaluate()")),
    (r"secaggplus_configs", Meaning(f"it has secaggplus_mod; {MOD_ADVICE}")),
    *((rf"^{mod} ", Meaning(f"it has {mod}; {MOD_ADVICE}")) for mod in LEFTOVER_MODS),
    (r"^NodeConfigError$", Meaning("its owner's --node-config can't be meant, see its log")),
    (r"^StorageUnavailable$", Meaning("this node can't answer, its log says why", lasting=False)),
    (r"^LedgerCorrupted$", Meaning("its ledger is not as it wrote it, see its log")),
    (r"^PolicyRefusal$", Meaning("its owner does not allow what was asked", lasting=False)),
    *(
        (rf"^Refused {code}$", Meaning(f"it refused a secure sum: {text}", lasting=False))
        for code, text in _REFUSED_SUMS.items()
    ),
)
_KNOWN_CODES = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: Meaning("its client app can't be loaded, see its log"),
    ErrorCode.NODE_UNAVAILABLE: Meaning("the node is gone", lasting=False),
    ErrorCode.MESSAGE_UNAVAILABLE: Meaning("the message was no longer there", lasting=False),
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: Meaning("its reply was too late", lasting=False),
    ErrorCode.CLIENT_APP_CRASHED: Meaning("its process ended", lasting=False),
    ErrorCode.INVALID_FAB: Meaning("it has another app bundle"),
}
_ENGINE_REASON = "<class 'ray."
_BY_RAY = r"^<class 'ray\.exceptions\.RayTaskError"
_RAISED = (
    re.compile(r"^(?:<class ')?([A-Za-z]\w*)(?:'>|\(|$)"),
    # Flower's simulation engine hands on what Ray says: the app's own exception comes first.
    re.compile(rf"(?s){_BY_RAY}.*?\n([A-Za-z]\w*)(?::[^\n]*)?\n\nThe above exception was"),
    re.compile(rf"{_BY_RAY}\(([A-Za-z]\w*)\)"),
)


def meaning_of(error: Error) -> Meaning | None:
    """An error reply's meaning, in the server's own words; None if unknown.

    The reason comes from the node and can hold data: it is matched, and never passed on.
    """
    reason = error.reason or ""
    if not reason.startswith(_ENGINE_REASON):
        reason = kind_in(reason)  # what follows is a traceback of a simulated node
    for pattern, meaning in _KNOWN_REASONS:
        if re.search(pattern, reason):
            return meaning
    if error.code in _KNOWN_CODES:
        return _KNOWN_CODES[error.code]
    for raised in filter(None, (pattern.match(reason) for pattern in _RAISED)):
        if isinstance(getattr(builtins, raised[1], None), type):
            return Meaning(f"its client app raised {raised[1]}", lasting=False)
    return None
