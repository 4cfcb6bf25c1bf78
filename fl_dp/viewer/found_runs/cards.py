"""Card of a run in a list: its state, and those of its settings that fit on one line."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_dp.tasks.metrics import Score

from .untrusted import shown

_QUIET = 600.0
_ROUNDS_OF_QUIET = 5.0
_SAME_TIME = 2.0  # some file systems know no finer times


class RunState(enum.StrEnum):
    """Where a run has got to.

    Attributes:
        FINISHED: Every planned round was released, or a statistic was answered.
        RUNNING: It goes on: something was written lately.
        SILENT: It neither ended nor wrote anything for ten minutes and for five of its rounds: it
            was killed, or waits for its nodes.
        FAILED: Its statement says so: nobody contributed.
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
        name: Of its folder below the folder of runs, with slashes between parts.
        kind: `training`, `statistic`, `recovery` (images from updates) or `unknown`.
        state: Where it has got to.
        settings: Its settings that fit on one line, as text by key, for example `task.name`.
        started: When its settings were written, seconds since 1970.
        changed: When anything of it was written last.
        round: Last released round; 0 is the model before training.
        rounds: Planned.
        score: What the last model is judged by, on public rows.
        test_loss: Of the last model, on public rows.
        epsilon: What the statement quotes once it is there, else what was spent so far; infinite
            epsilon is None.
        delta: The delta that goes with it.
        budget: Epsilon that may be spent.
        unit: What epsilon protects, in the statement's words.
        promises: False where nothing is promised: the statement says so, its epsilon is too large
            to mean anything (`is_promise`), or the noise can be predicted.
        sweep: Name of the sweep's folder that it belongs to.
        variant: What tells it from its siblings there, but for the seed.
        place: Its place on the sweep's axis.
        problems: What could not be read, for a person.
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
    epsilon: float | None = None
    delta: float | None = None
    budget: float | None = None
    unit: str | None = None
    promises: bool = True
    sweep: str | None = None
    variant: str | None = None
    place: str | None = None
    problems: tuple[str, ...] = ()


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
    """Return where a run with readable settings has got to.

    Args:
        done: Whether it has nothing left to do.
        rounds_done: Rounds that it has released.
        started: When its settings were written.
        released: When its metrics or its ledger were written last.
        logged: When its log was written last.
        stated: When its statement was written, if it was.
        now: The time.
        alive: Whether its process is there; None: the times alone tell.
        failed: Whether its statement says that it failed.
    """
    if failed and stated is not None and stated >= released - _SAME_TIME:
        return RunState.FAILED
    if done and stated is not None:
        return RunState.FINISHED
    # A statement is what a run ends with; one that is older is of before it was resumed.
    if stated is not None and stated >= released - _SAME_TIME:
        return RunState.STOPPED
    if alive is False:
        return RunState.STOPPED
    written = max(started, released, logged)
    # The round that goes on takes part of the time, too.
    of_a_round = max(written - started, 0.0) / (rounds_done + 1)
    patience = max(_QUIET, _ROUNDS_OF_QUIET * of_a_round)
    return RunState.RUNNING if now - written < patience else RunState.SILENT


# `key: value` at the margin, or two blanks in, under the group whose name stood alone on a line.
_LINE = re.compile(r"(  )?([A-Za-z_][A-Za-z0-9_]{0,63}):(?: (.{0,10000}))?$")
_LIST = "[...]"


def scalars(text: bytes) -> dict[str, str]:
    """Return the settings of a run's file by their keys, as text; lists are told as `[...]`.

    What does not look like a setting is left out: this is for lists and filters, and
    `FoundRun.settings` has everything.
    """
    found: dict[str, str] = {}
    group = ""
    for line in text.decode(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.lstrip().startswith("- ") and group in found:
                found[group] = _LIST
            continue
        inner, key, value = match.groups()
        if inner:
            key = f"{group.partition('.')[0]}.{key}"
        if value is None or inner is None:
            group = key
        if value is not None:
            found[key] = shown(_unquoted(value))
        elif inner:
            found[key] = _LIST
    return found


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value
