"""`fl-dp dashboard`: runs, sweeps and budgets in a browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import err, exit_on_errors, fail, tell, warn

if TYPE_CHECKING:
    from fl_dp.viewer.dashboard.started_runs import StartedRuns


def dashboard(
    runs_dir: Annotated[Path, typer.Argument(show_default=False)] = Path("runs"),
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 8765,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name by which browsers reach it; may be given repeatedly."),
    ] = None,
    ledger: Annotated[
        list[str] | None,
        typer.Option(
            "--ledger",
            help="Ledger whose budget is shown, a server's or a node's: a file or a URL; may be "
            "given repeatedly.",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="Folder of own data that `--allow-start` may train on; may be given repeatedly.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token; otherwise a new one is printed."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Certificate for TLS, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Its private key, PEM.")] = None,
    allow_start: Annotated[
        bool,
        typer.Option("--allow-start", help="Let readers start simulations and stop them."),
    ] = False,
) -> None:
    """Show runs, sweeps and budgets in a browser.

    RUNS_DIR is the folder of runs, `runs` unless given.

    The dashboard listens on this machine alone and asks for a token, which it prints or takes from
    `--token-file` or the variable FL_DP_DASHBOARD_TOKEN. It reads what runs have written and
    changes nothing, unless `--allow-start` lets it start simulations.
    """
    with exit_on_errors():
        from fl_dp.viewer.dashboard.access import Door, check_token, new_token
        from fl_dp.viewer.dashboard.serve import Address, listening_socket, serve
        from fl_dp.viewer.dashboard.site import Dashboard
        from fl_dp.viewer.dashboard.started_runs import TOKEN_VARIABLE, StartedRuns
        from fl_dp.viewer.found_runs import RunsFolder

        if not runs_dir.is_dir():
            fail(f"there is no folder {runs_dir}: write the folder that your runs are in", status=2)
        address = Address(
            host=host, port=port, names=tuple(name or ()), certificate=certificate, key=key
        )
        address.check()
        chosen = os.environ.get(TOKEN_VARIABLE)
        if token_file is not None:
            chosen = token_file.read_text(encoding="utf-8").strip()
        token = new_token() if chosen is None else check_token(chosen)
        runs = RunsFolder(runs_dir)
        started = StartedRuns(root=runs.root) if allow_start else None
        site = Dashboard(
            runs=runs,
            door=Door(token=token),
            hosts=address.hosts,
            port=port,
            secure=address.secure,
            ledgers=tuple(ledger or ()),
            data=_named(data or []),
            started=started,
        ).site()
        listener = listening_socket(address)
    for text in address.warnings():
        warn(text)
    tell(f"Dashboard: {address.url}")
    if chosen is None:
        tell(f"Token: {token}")
    err.print("Ctrl-C ends it", markup=False)
    with suppress(KeyboardInterrupt):  # uvicorn ends in order, and then passes it on
        serve(site, address, listener)
    if started is not None:
        _warn_of_running(started)


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    by_name: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            fail(f"there is no folder {folder}: write the folder that your data are in", status=2)
        path = folder.resolve()
        if by_name.setdefault(path.name, path) != path:
            fail(f"two folders of data are called {path.name}: give one another name", status=2)
    return by_name


def _warn_of_running(started: StartedRuns) -> None:
    for run in started.all():
        if run.runs:
            warn(
                f"{run.name} goes on without the dashboard: `kill {run.process.pid}` stops it in "
                "order"
            )
