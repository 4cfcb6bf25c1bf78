"""Work that the dashboard starts: priced first, one at a time, stopped as by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from fl_dp.app.overrides import quoted
from fl_dp.app.settings import Settings
from fl_dp.guarantee import Guarantee

from .start_form import Request

# -P: no module of the working directory is imported instead of ours.
_COMMAND = (sys.executable, "-P", "-m", "fl_dp")
_LONGEST_PRICING = 300.0
_MOST_PRICED = 50
_MOST_OUTPUT = 1 << 14
TOKEN_VARIABLE = "FL_DP_DASHBOARD_TOKEN"
_SIGNS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # of a terminal


class NotPriced(Exception):
    """A simulation can't be priced; the text gives the reason.

    Attributes:
        options: Keys that the reason is about.
    """

    def __init__(self, text: str, options: Sequence[str] = ()) -> None:
        """Take the reason and its keys."""
        super().__init__(text)
        self.options = tuple(options)


class NotStarted(Exception):
    """A simulation can't be started; the text is a word's key."""


@dataclass(frozen=True, kw_only=True)
class PricedRequest:
    """A request's price, as `fl-dp plan` or `fl-dp stats --price` computes it.

    Attributes:
        key: Key of the price, for `start`.
        guarantee: The promise; None if there is none.
        of_records: The promise to a client's records, if they are protected, too.
        promise: Sentences of the promise by name.
        warnings: The command line's.
        budgets: Budget of each private training of an experiment of many, smallest first; without
            a number where it follows from a given noise.
    """

    key: str
    request: Request
    guarantee: Guarantee | None = None
    of_records: Guarantee | None = None
    promise: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    budgets: tuple[Guarantee, ...] = ()


@dataclass(kw_only=True)
class StartedRun:
    """One simulation.

    Attributes:
        name: Name of its folder.
        process: Process of `fl-dp run` or another command.
        begun: When it was started, seconds since 1970.
        stopping: Whether a reader asked it to stop.
    """

    name: str
    request: Request
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun: float
    stopping: bool = False

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether it ended in an error, not stopped by request."""
        return self.process.poll() not in (None, 0) and not self.stopping

    def said(self) -> str:
        """The end of its output."""
        descriptor = self.output.fileno()
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _MOST_OUTPUT, max(size - _MOST_OUTPUT, 0))
        return _SIGNS.sub("", tail.decode(errors="replace")).strip()


@dataclass(kw_only=True)
class StartedRuns:
    """Prices, starts and stops simulations in `root`, the folder of runs."""

    root: Path
    command: Sequence[str] = _COMMAND
    _priced: dict[str, PricedRequest] = field(default_factory=dict)
    _started: dict[str, StartedRun] = field(default_factory=dict)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _pricing: threading.Lock = field(default_factory=threading.Lock)

    def price(self, request: Request) -> PricedRequest:
        """A simulation's price; nothing is trained.

        Raises:
            NotPriced: If it would be refused, or its price takes too long.
        """
        price = PricedRequest(
            key=secrets.token_urlsafe(16), request=request, budgets=_budgets(request.trainings)
        )
        if request.price:
            with self._pricing:  # a calibration keeps a processor busy
                document, warnings = self._plan(request.price)
            price = PricedRequest(
                key=price.key,
                request=request,
                guarantee=Guarantee.read(document["guarantee"]),
                of_records=Guarantee.read(document.get("records", {}).get("guarantee")),
                promise=document.get("promise", {}),
                warnings=warnings,
            )
        while len(self._priced) >= _MOST_PRICED:
            del self._priced[next(iter(self._priced))]
        self._priced[price.key] = price
        return price

    def start(self, key: str) -> StartedRun:
        """Start a simulation at the price, shown before, with that key.

        Raises:
            NotStarted: If there is no such price, another one runs, or its folder is taken.
        """
        with self._starting:
            price = self._priced.get(key)
            if price is None:
                raise NotStarted("start.no_price")
            if any(run.runs for run in self._started.values()):
                raise NotStarted("start.busy")
            request = price.request
            stamp = time.strftime("%Y%m%d-%H%M%S")
            name = request.run_name or f"{stamp}-{request.title}"
            if name in self._started or os.path.lexists(self.root / name):
                raise NotStarted("start.taken")
            del self._priced[key]  # a form that is sent twice starts only one run
            # A nameless file: no pipe that fills up, and nothing to remove.
            output = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the run is known
            process = subprocess.Popen(
                [*self.command, *self.command_of(replace(request, run_name=name))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,  # Ctrl-C ends the dashboard, not a training
            )
            started = StartedRun(
                name=name, request=request, process=process, output=output, begun=time.time()
            )
            self._started[name] = started
            return started

    def command_of(self, request: Request) -> list[str]:
        """A simulation's command in the folder of runs, after `fl-dp`.

        Without a run name, the command names the run by date and task.
        """
        command = [*request.command, f"output_dir={quoted(str(self.root))}"]
        if request.run_name:
            command.append(f"run_name={quoted(request.run_name)}")
        return command

    def stop(self, name: str) -> bool:
        """Stop a simulation as Ctrl-C does; its reserved charge stays spent.

        Returns:
            Whether this dashboard started it and it still ran.
        """
        started = self._started.get(name)
        if started is None or not started.runs:
            return False
        started.stopping = True
        with suppress(ProcessLookupError):
            # `fl-dp run` takes it as Ctrl-C, which a shell's background jobs would not hear.
            started.process.send_signal(signal.SIGTERM)
        return True

    def get(self, name: str) -> StartedRun | None:
        """A simulation that this dashboard started, if any."""
        return self._started.get(name)

    def all(self) -> list[StartedRun]:
        """Simulations that this dashboard started, the last first."""
        return list(reversed(self._started.values()))

    def is_running(self, name: str) -> bool:
        """Whether a run was started here and still runs."""
        started = self._started.get(name)
        return started is not None and started.runs

    def _plan(self, arguments: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
        try:
            answer = subprocess.run(
                [*self.command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=_environment(),
                timeout=_LONGEST_PRICING,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotPriced(f"no price after {_LONGEST_PRICING:.0f} seconds") from None
        lines = answer.stderr.splitlines()
        document: dict[str, Any] = {}
        with suppress(ValueError):
            document = json.loads(answer.stdout)
        if answer.returncode != 0:
            errors = _with_prefix(lines, "error: ") or [
                f"`fl-dp {arguments[0]}` ended {answer.returncode}"
            ]
            raise NotPriced(document.get("error", errors[-1]), document.get("options", ()))
        if not document:
            raise NotPriced(f"`fl-dp {arguments[0]}` printed no JSON")
        return document, tuple(_with_prefix(lines, "warning: "))


def _environment() -> dict[str, str]:
    """A started process's environment, without the token."""
    return {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}


def _budgets(trainings: Sequence[Settings]) -> tuple[Guarantee, ...]:
    from fl_dp.app.planning import budget_asked_for  # with Flower, slow to load

    try:
        asked = list(map(budget_asked_for, trainings))
    except (OSError, ValueError) as error:
        raise NotPriced(str(error)) from error
    budgets = [guarantee for guarantee in asked if guarantee is not None]
    return tuple(sorted(budgets, key=lambda guarantee: guarantee.budget or 0.0))


def _with_prefix(lines: Sequence[str], prefix: str) -> list[str]:
    """Lines with a prefix, without it."""
    return [line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix)]
