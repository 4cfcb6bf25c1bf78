"""Folders of runs, read without trust in their author.

    >>> runs = RunsFolder(Path("runs"))
    >>> [card.name for card in runs.listing().cards]
    ['20261122-101500-digits', '20261122-113000-privacy_levels/run-0']
    >>> runs.read("20261122-101500-digits").rounds[-1].test_accuracy
    0.93

A folder may come from a stranger, be half written, or belong to something else. So no link is
followed below it, nothing is read without a bound, what can't be read is reported and left out,
and no number is infinite or NaN. This room knows no framework and loads in milliseconds.
"""

from .attack_folders import FoundAttack
from .cards import RunCard, RunState
from .details import FoundRun
from .follow import ReadPosition
from .images import Image
from .rounds import Round, thinned
from .runs_folder import RunsFolder, SweepCell, read_run

__all__ = [
    "FoundAttack",
    "FoundRun",
    "Image",
    "ReadPosition",
    "Round",
    "RunCard",
    "RunState",
    "RunsFolder",
    "SweepCell",
    "read_run",
    "thinned",
]
