"""Trackers: they show a run's released values outside its folder, while it runs.

    >>> with TrackedRun([MyTracker()]) as tracked:
    ...     tracked.start(RunStart(name="forty-hospitals", promise={"promise/epsilon": 4.0}))
    ...     tracked.released({"round": 1, "test_accuracy": 0.9, "epsilon": 1.2})

A tracker may belong to anybody and send what it gets anywhere. So it gets only released values, by
a closed list of names, and nothing it does reaches the training. Each works in its own thread; one
that fails gets nothing more.
"""

from .released_values import FINAL, PROMISE, ROUND, round_values
from .tracked_run import TrackedRun
from .tracker import RunStart, Tracker, require_installed

__all__ = [
    "FINAL",
    "PROMISE",
    "ROUND",
    "RunStart",
    "TrackedRun",
    "Tracker",
    "require_installed",
    "round_values",
]
