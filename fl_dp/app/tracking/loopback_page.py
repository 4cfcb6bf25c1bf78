"""A page for Prometheus on this machine's loopback.

GET /metrics    Prometheus' text format, version 0.0.4
GET /health     200 while the process goes on
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_HOST = "127.0.0.1"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OWN_NAMES = (_HOST, "localhost")


class PageGauge(NamedTuple):
    """A number with its meaning in words."""

    name: str
    meaning: str
    value: float
    labels: Mapping[str, str] = MappingProxyType({})


class LoopbackPage(Collector):
    """Answers each request with the gauges of that moment, without the process's other ones."""

    def __init__(self, port: int, gauges: Callable[[], Iterable[PageGauge]]) -> None:
        """Open the port on 127.0.0.1; 0 takes a free one.

        Raises:
            OSError: The port is in use.
        """
        self._gauges = gauges
        self._server = _Server((_HOST, port), self)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()

    def text(self) -> str:
        """The page now."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        for gauge in self._gauges():
            family = GaugeMetricFamily(gauge.name, gauge.meaning, labels=list(gauge.labels))
            family.add_metric(list(gauge.labels.values()), gauge.value)
            yield family


class _Server(ThreadingHTTPServer):
    """Answers on loopback; a client that hangs up early is not an error."""

    daemon_threads = True
    # A port that was closed a moment ago can be opened again; one that is open can't.
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], page: LoopbackPage) -> None:
        self.page = page
        super().__init__(address, _Handler)

    def handle_error(self, *_: object) -> None:
        """Print nothing: the standard library would write to the run's log."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0
    server_version, sys_version = "fl-dp", ""

    def do_GET(self) -> None:
        # A page of the web that got its name resolved to 127.0.0.1 asks under that name.
        if (self.headers.get("Host") or _HOST).partition(":")[0] not in _OWN_NAMES:
            self._answer(403, "text/plain", "ask for 127.0.0.1\n")
        elif self.path == "/metrics":
            self._answer(200, _TEXT, self.server.page.text())
        elif self.path == "/health":
            self._answer(200, "application/json", json.dumps({"status": "alive"}) + "\n")
        else:
            self._answer(404, "text/plain", "there are /metrics and /health\n")

    def log_message(self, *_: object) -> None:
        """Log nothing: the page's readers are no part of the run's log."""

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
