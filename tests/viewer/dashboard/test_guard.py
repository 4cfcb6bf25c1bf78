"""Checks of every request: host, origin, token, length; and headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from dashboards import OWN, PORT, TOKEN, URL, dashboard_of, pretend_command, reader, stranger
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message
from written_runs import write_run

from fl_dp.viewer.dashboard.access import MOST_WRONG_OF_AN_ADDRESS, Door
from fl_dp.viewer.dashboard.started_runs import StartedRuns

PAGES = ["/", "/run/a", "/points/a", "/events/a", "/image/a/images.png", "/compare", "/budgets"]
PAGES += ["/start", "/started/a", "/nowhere", "//", "/login/", "/login%3F", "/static"]
CHANGES = ["/logout", "/price", "/start", "/stop/a"]
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> ASGIApp:
    folder = tmp_path_factory.mktemp("dashboard")
    write_run(folder / "runs" / "a")
    # Each look at the clock is a minute later: no test's wrong tokens lock out the next one.
    door = Door(token=TOKEN, now=map(float, count(0, 60)).__next__)
    started = StartedRuns(root=folder / "runs", command=pretend_command(folder))
    return dashboard_of(folder / "runs", door=door, started=started).site()


@pytest.fixture
def outside(site: ASGIApp) -> TestClient:
    return stranger(site)


@pytest.fixture
def inside(site: ASGIApp) -> TestClient:
    return reader(site)


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_shown_without_the_token(outside: TestClient, page: str) -> None:
    assert outside.get(page).status_code == 401
    answer = outside.get(page, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("page", CHANGES)
def test_nothing_is_changed_without_the_token(outside: TestClient, page: str) -> None:
    assert outside.post(page, headers=OWN).status_code == 401


def test_the_token_opens_a_session_whose_cookie_no_script_reads(outside: TestClient) -> None:
    answer = outside.post("/login", data={"token": TOKEN}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert outside.get("/").status_code == 200
    assert outside.post("/logout", headers=OWN).status_code == 303
    assert outside.get("/").status_code == 401


def test_under_tls_the_cookie_goes_to_this_host_over_tls_alone(tmp_path: Path) -> None:
    secure = dashboard_of(tmp_path, secure=True).site()
    client = TestClient(secure, base_url="https://127.0.0.1:8765", follow_redirects=False)
    own = {"Origin": "https://127.0.0.1:8765"}
    answer = client.post("/login", data={"token": TOKEN}, headers=own)
    assert answer.headers["set-cookie"].startswith("__Host-fl-dp-session")
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    # A page that plain HTTP brought is another origin.
    assert client.post("/logout", headers=OWN).status_code == 403


def test_a_program_sends_the_token_in_a_header(outside: TestClient) -> None:
    assert outside.get("/points/a", headers=BEARER).status_code == 200
    for wrong in ("Bearer wrong", "Bearer", "Basic " + TOKEN, TOKEN, ""):
        assert outside.get("/points/a", headers={"Authorization": wrong}).status_code == 401


def test_a_token_in_an_address_opens_nothing(outside: TestClient) -> None:
    assert outside.get(f"/?token={TOKEN}").status_code == 401
    assert outside.post(f"/login?token={TOKEN}", headers=OWN).status_code == 401


def test_a_token_guessed_wrong_10_000_times_gets_in_never(tmp_path: Path) -> None:
    site = dashboard_of(tmp_path).site()
    headers = {"host": f"127.0.0.1:{PORT}", "authorization": "Bearer a-wrong-token-of-24-chars"}
    statuses = asyncio.run(statuses_of(site, headers, times=10_000))
    assert statuses.count(401) == MOST_WRONG_OF_AN_ADDRESS
    assert statuses.count(429) == 10_000 - MOST_WRONG_OF_AN_ADDRESS
    right = headers | {"authorization": f"Bearer {TOKEN}"}
    assert asyncio.run(statuses_of(site, right, times=1)) == [429]


def test_the_login_form_counts_guesses_like_the_header(tmp_path: Path) -> None:
    client = stranger(dashboard_of(tmp_path).site())
    answers = [client.post("/login", data={"token": str(n)}, headers=OWN) for n in range(12)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) > 0
    assert client.get("/", headers=BEARER).status_code == 429


async def statuses_of(site: ASGIApp, headers: dict[str, str], *, times: int) -> list[int]:
    """Ask for `/` without what makes a test's client slow."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": raw, "query_string": b""}
    statuses = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    for _ in range(times):
        await site({**scope, "client": ("127.0.0.1", 50000), "scheme": "http"}, receive, send)
    return statuses


FOREIGN = (
    "evil.example evil.example:8765 127.0.0.1 127.0.0.1:80 127.0.0.1:8765.evil localhost:8765 "
    "127.0.0.1:8765@evil 127.0.0.1:8765/x"
)


@pytest.mark.parametrize("host", [*FOREIGN.split(), ""])
def test_another_host_s_name_is_refused(inside: TestClient, host: str) -> None:
    """Otherwise a page of evil.example whose name comes to mean this machine could read all."""
    for path in ("/", "/login", "/static/page.css"):
        assert inside.get(path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("page", [*CHANGES, "/login"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8765"},
        {"Origin": URL, "Sec-Fetch-Site": "cross-site"},
        {"Origin": URL, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_s_page_changes_nothing(
    inside: TestClient, page: str, headers: dict[str, str]
) -> None:
    data = {"token": TOKEN}
    assert inside.post(page, data=data, headers=headers).status_code == 403
    assert inside.get("/").status_code == 200  # still logged in


def test_another_site_s_page_reads_nothing(inside: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert inside.get("/image/a/images.png", headers=headers).status_code == 403
    assert inside.get("/points/a", headers={"Origin": "http://evil.example"}).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert inside.get("/", headers=link).status_code == 200  # a link to us is no harm


@pytest.mark.parametrize("page", ["/", "/login", "/static/run.js", "/points/a", "/nowhere"])
def test_no_answer_lets_a_browser_run_or_load_anything_from_elsewhere(
    inside: TestClient, page: str
) -> None:
    headers = inside.get(page).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "connect-src", "form-action"):
        assert policy[kind] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_pages_are_kept_by_no_cache(inside: TestClient) -> None:
    for page in ("/", "/run/a", "/points/a"):
        assert inside.get(page).headers["cache-control"] == "no-store"


def test_a_form_without_a_length_or_with_a_large_one_is_not_read(inside: TestClient) -> None:
    def endless() -> Iterator[bytes]:  # in chunks, without a length
        yield b"token="

    assert inside.post("/price", content=endless(), headers=OWN).status_code == 411
    large = b"x" * (64 * 1024 + 1)
    assert inside.post("/price", content=large, headers=OWN).status_code == 413


def test_nothing_of_starting_is_there_unless_it_was_allowed(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    client = reader(dashboard_of(tmp_path).site())
    assert client.get("/start").status_code == 404
    for page in ("/price", "/start", "/stop/a"):
        assert client.post(page, headers=OWN).status_code in (404, 405)
    assert "/start" not in client.get("/").text
