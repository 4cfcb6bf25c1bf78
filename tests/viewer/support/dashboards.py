"""Dashboards over written folders of runs: asked in this process, or served on a port."""

from __future__ import annotations

import socket
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import written_runs
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from fl_dp.viewer.dashboard.access import Door
from fl_dp.viewer.dashboard.site import Dashboard
from fl_dp.viewer.found_runs import RunsFolder

TOKEN = "a-token-for-tests-only"
PORT = 8765
URL = f"http://127.0.0.1:{PORT}"
OWN = {"Origin": URL}


def dashboard_of(root: Path, *, port: int = PORT, **options: Any) -> Dashboard:
    """Return a dashboard over a folder of runs, which is made if it is not there."""
    root.mkdir(parents=True, exist_ok=True)
    defaults = {"door": Door(token=TOKEN), "hosts": [f"127.0.0.1:{port}"], "tick": 0.05}
    return Dashboard(runs=RunsFolder(root), port=port, **{**defaults, **options})


def stranger(site: ASGIApp) -> TestClient:
    """Return a client without the token that follows no redirect."""
    return TestClient(site, base_url=URL, follow_redirects=False)


def reader(site: ASGIApp) -> TestClient:
    """Return a client that has logged in as a browser does."""
    client = stranger(site)
    assert client.post("/login", data={"token": TOKEN}, headers=OWN).status_code == 303
    client.headers["Accept"] = "text/html"
    return client


def pretend_command(folder: Path, *, rounds: int = 40, pause: float = 0.1) -> list[str]:
    """Return a command line that plans and runs like `fl-dp`, without training.

    `plan` quotes epsilon 1.25 and warns once; `run` writes a round each `pause` seconds and ends
    with a statement, also on SIGTERM.
    """
    script = folder / "pretended.py"
    support = Path(written_runs.__file__).parent
    script.write_text(
        textwrap.dedent(f"""
            import json, signal, sys, time
            from pathlib import Path
            sys.path.insert(0, {str(support)!r})
            what, *overrides = sys.argv[1:]
            if what == "plan":
                print("warning: few clients", file=sys.stderr)
                promise = {{"unit": "one client"}}
                guarantee = {{"epsilon": 1.25, "delta": 1e-5, "unit": "client",
                             "neighbours": "zero-out", "against": "whoever sees the models"}}
                print(json.dumps({{"promise": promise, "guarantee": guarantee}}))
                sys.exit()
            given = dict(each.split("=", 1) for each in overrides if "=" in each)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            print("starting Flower", flush=True)
            from written_runs import statement, write_rounds, write_run
            place = Path(given["output_dir"].strip('"')) / given["run_name"].strip('"')
            write_run(place, done=0, rounds={rounds}, stated=False)
            done = 0
            try:
                for done in range(1, {rounds} + 1):
                    time.sleep({pause})
                    write_rounds(place, range(done, done + 1), rounds={rounds})
            except KeyboardInterrupt:
                print("stopped")
            text = json.dumps(statement(rounds={rounds}, done=done, epsilon=8.0))
            (place / "privacy.json").write_text(text)
            sys.exit(0 if done == {rounds} else 130)
        """)
    )
    return [sys.executable, str(script)]


@contextmanager
def served(root: Path, **options: Any) -> Iterator[str]:
    """Serve a dashboard from this process; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        site = dashboard_of(root, port=port, **options).site()
        server = uvicorn.Server(
            uvicorn.Config(site, log_level="error", timeout_graceful_shutdown=1, ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(10)


def png(path: Path) -> None:
    """Write a picture of one pixel."""
    path.write_bytes(
        bytes.fromhex(
            "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
            "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
        )
    )
