"""Trackers: where a run's released values are shown besides its folder, while it goes on.

    >>> with TrackedRun([MyTracker()]) as tracked:
    ...     tracked.start(RunStart(name="forty-hospitals", promise={"promise/epsilon": 4.0}))
    ...     tracked.released({"round": 1, "test_accuracy": 0.9, "epsilon": 1.2})

A tracker may be anybody's, and may send what it gets anywhere. So it gets values that were released
with the models, by a closed list of names, and nothing it does reaches the training: each works in
a thread of its own, and one that fails is left out from there on.
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
