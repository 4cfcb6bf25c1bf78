"""The protocol of a tracker, and what it gets at a run's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol, TypeAlias

_MINUTE = 60.0

Scalar: TypeAlias = str | int | float | bool
"""A value of a setting or of a fact."""


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins, or continues after it was stopped.

    Attributes:
        name: Name of the run's folder; a sweep's cell has the sweep's name before a slash.
        identity: Random text that names this run for good, also when resumed.
        group: Name of its sweep, if any.
        rounds: Planned rounds.
        before: Rounds released before it was resumed, each with what `Tracker.released` got; empty
            for a new run.
        settings: Settings by key, without those that are secret or of one site.
        promise: Privacy facts by the names of `PROMISE`.
    """

    name: str
    identity: str = ""
    group: str | None = None
    rounds: int | None = None
    before: tuple[tuple[int, Mapping[str, float]], ...] = ()
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    promise: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def guarantee(self) -> str:
        """What its figures of epsilon mean nothing without; empty if unknown."""
        of_records = self.promise.get("promise/record_guarantee", "")
        return str(self.promise.get("promise/guarantee", of_records))

    @property
    def resumed(self) -> bool:
        """Whether rounds were released before."""
        return bool(self.before)


class Tracker(Protocol):
    """A destination of a run's released values.

    Calls come in this order, from one thread, not the training's. A call may take long and raise
    anything: the training then continues without this tracker. Of a run that fails before it starts
    a tracker gets no call, but that of `close()` if it has this method.
    """

    def started(self, run: RunStart) -> None:
        """Handle a run that begins or continues."""

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Handle a round's releases, by the names of `ROUND`; round 0 is the first model."""

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Handle the end.

        Args:
            state: `finished`, `stopped` before the last planned round, or `failed`.
            final: What was spent, by the names of `FINAL`; empty where nothing is promised.
        """


def require_installed(name: str) -> None:
    """Check that a tracker's package is installed, without importing it; `none` needs none.

    Tracker, package and extra have the same name.

    Raises:
        ModuleNotFoundError: It is not installed; the text says what to install.
    """
    if name != "none" and find_spec(name) is None:
        raise ModuleNotFoundError(
            f"tracking={name} needs the package {name}: pip install 'fl-dp[{name}]'"
        )


def whole_minute(seconds: float) -> float:
    """Start of a time's minute, in seconds.

    Trackers get no finer time: a round's length can tell who took part, for example a slow client.
    """
    return seconds - seconds % _MINUTE
