"""Errors of a node, which reach the server as a code and a class name, never as a text."""

from __future__ import annotations

import logging

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.protocol.flower_compat import ErrorCode, Mod
from fl_dp.secagg import Refused

logger = logging.getLogger("flwr.fl_dp.client")


def guarded(handler: ClientAppCallable, mods: list[Mod] | None = None) -> ClientAppCallable:
    """Run mods, outermost first, and a handler; reply to an exception without its text.

    An exception's text can carry data. It stays readable in the node's own log.
    """
    for mod in reversed(mods or []):
        handler = _wrapped(mod, handler)

    def answer(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as failure:
            logger.exception("the client failed; the server is told only the kind of error")
            reason = type(failure).__name__
            if isinstance(failure, Refused):
                reason += f" {failure.code}"  # one of a few words, none of them made of data
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    return answer


def _wrapped(mod: Mod, handler: ClientAppCallable) -> ClientAppCallable:
    return lambda message, context: mod(message, context, handler)
