"""Outcome of Flower's runs, read from a SuperLink by Flower's command line.

`flwr run` ends with status 0 whatever becomes of the run, so the outcome must be read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
"""Folder of the commands that are installed beside this one."""

_LOCAL_ADDRESSES = (":local:", ":local-in-memory:")
_LOCAL_PORT = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "39091")
_UNKNOWN_RUN = "[code: 16]"
_UNREACHABLE = "is unavailable"
_ANSWERS_WITHIN = 120.0  # seconds; a loaded machine took 20 to start Flower's command
_FIRST_ERROR = re.compile(r"An exception occur+ed ?!! (.*\S)")


class RunUnknown(ValueError):
    """A SuperLink does not know a run."""


class SuperLinkSilent(RunUnknown):
    """No SuperLink answers."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """State of a Flower run.

    Attributes:
        status: Flower's word for it, for example `running` or `finished:completed`.
        details: Flower's reason when it failed.
    """

    status: str
    details: str

    @property
    def succeeded(self) -> bool:
        """Whether the run came to its normal end."""
        return self.status == "finished:completed"

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it."""
        return self.status == "finished:stopped"

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.status.startswith("finished")

    def explained_by(self, log: str) -> RunStatus:
        """Add the first error in `log`: Flower's engine reports the last one.

        `log` is the run's output of `flwr run --stream`.
        """
        first = _FIRST_ERROR.search(log)
        if first is None or first[1] in self.details:
            return self
        return replace(self, details=f"{self.details} ({first[1]})")


def run_status(
    run_id: str, connection: str | None = None, *, environment: Mapping[str, str] | None = None
) -> RunStatus:
    """Ask a SuperLink for a run's state.

    Args:
        run_id: Flower's number of the run.
        connection: The SuperLink's name in Flower's `config.toml`. None: the default there.
        environment: Environment of Flower's command; by default this process's.

    Raises:
        SuperLinkSilent: It does not answer within two minutes.
        RunUnknown: It does not know the run, or its answer can't be read.
    """
    command = [str(BIN / "flwr"), "list", "--run-id", run_id, "--format", "json"]
    if connection is not None:
        command.insert(2, connection)
    if environment is None:
        environment = os.environ
    try:
        answer = subprocess.run(
            command,
            env={**environment, "FLWR_DISABLE_UPDATE_CHECK": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWERS_WITHIN,
        )
    except subprocess.TimeoutExpired:
        raise SuperLinkSilent(
            f"the SuperLink did not tell within {_ANSWERS_WITHIN:.0f} s how run {run_id} stands"
        ) from None
    try:
        document: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        output = " ".join((answer.stdout + answer.stderr).split())
        raise RunUnknown(f"Flower does not tell how run {run_id} stands: {output}") from None
    if runs := document.get("runs"):
        return RunStatus(
            status=str(runs[0]["status"]), details=str(runs[0].get("status-details", ""))
        )
    reason = str(document.get("error-message", "")).strip().rpartition("\n\n")[2]
    if _UNKNOWN_RUN in reason:
        raise RunUnknown(
            f"that SuperLink knows no run {run_id}: it is another one than the run was started on, "
            "or was started anew since and has no --database. Name the run's own connection: "
            f"fl-dp status {run_id} CONNECTION"
        )
    kind = SuperLinkSilent if _UNREACHABLE in reason else RunUnknown
    raise kind(f"Flower does not tell how run {run_id} stands: {' '.join(reason.split())}")


def local_port(connection: str | None = None) -> int | None:
    """Port of the SuperLink that `flwr run` starts by itself; None if a connection uses another.

    Flower's own commands would start that SuperLink to ask it. `connection` is as in `run_status`.
    """
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    file = home / "config.toml"
    try:
        links = tomllib.loads(file.read_text(encoding="utf-8")).get("superlink", {})
        address = links[connection or links["default"]]["address"]
    except FileNotFoundError:
        address = _LOCAL_ADDRESSES[0]  # what Flower would write into a new file
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # Flower's command says what is wrong with it
    if address not in _LOCAL_ADDRESSES:
        return None
    return int(os.environ.get(*_LOCAL_PORT))
