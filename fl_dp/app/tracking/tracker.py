"""The protocol of a tracker, and what it is told of a run."""

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
    """A run that begins, or that goes on after it was stopped.

    Attributes:
        name: Of the run's folder; a cell of a sweep has its sweep's name before a slash.
        identity: Random text that names this run for good, also after it was resumed.
        group: Name of the sweep that it belongs to, if any.
        rounds: Planned.
        before: Rounds that were released before it was resumed, with the values that
            `Tracker.released` was told of each; none for a new run.
        settings: Settings by their keys; those that are secret or of one site are left out.
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
    def resumed(self) -> bool:
        """Whether something was released before."""
        return bool(self.before)


class Tracker(Protocol):
    """Somewhere that a run's released values go.

    The calls come in this order, from one thread that is not the training's. A call may take its
    time and may raise anything: the training goes on without this tracker then.
    """

    def started(self, run: RunStart) -> None:
        """Take note of a run that begins or goes on."""

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Take what a round released, by the names of `ROUND`; round 0 is the first model."""

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Take note of the end.

        Args:
            state: `finished`, `stopped` before the last planned round, or `failed`.
            final: What was spent, by the names of `FINAL`; empty where nothing is promised.
        """


def require_installed(name: str) -> None:
    """Check that a tracker's package is there, without importing it; `none` needs none.

    Args:
        name: Of the tracker, which is that of its package and of its extra.

    Raises:
        ModuleNotFoundError: If it is not, with what to install.
    """
    if name != "none" and find_spec(name) is None:
        raise ModuleNotFoundError(
            f"tracking={name} needs the package {name}: pip install 'fl-dp[{name}]'"
        )


def whole_minute(seconds: float) -> float:
    """Return the start of the minute that a time lies in, in seconds.

    Trackers are told no finer time: the length of a round can tell who took part in it, as a slow
    client, or one that was not reached.
    """
    return seconds - seconds % _MINUTE
