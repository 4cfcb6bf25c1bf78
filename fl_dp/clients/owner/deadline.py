"""A deadline for each message at the node, after which its SuperNode answers again.

A SuperNode waits without limit for a reply before it takes the next message. So one client that
hangs would silence it for ever, for later runs, too.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

logger = logging.getLogger("flwr.fl_dp.client")

_PROCESS_OF_ONE_MESSAGE = "flwr-clientapp"
_LONGEST = 30 * 86_400.0  # seconds that a watchdog's clock can take, whatever a server writes
_GRACE = 5.0
_EXIT_CODE = 1
_STDERR = 2  # the process's own, even if an app has replaced sys.stderr


def deadline_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """End this process if the message is not answered within its time to live.

    A real SuperNode starts a process for each message. The time counts from the message's receipt,
    as server and node clocks may differ; nobody waits for a later reply. Within a minute the
    SuperNode notices that the process is gone, replies with an error and takes the next message.
    The node's log says where the client hung.

    `numpy_client_app` has it built in. In your own app put it first:

        >>> app = ClientApp(mods=[deadline_mod])

    Elsewhere, as in Flower's simulation, it does nothing: an ended worker is not replaced there.
    """
    if not has_process_of_its_own():
        return call_next(message, context)
    with _watched(min(message.metadata.ttl, _LONGEST)):
        return call_next(message, context)


def has_process_of_its_own() -> bool:
    """Whether this process is one that a SuperNode started for one message."""
    # Not "no simulation": a process of unknown origin must not be ended.
    return Path(sys.argv[0]).stem == _PROCESS_OF_ONE_MESSAGE


@contextmanager
def _watched(seconds: float) -> Iterator[None]:
    watchdog = threading.Timer(seconds, _end, [seconds])
    watchdog.daemon = True
    watchdog.start()
    # Code that holds the interpreter's lock stops every Python thread, but not this one.
    faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=_STDERR)
    try:
        yield
    finally:
        watchdog.cancel()
        faulthandler.cancel_dump_traceback_later()


def _end(seconds: float) -> None:
    logger.error(
        "the client has not answered within the message's time to live of %.0f s, and nobody waits "
        "any longer: its process ends, so that the node can take the next message; it was here:",
        seconds,
    )
    faulthandler.dump_traceback(file=_STDERR)
    os._exit(_EXIT_CODE)
