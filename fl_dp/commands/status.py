"""`fl-dp status`: how a run of plain `flwr run` ended, as an exit status."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .console import AsJson, err, exit_on_errors, fail, note, print_json, tell

if TYPE_CHECKING:
    from fl_dp.app.local.flower_runs import RunStatus

_FAILED, _UNKNOWN, _STOPPED, _GOES_ON = 1, 2, 3, 4
_PAUSE, _LONGEST_PAUSE = 3.0, 60.0  # seconds: each question starts Flower's command
_SHARE = 0.1  # of the time so far that the end of the run may be noticed late
_LONG_PENDING = 60.0


def status(
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False)],
    connection: Annotated[
        str | None, typer.Argument(metavar="[CONNECTION]", show_default=False)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run has ended.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds to wait at most.", min=0.0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a run of plain `flwr run`, as text and exit status.

    RUN is the number that `flwr run` printed, CONNECTION the name of its SuperLink in Flower's
    `config.toml` (the default there unless given). `flwr run` itself ends with status 0 even if the
    run failed. For example:

    - `fl-dp status 1234567890 --wait`

    - `fl-dp status 1234567890 production --wait --timeout 3600`

    Ctrl-C ends the waiting, as it ends the log of `flwr run --stream`; the run goes on. `flwr stop
    1234567890 production` stops it. With `--wait` a SuperLink that is down is waited for.

    Status 0: the run is complete. 1: it failed. 3: somebody stopped it. 4: it has not ended (with
    `--wait`: not within the time-out). 2: no SuperLink knows it.
    """
    if not run.isdecimal():
        fail(f"RUN is the number that `flwr run` prints, got '{run}'", status=_UNKNOWN)
    with exit_on_errors():
        _require_own_superlink(connection)
        state = _wait_for(run, connection, wait=wait, timeout=timeout)
    if as_json:
        print_json({"run": run, "status": state.status, "details": state.details})
    else:
        reason = f" ({' '.join(state.details.split())})" if state.details else ""
        tell(f"run {run}: {state.status}{reason}")
    _exit(state)


def _wait_for(run: str, connection: str | None, *, wait: bool, timeout: float | None) -> RunStatus:
    """Return the state of a run once it has ended or the time is over."""
    from fl_dp.app.local.flower_runs import SuperLinkSilent, run_status

    began = heard = time.monotonic()
    shown = ""
    long_pending = silent = False
    while True:
        try:
            state = run_status(run, connection)
        except SuperLinkSilent as error:
            waited = time.monotonic() - began
            if not wait or (timeout is not None and waited >= timeout):
                raise
            if not silent:
                silent = True
                note(f"{error}: waiting for it; ctrl-C ends the waiting, not the run")
        else:
            heard, silent = time.monotonic(), False
            if not wait or state.ended or (timeout is not None and heard - began >= timeout):
                return state
            if state.status != shown:
                err.print(f"run {run}: {state.status}", markup=False)
                shown = state.status
            if shown == "pending" and not long_pending and heard - began >= _LONG_PENDING:
                long_pending = True
                note(
                    f"run {run} has been pending for {heard - began:.0f} s: its SuperLink has not "
                    "started the app. Look at the SuperLink's log; with --isolation process "
                    "somebody has to start its executors, and another run may be before this one"
                )
        waited = time.monotonic() - began
        pause = min(max(_PAUSE, _SHARE * waited), _LONGEST_PAUSE)
        if timeout is not None:
            pause = max(0.0, min(pause, timeout - waited))
        time.sleep(pause)


def _require_own_superlink(connection: str | None) -> None:
    """Check which user's server answers where `flwr run` has a SuperLink of its own.

    Flower uses whatever answers on that port, even another user's server.
    """
    from fl_dp.app.local.flower_runs import local_port
    from fl_dp.app.local.superlink import listening_user

    port = local_port(connection)
    if port is None:
        return
    user = listening_user(port)
    if user is None:
        fail(
            f"no SuperLink answers on port {port} of this machine, where `flwr run` starts its "
            "own: what it knew of runs may be in its log, ~/.flwr/local-superlink/superlink.log",
            status=_UNKNOWN,
        )
    if user not in (os.getuid(), -1):
        fail(
            f"port {port} of this machine belongs to user {user} and not to you: `flwr run` would "
            "take that for your own SuperLink, and has handed your app to it if you called it. Set "
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT to a free port, or use `fl-dp run`",
            status=_UNKNOWN,
        )


def _exit(state: RunStatus) -> NoReturn:
    if not state.ended:
        raise typer.Exit(_GOES_ON)
    if state.stopped:
        raise typer.Exit(_STOPPED)
    raise typer.Exit(0 if state.succeeded else _FAILED)
