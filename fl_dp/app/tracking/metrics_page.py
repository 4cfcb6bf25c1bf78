"""Released values and process figures for Prometheus, and whether the run is alive.

The page is a tracker: it gets what trackers get, by the same closed list, and shows no time. It
changes at whole minutes: a reader can't tell when a round ended.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fl_dp import __version__
from fl_dp.tasks.public_scores import METRICS, NUMBERS

from .loopback_page import LoopbackPage, PageGauge
from .tracker import RunStart, Scalar, whole_minute

_PREFIX = "fl_dp_"
_MEBIBYTE = 2**20
_COARSE = 64 * _MEBIBYTE  # so large that a few more replies do not show
_MANY = 256
_HELP = {
    "rounds": "Rounds that are planned.",
    "round": "Last round that was released; 0 is the first model.",
    "epsilon": "Epsilon spent so far.",
    "test_loss": "Loss of the released model on public rows.",
    "test_accuracy": "Accuracy of the released model on public rows.",
    **{
        f"test_{name}": f"Of the released model on public rows: {METRICS[name].unit}."
        for name in NUMBERS
    },
    "expected_cohort": "Clients that are expected in a round; public.",
    "bytes_down": "Bytes of the arrays that a round sends to each node.",
    "bytes_up": "Bytes of the arrays that a node answers with.",
    "next_clipping_norm": "Clipping norm of the next round.",
}


class MetricsPage:
    """A page for Prometheus, from a run's start to its end."""

    def __init__(self, port: int, *, clock: Callable[[], float] = time.time) -> None:
        """Open the port on 127.0.0.1; nothing is shown before the run starts.

        Port 0 takes a free one. `clock` returns seconds since the epoch.

        Raises:
            ValueError: The port is in use.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._run = self._guarantee = ""
        self._facts: dict[str, float] = {}
        self._values: dict[str, float] = {}
        self._shown: dict[str, float] = {}
        self._minute = whole_minute(clock())
        try:
            self._page = LoopbackPage(port, self._gauges)
        except OSError as error:
            raise ValueError(
                f"tracking.metrics_port={port} can't be used on 127.0.0.1 ({error.strerror}): "
                "another run or program has it; choose another port, or leave it out"
            ) from error
        self.port = self._page.port

    def started(self, run: RunStart) -> None:
        """Show what the run promises."""
        facts = {
            f"{_PREFIX}{_plain(name)}": float(value)
            for name, value in run.promise.items()
            if isinstance(value, int | float)
        }
        if run.rounds is not None:
            facts[f"{_PREFIX}rounds"] = run.rounds
        with self._lock:
            self._run, self._guarantee = run.name, run.guarantee
            self._facts = facts
        for server_round, values in run.before[-1:]:
            self.released(server_round, values)

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Show a round's values, from the next minute on."""
        with self._lock:
            self._turn()
            self._values = {
                f"{_PREFIX}round": server_round,
                **{f"{_PREFIX}{_plain(name)}": value for name, value in values.items()},
            }

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Stop answering; `fl-dp status` tells how the run ended."""
        del state, final
        self.close()

    def close(self) -> None:
        """Free the port."""
        self._page.close()

    def _gauges(self) -> Iterator[PageGauge]:
        """Yield what is shown now."""
        with self._lock:
            self._turn()
            shown = {**self._facts, **self._shown}
            run, guarantee = {"run": self._run}, self._guarantee
        yield PageGauge(f"{_PREFIX}info", "Version of fl-dp.", 1.0, {"version": __version__})
        for name, value in sorted(shown.items()):
            meaning = _HELP.get(name.removeprefix(_PREFIX), "")
            if name == f"{_PREFIX}epsilon":
                meaning = f"{meaning} {guarantee}"
            yield PageGauge(name, meaning, value, run)
        for name, (value, meaning) in sorted(_process().items()):
            yield PageGauge(name, meaning, value)

    def _turn(self) -> None:
        """At a new minute, show the values from before it."""
        minute = whole_minute(self._clock())
        if minute != self._minute:
            self._minute, self._shown = minute, self._values


def _process() -> dict[str, tuple[float, str]]:
    """Figures of this process where the system has them, without processor time.

    A round's processor time would tell how many took part.
    """
    figures: dict[str, tuple[float, str]] = {
        "process_threads": (
            _coarsely(threading.active_count(), _MANY),
            f"Threads of the process, rounded up to a multiple of {_MANY}.",
        ),
    }
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counted, not opened
    except OSError:  # another system than Linux
        return figures
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return figures | {
        "process_resident_memory_bytes": (
            _coarsely(resident, _COARSE),
            "Resident memory, rounded up to 64 MiB.",
        ),
        "process_open_fds": (
            _coarsely(open_files, _MANY),
            f"Open files, rounded up to a multiple of {_MANY}.",
        ),
    }


def _coarsely(figure: int, step: int) -> int:
    """A figure rounded up: an exact one would tell how many connections a round opened."""
    return -(-figure // step) * step


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
