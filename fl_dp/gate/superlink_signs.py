"""What any answer of a SuperLink tells besides: when its certificate ends, and what time it has.

A certificate that has ended, or clocks that differ, end a node's work. Both are said before.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from fl_dp import clock

MOST_AHEAD, MOST_BEHIND = 5.0, 300.0
"""Seconds by which a node's clock may differ, as Flower's SuperLink takes its signatures."""

_SOON = 30 * 86_400.0  # seconds before its end from which a certificate is spoken of
_COARSE = 2.0  # seconds by which a `Date` may be behind: servers renew it once a second
_LITTLE = 2.0  # seconds of difference that nobody needs to hear of
_PATIENCE = 60.0  # seconds for an answer
_HAS_EXPIRED, _NOT_YET_VALID = 10, 9  # OpenSSL's codes


class NotReached(Exception):
    """Nobody answers, or the SuperLink has no time."""


class LinkLost(Exception):
    """The SuperLink knows this node no more, or can't be trusted: its operator has to act."""


class Signs(NamedTuple):
    """A SuperLink's certificate and clock, as an answer shows them.

    Attributes:
        certificate_ends: Seconds since 1970. None: without TLS.
        clock_ahead: Seconds by which this machine's clock is ahead of the SuperLink's, at least;
            negative: behind. None: the SuperLink does not tell its time.
    """

    certificate_ends: float | None = None
    clock_ahead: float | None = None

    def cautions(self) -> list[str]:
        """Lines for the log of who keeps the node running."""
        lines = []
        if self.certificate_ends is not None:
            left = self.certificate_ends - clock.date()
            if left < _SOON:
                day = datetime.fromtimestamp(self.certificate_ends, UTC).date()
                lines.append(
                    f"the SuperLink's certificate ends on {day}, in {left / 86_400.0:.0f} days: no "
                    "node reaches it then, so ask its operator to renew it"
                )
        if abs(self.clock_ahead or 0.0) > _LITTLE:
            lines.append(f"{self.clock()}: {_SET_CLOCKS}")
        return lines

    def clock(self) -> str:
        """How this machine's clock differs, in words; empty if it does not."""
        ahead = self.clock_ahead or 0.0
        if abs(ahead) <= _LITTLE:
            return ""
        way = "ahead of" if ahead > 0.0 else "behind"
        return f"this machine's clock is {abs(ahead):,.0f} s {way} the SuperLink's"

    def require_clock(self) -> None:
        """Refuse a clock with which no signature is valid.

        Raises:
            LinkLost: The SuperLink would refuse each call.
        """
        if not -MOST_BEHIND <= (self.clock_ahead or 0.0) <= MOST_AHEAD:
            raise LinkLost(f"{self.clock()}, which therefore refuses each call: {_SET_CLOCKS}")


_SET_CLOCKS = "let both machines set their clocks by NTP (`timedatectl set-ntp true`)"


class HttpAnswer(NamedTuple):
    """An answer over HTTP.

    Attributes:
        status: HTTP's.
        content: The body.
        signs: What it tells of the SuperLink.
    """

    status: int
    content: bytes
    signs: Signs


def connection_to(address: str, trust: ssl.SSLContext | None) -> HTTPConnection:
    """A connection to `host:port`, not opened yet; `trust` None: without TLS."""
    if trust is None:
        return HTTPConnection(address, timeout=_PATIENCE)
    return HTTPSConnection(address, timeout=_PATIENCE, context=trust)


def http_answer(
    connection: HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]
) -> HttpAnswer:
    """Make one call.

    Raises:
        NotReached: Nobody answers; the connection is closed then.
        LinkLost: The SuperLink's certificate is not trusted.
    """
    ends = None
    try:
        asked_at = clock.date()
        connection.request(method, path, body, headers)
        if isinstance(connection.sock, ssl.SSLSocket):
            certificate = connection.sock.getpeercert() or {}
            ends = float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))
        response = connection.getresponse()
        content = response.read()
        # Its finalizer would do so, and lose a signal's word to end this process.
        response.close()
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise LinkLost(_words_of(error)) from error
    except (OSError, HTTPException) as error:
        connection.close()
        raise NotReached(f"{error!r}") from error
    signs = Signs(ends, _clock_ahead(response.getheader("date"), asked_at))
    return HttpAnswer(response.status, content, signs)


def look(address: str, trust: ssl.SSLContext) -> Signs:
    """Look at a SuperLink without being a node of it.

    Raises:
        NotReached: Nobody answers.
        LinkLost: Its certificate is not trusted.
    """
    connection = connection_to(address, trust)
    try:
        return http_answer(connection, "GET", "/health", b"", {}).signs
    finally:
        connection.close()


def _clock_ahead(date: str | None, asked_at: float) -> float | None:
    """The least difference that explains a `Date` that came between a moment and now."""
    try:
        told = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None
    return max(asked_at - told - _COARSE, 0.0) or min(clock.date() - told, 0.0)


def _words_of(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _HAS_EXPIRED:
        return (
            "the SuperLink's certificate has expired: its operator has to renew it and start the "
            "SuperLink again; if that was done, look at this machine's clock"
        )
    if error.verify_code == _NOT_YET_VALID:
        return "the SuperLink's certificate is not valid yet: look at this machine's clock"
    return (
        f"the SuperLink's certificate is not trusted ({error.verify_message}): give its "
        "authority's as --root-certificates, and a name that it has as --superlink"
    )
