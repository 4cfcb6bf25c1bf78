"""A folder of runs: their list, and one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_dp.app.run_process import PROCESS, is_running
from fl_dp.guarantee import Guarantee
from fl_dp.tasks.public_scores import Score

from .cards import RunCard, RunState, scalars, state_of
from .details import FoundRun, found_run
from .follow import Followed, ReadPosition, follow
from .rounds import METRICS, ReadRounds, Round, last_round
from .untrusted import (
    CONFIG,
    Unreadable,
    folders_below,
    parsed_json,
    path_parts,
    read_object,
    read_whole,
    shown,
)

STATEMENT, SWEEP = "privacy.json", "sweep.json"
_MOST_RUNS = 10_000
_MOST_CONFIG = 1 << 18
_MOST_STATEMENT = 1 << 23
_MOST_SWEEP = 1 << 24
_MOST_PROCESS = 1 << 12

# The database's own file beside the ledger tells of its last commit.
_RELEASES = (METRICS, "ledger.db", "ledger.db-wal")
_LOG = "run.log"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Runs of a folder, last written first; `problems` has what was left out, in words."""

    cards: tuple[RunCard, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One training of a sweep.

    Attributes:
        variant: Its curve, or its difference from the others but for the seed.
        place: Its value on the sweep's axis.
        card: Its card in the list; None before it has begun.
    """

    variant: str | None
    place: str | None
    card: RunCard | None


_Version = tuple[int, int, int]  # inode, time and size of a file


class RunsFolder:
    """A folder with runs, and sweeps of runs; nothing outside of it is ever read.

    Contents are cached as long as a file's inode, time and size stay the same.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Take the folder, perhaps a link itself, and a clock in seconds since 1970."""
        self.root = root.resolve()
        self._clock = clock
        self._cache: dict[str, tuple[_Version, Any]] = {}

    def listing(self) -> Listing:
        """All runs, at most 10,000.

        Raises:
            OSError: If the folder itself can't be read.
        """
        problems: list[str] = []
        names: list[str] = []
        for name in self._names(problems):
            if len(names) == _MOST_RUNS:
                problems.append(f"only {_MOST_RUNS:,} runs are listed, and there are more")
                break
            names.append(name)
        cells: dict[str, Mapping[str, Any]] = {}
        cards = [self._in_sweep(self._card(name), cells) for name in names]
        cards.sort(key=lambda card: (-(card.changed or 0.0), card.name))
        return Listing(cards=tuple(cards), problems=tuple(dict.fromkeys(problems)))

    def card(self, name: str) -> RunCard:
        """One run's card.

        Raises:
            Unreadable: If the name leads elsewhere.
            FileNotFoundError: If there is no run of that name.
        """
        self._require(name)
        return self._in_sweep(self._card(name), {})

    def read(self, name: str) -> FoundRun:
        """One run with its files' contents, as far as they can be read.

        Raises:
            Unreadable: As `card`.
            FileNotFoundError: As `card`.
        """
        return found_run(self.root, self.card(name))

    def sweep(self, name: str) -> list[SweepCell]:
        """A sweep's trainings, in its order.

        Raises:
            Unreadable: If the name leads elsewhere, or its list can't be read.
            OSError: If there is no such sweep.
        """
        self._require(name, SWEEP)
        files = self._files(name)
        cells = []
        for cell, texts in self._read(name, SWEEP, files, _read_cells).items():
            try:
                card = self.card(f"{name}/{cell}")
            except (OSError, Unreadable):
                card = None
            cells.append(SweepCell(variant=texts["variant"], place=texts["place"], card=card))
        return cells

    def follow(self, name: str, mark: ReadPosition) -> Followed:
        """A run's rounds since a mark; see `follow`.

        Raises:
            Unreadable: If the name leads elsewhere, or the file can't be read.
            OSError: If the file can't be read.
        """
        return follow(self.root, name, mark)

    def _require(self, name: str, file: str = CONFIG) -> None:
        path = self.root.joinpath(*path_parts(name))
        steps = [path, *path.parents][: len(path_parts(name))]
        if any(step.is_symlink() for step in steps) or not path.is_dir():
            raise FileNotFoundError(f"there is no run '{name}' here")
        if not os.path.lexists(path / file):
            raise FileNotFoundError(f"there is no run '{name}' here: it has no {file}")

    def _names(self, problems: list[str]) -> Iterator[str]:
        """Yield names of all runs: folders with settings, also below folders without."""
        for within, entries in folders_below(self.root, problems):
            if within and any(entry.name == CONFIG for entry in entries):
                yield within

    def _card(self, name: str) -> RunCard:
        problems: list[str] = []
        files = self._files(name)
        settings: Mapping[str, str] = {}
        state = None
        try:
            settings = self._read(name, CONFIG, files, self._read_settings)
            if not settings:
                raise Unreadable(f"{CONFIG} has no settings")
        except (OSError, Unreadable) as error:
            problems.append(_reason(error))
            state = RunState.BROKEN
        statement = self._if_any(name, STATEMENT, files, self._read_statement, problems)
        rounds = self._if_any(name, METRICS, files, last_round, problems)
        if rounds is None:
            rounds = ReadRounds(rounds=())
        last = rounds.rounds[-1] if rounds.rounds else None
        measured = rounds.evaluated
        planned = rounds.planned
        if planned is None and settings.get("rounds", "").isdecimal():
            planned = int(settings["rounds"][:15])
        process = self._if_any(name, PROCESS, files, _read_process, problems)
        kind = _kind(settings, files)
        started = _last_written(files, [CONFIG])
        released, logged = _last_written(files, _RELEASES), _last_written(files, [_LOG])
        stated = _last_written(files, [STATEMENT]) or None
        if state is None and kind == "recovery":
            # It keeps neither ledger nor rounds; its summary is written last.
            state = RunState.FINISHED if "summary.json" in files else RunState.STOPPED
        elif state is None:
            rounds_done = 0 if last is None else last.round
            all_rounds = last is not None and planned is not None and rounds_done >= planned
            alive = None if process is None else is_running(process)
            state = state_of(
                done=all_rounds or "statistic.json" in files,
                rounds_done=rounds_done,
                started=started,
                released=released,
                logged=logged,
                stated=stated,
                now=self._clock(),
                alive=alive,
                failed=statement is not None and statement["failed"],
            )
        card = RunCard(
            name=name,
            kind=kind,
            state=state,
            settings=settings,
            started=started or None,
            changed=max(started, released, logged, stated or 0.0) or None,
            rounds=planned,
            score=_unmeasured(settings),
            problems=(*problems, *rounds.problems),
        )
        if last is not None:
            card = replace(card, round=last.round, promise=_so_far(last, settings))
        if measured is not None:
            card = replace(card, score=measured.score, test_loss=measured.test_loss)
        return card if statement is None else _with_promise(card, statement)

    def _files(self, name: str) -> dict[str, _Version]:
        versions = {}
        with os.scandir(self.root / name) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    status = entry.stat(follow_symlinks=False)
                    versions[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return versions

    def _read(
        self, name: str, file: str, files: Mapping[str, _Version], read: Callable[[Path, str], Any]
    ) -> Any:
        """The content of a run's file, from memory if unchanged."""
        path, version = f"{name}/{file}", files.get(file, (0, 0, 0))
        entry = self._cache.get(path)
        if entry is None or entry[0] != version:
            if len(self._cache) > 4 * _MOST_RUNS:
                self._cache.clear()  # runs come and go, and this must not grow with them
            try:
                content = read(self.root, name)
            except Unreadable as error:
                content = error
            entry = self._cache[path] = (version, content)
        if isinstance(entry[1], Unreadable):
            raise entry[1]
        return entry[1]

    def _if_any(
        self,
        name: str,
        file: str,
        files: Mapping[str, _Version],
        read: Callable[[Path, str], Any],
        problems: list[str],
    ) -> Any:
        if file not in files:
            return None
        try:
            return self._read(name, file, files, read)
        except (OSError, Unreadable) as error:
            problems.append(_reason(error))
            return None

    def _read_settings(self, root: Path, name: str) -> dict[str, str]:
        return scalars(read_whole(root, f"{name}/{CONFIG}", most=_MOST_CONFIG))

    def _read_statement(self, root: Path, name: str) -> dict[str, Any]:
        # Without `tame` for the whole document: a list needs only a few of its values.
        text = read_whole(root, f"{name}/{STATEMENT}", most=_MOST_STATEMENT)
        statement = parsed_json(text, STATEMENT)
        if not isinstance(statement, dict):
            raise Unreadable(f"{STATEMENT} holds no JSON object")
        records = statement.get("records")
        return {
            "failed": isinstance(statement.get("failure"), str),
            "promise": Guarantee.stated(statement),
            "of_records": Guarantee.stated(records) if isinstance(records, dict) else None,
        }

    def _in_sweep(self, card: RunCard, cells: dict[str, Mapping[str, Any]]) -> RunCard:
        """A run's card with the fields from its sweep."""
        sweep, _, cell = card.name.rpartition("/")
        if not sweep:
            return card
        if sweep not in cells:
            cells[sweep] = {}
            try:
                files = self._files(sweep)
                if SWEEP in files:
                    cells[sweep] = self._read(sweep, SWEEP, files, _read_cells)
            except (OSError, Unreadable) as error:
                card = replace(card, problems=(*card.problems, _reason(error)))
        texts = cells[sweep].get(cell)
        if texts is None:
            return card
        return replace(card, sweep=sweep, variant=texts.get("variant"), place=texts.get("place"))


def read_run(path: Path) -> FoundRun:
    """The run in a folder, as far as it can be read; the folder itself may be a link.

    Raises:
        Unreadable: If its name can't be shown.
        FileNotFoundError: If there is no run in it.
    """
    path = path.resolve()
    return RunsFolder(path.parent).read(path.name)


def _kind(settings: Mapping[str, str], files: Mapping[str, _Version]) -> str:
    if "recovery.csv" in files or settings.get("recovery.attacks") == "[...]":
        return "recovery"
    if "statistic.json" in files or settings.get("statistic.query") not in (None, "null"):
        return "statistic"
    return "training" if "task.name" in settings else "unknown"


def _unmeasured(settings: Mapping[str, str]) -> Score:
    of_classes = settings.get("task.label_range", "null") == "null"
    return Score() if of_classes else Score(name="r2")


def _last_written(files: Mapping[str, _Version], names: Iterable[str]) -> float:
    """When one of the files was last written, seconds since 1970; 0 if there is none."""
    times = [files[name][1] / 1e9 for name in names if name in files]
    return max(times, default=0.0)


def _read_process(root: Path, name: str) -> dict[str, Any]:
    return read_object(root, f"{name}/{PROCESS}", most=_MOST_PROCESS)


def _read_cells(root: Path, sweep: str) -> dict[str, dict[str, str | None]]:
    entries = read_object(root, f"{sweep}/{SWEEP}", most=_MOST_SWEEP).get("cells")
    cells = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            cells[entry["name"]] = {key: _text(entry.get(key)) for key in ("variant", "place")}
    return cells


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _so_far(last: Round, settings: Mapping[str, str]) -> Guarantee | None:
    """The promise that a run's last line tells, with what was spent so far."""
    promise = last.promise
    if promise is None:
        if last.epsilon is None:
            return None
        promise = Guarantee(delta=None, unit=None, neighbours=None, against=None)
    predictable = settings.get("privacy.insecure_seed", "null") != "null"
    insecure = promise.insecure or predictable
    return replace(promise, spent=last.epsilon, insecure=insecure)


def _with_promise(card: RunCard, stated: Mapping[str, Any]) -> RunCard:
    # While a resumed run goes on, its statement is older, and more was spent since.
    if card.state in (RunState.RUNNING, RunState.SILENT) and card.promise is not None:
        return card
    return replace(card, promise=stated["promise"], of_records=stated["of_records"])


def _reason(error: OSError | Unreadable) -> str:
    if isinstance(error, Unreadable):
        return str(error)
    return f"{shown(str(error.filename))} can't be read ({error.strerror})"
