"""Answers of the process that runs mods: which app it is, who verifies apps, who may fork.

Mods run in the app's process, as `numpy_client_app` builds them in. Another host of mods, such as a
gate at the SuperNode, answers these questions in another way:

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
    """The process of the app that a message is for, as Flower starts one.

    Other hosts override the methods that differ.
    """

    def running_app(self) -> RunningApp | None:
        """Return the app that the message is for; None if that can't be seen."""
        return running_app()

    def enforcement(self) -> Enforcement | None:
        """Return the enforcement of the charge; None: the app itself."""
        return None

    def message_id(self) -> str | None:
        """Return Flower's id of the message, which is charged once; None: each copy is charged."""
        return None

    def apps_are_verified(self) -> bool | None:
        """Tell whether no app can leave out what the owner requires; None: it can't be seen."""
        return apps_are_verified()

    def apart(self, work: Callable[[], NDArray[np.float64]], size: int, *, until: float) -> Apart:
        """Return work in a process of its own.

        Args:
            work: Returns float64 of shape `(size,)`.
            size: Number of values in its result.
            until: Time by `clock.now` at which it is over.

        Raises:
            Refused: This host can't fork a process that reaches the app.
        """
        return Apart(work, size, until=until)


_OF_THE_APP = ModHost()
_present: ContextVar[ModHost | None] = ContextVar("mod_host", default=None)


def present_host() -> ModHost:
    """Return the host of the mods that run now; by default the app's own process."""
    return _present.get() or _OF_THE_APP


@contextmanager
def hosted_by(host: ModHost) -> Iterator[None]:
    """Set the host of this thread's mods for the block."""
    token = _present.set(host)
    try:
        yield
    finally:
        _present.reset(token)
