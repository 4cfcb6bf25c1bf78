"""Checks of every request before a page, and headers of every answer.

- A request names this dashboard as its host: a foreign name that resolves to this machine (DNS
  rebinding) is refused.
- A request that changes something comes from a page of this dashboard, or has the token itself.
- Everything but the login form and the static files needs the token or a session.
- No page runs a script, loads a file or is framed from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Door, TooManyGuesses, WrongToken

LARGEST_BODY = 64 * 1024
LOGIN = "/login"
_OPEN = ("/static/",)

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer`, browsers would send our own forms with the origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI application around the pages."""

    def __init__(
        self, pages: ASGIApp, *, door: Door, hosts: Iterable[str], secure: bool, cookie: str
    ) -> None:
        """Take the protected pages and their protection.

        `hosts` are the `Host` headers that name this dashboard, each with its port; `secure` says
        whether it speaks TLS, and `cookie` names the session's cookie.
        """
        self._pages, self._door, self._cookie = pages, door, cookie
        self._hosts = frozenset(host.lower() for host in hosts)
        self._scheme = "https" if secure else "http"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._pages(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if self._scheme == "https":
                    headers["Strict-Transport-Security"] = "max-age=31536000"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refusal(Request(scope))
        await (refused or self._pages)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """The refusal of a request; None if the page may be shown."""
        headers = request.headers
        return (
            self._foreign_host(headers)
            or _unusable(request)
            or self._foreign_page(request)
            or self._unknown_caller(request)
        )

    def _foreign_host(self, headers: Headers) -> Response | None:
        named = headers.getlist("host")
        if len(named) == 1 and named[0].lower() in self._hosts:
            return None
        return _plain(
            421, "this is not the host that you asked for: start the dashboard with --name HOST"
        )

    def _foreign_page(self, request: Request) -> Response | None:
        """Refuse requests that another site's page sends with our reader's cookies."""
        headers = request.headers
        own = f"{self._scheme}://{headers['host']}".lower()
        origins = headers.getlist("origin")
        site = headers.get("sec-fetch-site", "none")
        if any(origin.lower() != own for origin in origins):
            return _plain(403, "refused: another site's page sent this")
        if request.method not in ("GET", "HEAD"):
            has_token = "authorization" in headers
            if site not in ("same-origin", "none") or not (origins or has_token):
                return _plain(403, "refused: no page of this dashboard sent this")
        elif site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return _plain(403, "refused: another site's page asks for this")
        return None

    def _unknown_caller(self, request: Request) -> Response | None:
        path = request.scope["path"]  # `request.url` would cut it at a quoted question mark
        if path == LOGIN or path.startswith(_OPEN):
            return None
        authorization = request.headers.get("authorization")
        if authorization is not None:
            kind, _, token = authorization.partition(" ")
            try:
                if kind.lower() != "bearer":
                    raise WrongToken
                self._door.check(token.strip(), address_of(request))
            except TooManyGuesses as error:
                return too_many(error)
            except WrongToken:
                return _unauthorized("wrong token")
            return None
        session = session_of(request, self._cookie)
        if session is not None and self._door.knows(session):
            return None
        wants_page = "text/html" in request.headers.get("accept", "")
        if request.method == "GET" and wants_page:
            return RedirectResponse(LOGIN, status_code=303)
        return _unauthorized("log in, or send the token in an Authorization: Bearer header")


def session_of(request: Request, cookie: str) -> str | None:
    """The session that a request names."""
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(cookie)
    except CookieError:
        return None
    return None if morsel is None else morsel.value


def address_of(request: Request) -> str:
    """The address a request came from; headers are ignored."""
    return "" if request.client is None else request.client.host


def too_many(error: TooManyGuesses) -> Response:
    """The answer to an address with too many guesses."""
    return _plain(429, str(error), {"Retry-After": str(error.seconds)})


def _unusable(request: Request) -> Response | None:
    if request.method not in ("GET", "HEAD", "POST"):
        return _plain(405, "use GET, HEAD or POST", {"Allow": "GET, HEAD, POST"})
    if request.method == "POST":
        length = request.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return _plain(411, "say the length of what you send")
        if len(length) > 9 or int(length) > LARGEST_BODY:
            return _plain(413, f"a form has at most {LARGEST_BODY} bytes")
    return None


def _unauthorized(text: str) -> Response:
    return _plain(401, text, {"WWW-Authenticate": 'Bearer realm="fl-dp dashboard"'})


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", status_code=status, headers=dict(headers or {}))
