"""The account of a run: one for each data set of your own beside the runs, or `privacy.account`.

A run of public data that names none has a throw-away account: its own `ledger.db`.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fl_dp.accounting import PrivacyBudget, default_delta
from fl_dp.ledger import (
    AccountLedger,
    LedgerAnchor,
    Population,
    PrivacyLedger,
    Witness,
    enter_records,
    enter_sweep,
    enter_unprotected,
    witness_at,
)
from fl_dp.ledger.entering import require_enterable
from fl_dp.mechanisms import SecureRandom
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan, RecordPlan

from .people_of_data import file_of, is_of_somebody, population_of
from .run_folder import RunFolder
from .settings import Settings
from .settings.promises import account, witness

SUFFIX = ".account.db"
"""Ending of an account's file."""

_BESIDE = "a run beside it"

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class RunAccount:
    """The account that a run or a sweep is entered in.

    Attributes:
        location: File or database URL.
        name: Name of the entry.
        cap: Cap that the settings ask for; None: none in particular.
        witness_dir: Folder of the account's witness; None without one.
    """

    location: str
    name: str
    cap: PrivacyBudget | None
    witness_dir: str | None

    @classmethod
    def of(cls, settings: Settings, path: Path) -> Self | None:
        """Return that of a run or sweep in a folder; None: a throw-away one.

        Args:
            settings: The run's.
            path: The folder, absolute; its parent is that of accounts given by name.
        """
        if not settings.has_account:
            return None
        asked, cap = settings.privacy.make_by(account)
        if asked is None:
            asked = _file_beside(path.parent, settings)
        folder: str | None = None
        if settings.privacy.has(witness):
            folder = settings.privacy.make_by(witness)
        if "://" in asked:
            return cls(location=asked, name=str(path), cap=cap, witness_dir=folder)
        file = Path(asked)
        if not file.is_absolute():
            file = path.parent / f"{asked}{SUFFIX}"
        made = cls(location=str(file), name=str(path), cap=cap, witness_dir=folder)
        return replace(made, name=made.entry_of(path))

    def entry_of(self, path: Path) -> str:
        """Return the name of the entry of a folder."""
        beside = Path(self.location).parent
        if "://" in self.location or not path.is_relative_to(beside):
            return str(path)
        return path.relative_to(beside).as_posix()

    def has_entry(self) -> bool:
        """Tell whether something was entered under its name, as one of a sweep, too."""
        ledger = self.read()
        if ledger is None:
            return False
        with ledger:
            return self.name in ledger.account.entered or self.name in ledger.account.trainings

    @property
    def witness(self) -> Witness | None:
        """The account's witness, if the settings name a folder."""
        if self.witness_dir is None:
            return None
        name = self.location.partition("?")[0].rpartition("/")[2].removesuffix(".db")
        return witness_at(Path(self.witness_dir) / f"{name}.heads")

    def read(self) -> AccountLedger | None:
        """Return the account, opened to look at; None: it is to be made."""
        if "://" not in self.location and not _is_begun(Path(self.location)):
            return None
        ledger = AccountLedger.begun(self.location, witness=self.witness)
        if ledger is not None:
            self.require_known_to_runs(ledger)
        return ledger

    @classmethod
    def at(cls, file: Path) -> Self:
        """Return the account of a file, without an entry."""
        return cls(location=str(file.absolute()), name="", cap=None, witness_dir=None)

    def require_known_to_runs(self, ledger: AccountLedger) -> None:
        """Check that the account holds every entry that a run beside it knows.

        Raises:
            LedgerCorrupted: Its end was cut off, or it is an older copy.
        """
        anchor = self.anchor()
        if anchor is not None:
            ledger.require_holds(anchor, of=_BESIDE)

    def delta(self) -> float | None:
        """Return the delta of a plan that is given none; None: the usual one, or a sweep's.

        A sweep's plans have theirs since they were entered: by the same settings.
        """
        ledger = self.read()
        if ledger is None:
            return None if self.cap is None else self.cap.delta / 2.0
        with ledger:
            if ledger.account.is_of_sweep(self.name):
                return None
        return PrivacyLedger.delta_for(self.location, name=self.name, cap=self.cap)

    def anchor(self) -> LedgerAnchor | None:
        """Return the furthest entry of the account that a statement beside it knows."""
        anchors: list[LedgerAnchor] = []
        file = Path(self.location)
        if "://" in self.location or not _is_begun(file):
            return None
        for note in [*file.parent.glob("*/account.json"), *file.parent.glob("*/*/account.json")]:
            folder = RunFolder(note.parent)
            with suppress(OSError, ValueError):  # what can't be read knows nothing
                entry = folder.entry()
                if entry is not None and entry[0] == file.resolve():
                    anchors += folder.anchors().values()
        return max(anchors, key=lambda anchor: anchor.entries, default=None)

    def require_enterable(
        self,
        plan: Plan | RecordPlan | Mapping[str, Plan] | None,
        num_clients: int,
        population: Population | None = None,
    ) -> None:
        """Check that a run or sweep could be entered now; see `fl_dp.ledger.entering`."""
        require_enterable(
            self.location,
            self.name,
            plan,
            delta=default_delta(num_clients),
            cap=self.cap,
            population=population,
            witness=self.witness,
        )

    def enter_sweep(self, plans: Mapping[str, Plan], people: Mapping[str, Population]) -> None:
        """Enter trainings together; see `fl_dp.ledger.entering`."""
        enter_sweep(
            self.location,
            self.name,
            plans,
            cap=self.cap,
            populations=people,
            witness=self.witness,
        )

    def require_unused(self) -> None:
        """Check that no other run or sweep was entered under this name.

        Raises:
            OptionError: One was.
        """
        ledger = self.read()
        if ledger is None:
            return
        with ledger:
            entered = ledger.account.entered.get(self.name)
            if entered is not None and not entered.is_replaceable:
                raise OptionError(
                    f"the account {ledger.account.terms.name} has a run '{self.name}' already: "
                    "choose another run_name, or leave it out",
                    option="run_name",
                )


def with_account_delta(settings: Settings, path: Path) -> Settings:
    """Return settings whose delta, if it is null, is half of what the account has left."""
    group = "privacy" if settings.protects_clients else "dp_sgd"
    option = settings.privacy if settings.protects_clients else settings.dp_sgd
    run_account = RunAccount.of(settings, path)
    if run_account is None or "delta" not in vars(option) or option.get("delta") is not None:
        return settings
    delta = run_account.delta()
    if delta is None:
        return settings
    return settings.with_group(group, option.with_values(delta=delta))


def require_total_given_up(run_account: RunAccount | None, settings: Settings) -> None:
    """Check that a run without a promise was given its account by name, if that has a total.

    Raises:
        OptionError: It would take the total for good, and nobody asked for that.
    """
    has_promise = settings.protects_clients or settings.protects_records
    if has_promise and not settings.noise_can_be_predicted:
        return
    ledger = None
    if run_account is not None and settings.privacy.make_by(account)[0] is None:
        ledger = run_account.read()
    if ledger is None:
        return
    with ledger:
        totals = ledger.account.totals().values()
    if any(map(math.isfinite, totals)):
        file = Path(ledger.location)
        raise OptionError(
            f"this run makes no promise, and would leave the account {file} without a total for "
            f"good: to have it so write privacy.account={file.name.removesuffix(SUFFIX)}, or else "
            "train with a promise, or on public data",
            option="privacy",
        )


def open_training(
    folder: RunFolder,
    settings: Settings,
    plan: Plan,
    *,
    rng: SecureRandom,
    run_id: str | None = None,
    digest: str | None = None,
) -> PrivacyLedger:
    """Open a run's training to spend from, in its account, before anything is asked.

    Args:
        folder: The run's; it notes where the training was entered.
        settings: The run's.
        plan: The training's.
        rng: The source of noise.
        run_id: Name of this opening.
        digest: Digest of all training settings.

    Raises:
        ValueError, PrivacyBudgetExhausted, LedgerCorrupted: As `PrivacyLedger.open`.
    """
    options: dict[str, Any] = {"rng": rng, "run_id": run_id, "settings": digest}
    run_account = account_of(folder, settings)
    if folder.entry() is None:
        require_total_given_up(run_account, settings)
    if run_account is None:
        return PrivacyLedger.open(
            folder.ledger, plan, witness=folder.witness(settings), name=None, **options
        )
    ledger = PrivacyLedger.open(
        run_account.location,
        plan,
        name=run_account.name,
        cap=run_account.cap,
        population=population_of(settings),
        witness=run_account.witness,
        anchor=run_account.anchor(),
        **options,
    )
    folder.note_entry(run_account.location, run_account.name)
    return ledger


def account_of(folder: RunFolder, settings: Settings) -> RunAccount | None:
    """Return the account that a run was entered in, or is to be; None: a throw-away one."""
    entry = folder.entry()
    if entry is not None:
        asked = settings.privacy.with_values(account=str(entry[0]))
        run_account = RunAccount.of(settings.with_group("privacy", asked), folder.path)
        assert run_account is not None  # it has a location
        return replace(run_account, name=entry[1])
    if folder.ledger.is_file():
        return None
    return RunAccount.of(settings, folder.path)


def goes_on_from(folder: RunFolder, settings: Settings) -> str | None:
    """Return the training of the run's own account whose model its first weights are, if any.

    What that model says of its people is in the account's total.
    """
    run_account = account_of(folder, settings)
    if settings.model.initial is None or run_account is None or "://" in run_account.location:
        return None
    before = RunFolder(Path(settings.model.initial).parent)
    entry = before.entry()
    if Path(settings.model.initial) != before.model or entry is None:
        return None
    location, name = entry
    return name if location == Path(run_account.location).resolve() else None


def enter_without_plan(
    folder: RunFolder, settings: Settings, record_plan: RecordPlan | None
) -> None:
    """Enter a run without a promise to clients, before anything is asked.

    Raises:
        OptionError: The account has a cap, and no bound is known.
        PrivacyBudgetExhausted: The account has less left.
    """
    run_account = account_of(folder, settings)
    if run_account is None:
        return
    if folder.entry() is None:
        require_total_given_up(run_account, settings)
    location, name = run_account.location, run_account.name
    options: dict[str, Any] = {"cap": run_account.cap, "witness": run_account.witness}
    options["population"] = population_of(settings)
    if record_plan is not None and not settings.noise_can_be_predicted:
        enter_records(location, name, record_plan, **options)
    else:
        what = "a training without noise"
        if record_plan is not None:
            what = "DP-SGD with noise that can be predicted"
        delta = default_delta(settings.task.num_clients)
        enter_unprotected(location, name, what, delta=delta, **options)


def in_words(run_account: RunAccount | None, settings: Settings) -> str:
    """Return which account a run is entered in, what it adds up to, and what is left."""
    if run_account is None:
        reason = "its data are public"
        if settings.task.is_own:
            reason = "its nodes' data are theirs"
        return (
            f"Account: none, as {reason}: nothing adds this run's budget to that of another; "
            "privacy.account=NAME does"
        )
    ledger = run_account.read()
    if ledger is None:
        cap = "without a cap"
        if (most := run_account.cap) is not None:
            cap = f"with a cap of epsilon={most.epsilon:g} and delta={most.delta:g}"
        return f"Account: {run_account.location}, a new one {cap}"
    with ledger:
        return f"Account: {run_account.location}, {_standing(ledger)}"


def _standing(ledger: AccountLedger) -> str:
    account = ledger.account
    if account.unprotected or math.isinf(account.total(account.neighbours)):
        totals = account.totals_in_words()
    else:
        totals = [account.total_in_words(account.neighbours)]
    count = f"all {account.size} runs" if account.size > 1 else "one run"
    return f"{count}: {', '.join(totals)}; left: {account.left_in_words()}"


def _file_beside(folder: Path, settings: Settings) -> str:
    """Return the file of the account of a run's people, in a folder of runs.

    It is found by whom it is of, else made: by the name of the data, or the next one where that is
    other people's.
    """
    people, task = population_of(settings), settings.task
    name = Path(task.data_dir).stem if task.is_own and task.data_dir is not None else task.name
    name = name or task.name
    if people is None:
        return str(folder / f"{name}{SUFFIX}")
    own = file_of(people, accounts_in(folder))
    if own is not None:
        return str(own)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    files = (folder / f"{stem}{SUFFIX}" for stem in names)
    return str(next(file for file in files if not is_of_somebody(file)))


def _is_begun(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def accounts_in(folder: Path) -> Sequence[Path]:
    """Return the files of accounts in a folder of runs, by name."""
    return sorted(file for file in folder.glob(f"*{SUFFIX}") if _is_begun(file))
