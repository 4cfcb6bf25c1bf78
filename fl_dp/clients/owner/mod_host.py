"""Answers of the process that runs mods: which app it is, who verifies apps, who may fork.

By default that is the app's process (`numpy_client_app`). Another host, such as a gate at the
SuperNode, answers in its own way:

    >>> with hosted_by(gate):
    ...     reply = answer(message, context)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from fl_dp.promise import Enforcement

from .app_verification import apps_are_verified
from .cut_off import Apart
from .running_app import RunningApp, running_app


class ModHost:
    """The process of a message's app, as Flower starts one; other hosts override methods."""

    def running_app(self) -> RunningApp | None:
        """The message's app; None if that can't be seen."""
        return running_app()

    def bundle_hash(self) -> str | None:
        """SHA-256 of the message's app bundle, as this host has computed it.

        None: the host is the app itself, which could say what it likes.
        """
        return None

    def enforcement(self) -> Enforcement | None:
        """The enforcement of the charge; None: the app itself."""
        return None

    def message_id(self) -> str | None:
        """Flower's id of the message, which is charged once; None: each copy is charged."""
        return None

    def apps_are_verified(self) -> bool | None:
        """Whether no app can leave out what the owner requires; None: it can't be seen."""
        return apps_are_verified()

    def once_sent(self, work: Callable[[], None]) -> None:
        """Do work once the answer has left, which an app's process does not learn: at once."""
        work()

    def apart(self, work: Callable[[], NDArray[np.float64]], size: int, *, until: float) -> Apart:
        """Return work in its own process; see `Apart`.

        Raises:
            Refused: This host can't fork a process that reaches the app.
        """
        return Apart(work, size, until=until)


_OF_THE_APP = ModHost()
_present: ContextVar[ModHost | None] = ContextVar("mod_host", default=None)


def present_host() -> ModHost:
    """The host of the mods that run now; by default the app's own process."""
    return _present.get() or _OF_THE_APP


@contextmanager
def hosted_by(host: ModHost) -> Iterator[None]:
    """Set the host of this thread's mods for the block."""
    token = _present.set(host)
    try:
        yield
    finally:
        _present.reset(token)
