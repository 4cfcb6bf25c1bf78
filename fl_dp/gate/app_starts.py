"""Starts of apps before their runs, by a message that no answer leaves of.

An app that can't be loaded, or lacks its data, would be answered for by noise, and charged. Its
owner is told so before, by the log alone. A start may read data and costs nothing, so the server
learns nothing of it: no answer and no instant depends on how it went.
"""

from __future__ import annotations

import logging

from flwr.app import Message, RecordDict

from fl_dp import clock
from fl_dp.clients.owner.running_app import RunningApp
from fl_dp.protocol.message_keys import IDENTITY_ACTION

from .gate_site import Site

logger = logging.getLogger("flwr.fl_dp.client")

_FAILED = "%s does not start here, and would be answered for by noise: %s; the server is not told"


class AppStarts:
    """One start a run, and one at a time."""

    def __init__(self, site: Site) -> None:
        """Start apps of a site."""
        self._site = site
        self._runs: set[int] = set()
        self._app: RunningApp | None = None  # that is starting
        self._due = 0.0

    def begin(self, query: Message, app: RunningApp, seconds: float) -> None:
        """Start an app by a query without content, unless its run has been tried.

        It has so many seconds, and fewer where a message for an app comes meanwhile.
        """
        run_id = query.metadata.run_id
        if self._app is None and run_id not in self._runs:
            self._runs.add(run_id)
            self._app, self._due = app, clock.now() + seconds
            self._site.offer(query, RecordDict(), once=True)

    def look(self) -> None:
        """Tell how a start went, if it has ended or its time is over."""
        if self._app is not None and (self._site.has_reply or clock.now() >= self._due):
            self.end(latest=clock.now())

    def end(self, latest: float) -> None:
        """Tell how a start went, at the latest at a time of `fl_dp.clock`."""
        if self._app is None:
            return
        app, self._app = self._app, None
        try:
            reply = self._site.reply(min(latest, self._due))
        except TimeoutError:
            logger.error(_FAILED, app, "it has not come back in time")
            return
        except ValueError as error:
            logger.error(_FAILED, app, error)
            return
        # Apps know nothing of this query, and Flower says so once one has been loaded.
        if reply.has_error() and IDENTITY_ACTION not in str(reply.error.reason):
            logger.error(_FAILED, app, f"{reply.error.reason!r:.200}")
        else:
            logger.info("%s starts here", app)
