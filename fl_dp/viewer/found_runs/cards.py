"""Card of a run in a list: its state and one-line settings."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_dp.guarantee import Guarantee
from fl_dp.promise import NO_PRIVACY
from fl_dp.tasks.public_scores import Score

from .untrusted import shown

_QUIET = 600.0
_ROUNDS_OF_QUIET = 5.0
_SAME_TIME = 2.0  # some file systems know no finer times


class RunState(enum.StrEnum):
    """State of a run.

    Attributes:
        FINISHED: Every planned round was released, or a statistic was answered.
        RUNNING: Something was written lately.
        SILENT: It did not end, and wrote nothing for ten minutes and five of its rounds: it was
            killed, or waits for its nodes.
        FAILED: By its statement, nobody contributed.
        STOPPED: It ended before its last round: it wrote its statement, or its process is gone.
        BROKEN: Its settings can't be read.
    """

    FINISHED = "finished"
    RUNNING = "running"
    SILENT = "silent"
    FAILED = "failed"
    STOPPED = "stopped"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """One run in a list; None is what its files do not say.

    Attributes:
        name: Path of its folder below the folder of runs, with slashes.
        kind: `training`, `statistic`, `recovery` (images from updates) or `unknown`.
        settings: Its one-line settings, as text by key, for example `task.name`.
        started: When its settings were written, seconds since 1970.
        changed: When anything of it was last written, seconds since 1970.
        round: Last released round; 0 is the model before training.
        rounds: Planned number of rounds.
        score: The last model's score, on public rows.
        test_loss: Its loss, on public rows.
        promise: Its promise by its statement; before that what was spent so far, and the budget.
            None: not known yet.
        of_records: The promise to each record besides, by its statement.
        sweep: Name of its sweep's folder.
        variant: Its difference from the sweep's other runs, but for the seed.
        place: Its value on the sweep's axis.
        problems: What could not be read, in words.
    """

    name: str
    kind: str
    state: RunState
    settings: Mapping[str, str] = field(default_factory=dict)
    started: float | None = None
    changed: float | None = None
    round: int | None = None
    rounds: int | None = None
    score: Score = field(default_factory=Score)
    test_loss: float | None = None
    promise: Guarantee | None = None
    of_records: Guarantee | None = None
    sweep: str | None = None
    variant: str | None = None
    place: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def terms(self) -> str:
        """All of its promise but the numbers: only where these are equal do epsilons compare."""
        if self.promise is None:
            return "promise not known yet"
        return f"epsilon {self.promise.terms}" if self.promise.promises else NO_PRIVACY

    @property
    def weakness(self) -> float:
        """A number that rises with epsilon; infinite where nothing is promised, or known."""
        if self.promise is None or not self.promise.promises:
            return math.inf
        return math.inf if self.promise.first is None else self.promise.first


def state_of(
    *,
    done: bool,
    rounds_done: int,
    started: float,
    released: float,
    logged: float,
    stated: float | None,
    now: float,
    alive: bool | None = None,
    failed: bool = False,
) -> RunState:
    """State of a run with readable settings; times are seconds since 1970.

    Args:
        done: Whether it has nothing left to do.
        rounds_done: Number of released rounds.
        started: Time of its settings.
        released: Last time of its metrics or its ledger.
        logged: Last time of its log.
        stated: Time of its statement; None without one.
        now: The time.
        alive: Whether its process exists; None: the times alone decide.
        failed: Whether its statement says that it failed.
    """
    if failed and stated is not None and stated >= released - _SAME_TIME:
        return RunState.FAILED
    if done and stated is not None:
        return RunState.FINISHED
    # A run ends with a statement; an older one is from before it was resumed.
    if stated is not None and stated >= released - _SAME_TIME:
        return RunState.STOPPED
    if alive is False:
        return RunState.STOPPED
    written = max(started, released, logged)
    # The current round has taken part of the time, too.
    seconds_per_round = max(written - started, 0.0) / (rounds_done + 1)
    patience = max(_QUIET, _ROUNDS_OF_QUIET * seconds_per_round)
    return RunState.RUNNING if now - written < patience else RunState.SILENT


# `key: value` at the margin, or two blanks in, under the group whose name stood alone on a line.
_LINE = re.compile(r"(  )?([A-Za-z_][A-Za-z0-9_]{0,63}):(?: (.{0,10000}))?$")
_LIST = "[...]"


def scalars(text: bytes) -> dict[str, str]:
    """A run's settings by key, as text; a list is `[...]`.

    For lists and filters: other lines are left out. `FoundRun.settings` has everything.
    """
    settings: dict[str, str] = {}
    group = ""
    for line in text.decode(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.lstrip().startswith("- ") and group in settings:
                settings[group] = _LIST
            continue
        inner, key, value = match.groups()
        if inner:
            key = f"{group.partition('.')[0]}.{key}"
        if value is None or inner is None:
            group = key
        if value is not None:
            settings[key] = shown(_unquoted(value))
        elif inner:
            settings[key] = _LIST
    return settings


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value
