"""The page for Prometheus: what a scrape gets, from where, and that it tells no time of a round."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fl_dp.app.tracking import RunStart, TrackedRun
from fl_dp.app.tracking.metrics_page import MetricsPage

NOON = 1_800_000_000.0 - 1_800_000_000.0 % 60


_SAMPLE = r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{\w+="(?:[^"\\]|\\["\\n])*"\})? (\S+)'


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@contextmanager
def page_at(clock: Clock) -> Iterator[MetricsPage]:
    page = MetricsPage(0, clock=clock)
    try:
        yield page
    finally:
        page.close()


def get(page: MetricsPage, path: str, host: str | None = None) -> tuple[int, str, str]:
    """Return status, kind and text."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    said = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("Content-Type") or "", said


def scrape(page: MetricsPage) -> dict[str, float]:
    """Read the page as Prometheus does, and refuse what it would."""
    status, kind, text = get(page, "/metrics")
    assert status == 200
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert text.endswith("\n")
    found: dict[str, float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, _ = line.split()
            assert name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            sample = re.fullmatch(_SAMPLE, line)
            assert sample is not None, line
            assert sample[1] in typed
            assert sample[1] not in found
            found[sample[1]] = float(sample[3])
    return found


def test_a_scrape_gets_what_trackers_get_and_nothing_else() -> None:
    clock = Clock()
    with page_at(clock) as page:
        page.started(RunStart(name='a "run"', rounds=5, promise={"promise/epsilon": 4.0}))
        page.released(2, {"epsilon": 1.25, "test_accuracy": 0.75, "clients/loss": 0.5})
        clock.now += 60
        found = scrape(page)
        assert found.pop("fl_dp_info") == 1.0
        figures = {name for name in found if name.startswith("process_")}
        assert figures <= {
            "process_threads",
            "process_open_fds",
            "process_resident_memory_bytes",
        }
        # Exact ones would follow the connections of a round's nodes.
        assert found["process_threads"] == 256.0
        assert found.get("process_open_fds", 256.0) % 256 == 0
        assert {name: found[name] for name in found.keys() - figures} == {
            "fl_dp_promise_epsilon": 4.0,
            "fl_dp_rounds": 5.0,
            "fl_dp_round": 2.0,
            "fl_dp_epsilon": 1.25,
            "fl_dp_test_accuracy": 0.75,
            "fl_dp_clients_loss": 0.5,
        }
        assert 'run="a \\"run\\""' in get(page, "/metrics")[2]


def test_a_run_tells_the_page_what_it_tells_any_tracker() -> None:
    clock = Clock()
    page = MetricsPage(0, clock=clock)
    with TrackedRun([page]) as run:
        promise: dict[str, str | float] = {"promise/epsilon": 1.0, "seed": 7}
        promise["promise/guarantee"] = "at most epsilon 1 at"
        run.start(RunStart(name="run", rounds=1, promise=promise))
        told = {"round": 0, "test_loss": 2.0, "epsilon": 0.5, "participants": 3, "seconds": 1.5}
        run.released(told)
        run._followers[0].finish()
        run._followers[0].wait(240.0)
        clock.now += 60
        shown = scrape(page)
        assert shown["fl_dp_test_loss"] == 2.0
        words = "# HELP fl_dp_epsilon Epsilon spent so far. at most epsilon 1 at"
        assert words in get(page, "/metrics")[2]
        assert not [name for name in shown if re.search("seed|participants|seconds|time", name)]
        page.close()


def test_a_round_shows_at_whole_minutes_alone() -> None:
    clock = Clock()
    with page_at(clock) as page:
        page.started(RunStart(name="run"))
        for server_round, second in ((1, 0.0), (2, 20.0), (3, 59.0)):
            clock.now = NOON + second
            page.released(server_round, {})
            assert "fl_dp_round" not in scrape(page)
        clock.now = NOON + 60
        assert scrape(page)["fl_dp_round"] == 3
        page.released(4, {})
        clock.now = NOON + 119
        assert scrape(page)["fl_dp_round"] == 3
        page.released(5, {})  # nobody looked between the minutes
        clock.now = NOON + 185
        page.released(6, {})
        assert scrape(page)["fl_dp_round"] == 5


def test_a_resumed_run_shows_where_it_goes_on() -> None:
    clock = Clock()
    with page_at(clock) as page:
        page.started(RunStart(name="run", before=((1, {"epsilon": 0.5}), (2, {"epsilon": 0.75}))))
        clock.now += 60
        assert (scrape(page)["fl_dp_round"], scrape(page)["fl_dp_epsilon"]) == (2, 0.75)


def test_a_run_that_goes_on_is_healthy_and_one_that_has_ended_answers_nobody() -> None:
    with page_at(Clock()) as page:
        status, kind, said = get(page, "/health")
        assert (status, kind, json.loads(said)) == (200, "application/json", {"status": "alive"})
        assert get(page, "/")[0] == 404
        page.ended("finished", {})
        with pytest.raises(OSError):
            get(page, "/health")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("evil.example:9464", 403)],
)
def test_a_page_of_the_web_can_not_read_it_under_its_own_name(host: str, status: int) -> None:
    with page_at(Clock()) as page:
        assert get(page, "/health", host)[0] == get(page, "/metrics", host)[0] == status


def test_a_port_that_somebody_has_is_an_error_before_anything_is_written() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"tracking.metrics_port={port} can't be used"):
            MetricsPage(port)
    MetricsPage(port).close()  # one that was let go can be had at once


def test_a_run_that_never_started_frees_its_port() -> None:
    page = MetricsPage(0)
    with pytest.raises(ValueError, match="wrong settings"), TrackedRun([page]):
        raise ValueError("wrong settings")
    MetricsPage(page.port).close()


def test_the_memory_that_is_shown_is_too_coarse_for_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resident(pages: int) -> float:
        def statm(self: Path, *_: Any, **__: Any) -> str:
            return f"99999 {pages} 1"

        monkeypatch.setattr(Path, "read_text", statm)
        with page_at(Clock()) as page:
            return scrape(page)["process_resident_memory_bytes"]

    assert resident(16_385) == resident(20_000) == 2 * 64 * 2**20
    assert resident(16_384) == 64 * 2**20
