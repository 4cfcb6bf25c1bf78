"""Door of the dashboard: one token, its sessions, and few wrong guesses.

The token opens a session; a browser then sends only the session. After a few wrong tokens from an
address, or more from everywhere, no token is compared for a minute, not even the right one. Open
sessions go on.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SHORTEST_TOKEN = 16
SESSION_SECONDS = 12 * 3600
MOST_WRONG_OF_AN_ADDRESS = 10
MOST_WRONG_OF_ALL = 100
WINDOW_SECONDS = 60.0
_MOST_SESSIONS = 100


class WrongToken(Exception):
    """The token is wrong."""


class TooManyGuesses(Exception):
    """Tokens are not compared for the next `seconds`."""

    def __init__(self, seconds: int) -> None:
        """Take the waiting time in seconds."""
        super().__init__(f"too many wrong tokens: try again in {seconds} seconds")
        self.seconds = seconds


def new_token() -> str:
    """A token of 192 random bits."""
    return secrets.token_urlsafe(24)


def check_token(token: str) -> str:
    """The operator's token, checked.

    Raises:
        ValueError: If it is short enough to be guessed, or can't stand in a header.
    """
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ValueError(
            f"the dashboard's token has {len(token)} characters: write at least {SHORTEST_TOKEN}, "
            "letters, digits and signs of ASCII; without one, a new token is made and shown"
        )
    return token


@dataclass(kw_only=True)
class Door:
    """Token and sessions; `now` returns the time in seconds."""

    token: str = field(repr=False)
    now: Callable[[], float] = time.monotonic
    _sessions: dict[str, float] = field(default_factory=dict, repr=False)
    _wrong: deque[tuple[float, str]] = field(default_factory=deque, repr=False)

    def check(self, token: str, address: str) -> None:
        """Compare a token from an address, in constant time.

        Raises:
            TooManyGuesses: If it was not compared.
            WrongToken: If it is wrong.
        """
        self._require_few_guesses(address)
        # Digests have one length, which is all that the time of the comparison depends on.
        if not hmac.compare_digest(_digest(token), _digest(self.token)):
            self._wrong.append((self.now(), address))
            raise WrongToken

    def open_session(self) -> str:
        """A new session's secret, for a browser that knew the token."""
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # the oldest
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session).hex()] = self.now() + SESSION_SECONDS
        return session

    def knows(self, session: str) -> bool:
        """Whether a session is open."""
        # Looked up by its digest: the time of a look-up says nothing of the secret.
        return self._sessions.get(_digest(session).hex(), -math.inf) > self.now()

    def close_session(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(session).hex(), None)

    def _require_few_guesses(self, address: str) -> None:
        now = self.now()
        while self._wrong and self._wrong[0][0] <= now - WINDOW_SECONDS:
            self._wrong.popleft()
        from_address = [when for when, source in self._wrong if source == address]
        from_all = [when for when, _ in self._wrong]
        for times, most in (
            (from_address, MOST_WRONG_OF_AN_ADDRESS),
            (from_all, MOST_WRONG_OF_ALL),
        ):
            if len(times) >= most:
                raise TooManyGuesses(math.ceil(times[0] + WINDOW_SECONDS - now) or 1)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
