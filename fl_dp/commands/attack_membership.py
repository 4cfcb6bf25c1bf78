"""`fl-dp attack membership`: who was part of a training?"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fl_dp.app.pictures import in_lines, where_drawn
from fl_dp.guarantee import Guarantee

from .console import (
    AsJson,
    Overrides,
    doing,
    err,
    exit_on_errors,
    fail,
    out,
    print_json,
    print_plainly,
    warn,
)
from .on_public_data import DataIsPublic, counted, require_public

if TYPE_CHECKING:
    from rich.table import Table

    from fl_dp.accounting.trade_off import TradeOff
    from fl_dp.lab.attacks.membership.roc import OperatingPoint, Roc
    from fl_dp.lab.games.membership import GameResult, MembershipPromise

    from .jobs import Job

_RATES = (0.001, 0.01)
_INTERVAL = 0.05  # false-alarm rate of the intervals that are shown
_ACCUSATION = 1e-6  # of the verdict, over all attacks and rates
_MODELS = 16


class CandidateUnit(StrEnum):
    """Candidates of the attack: records, or whole clients."""

    RECORD = "record"
    CLIENT = "client"


def membership(
    overrides: Overrides = None,
    unit: Annotated[
        CandidateUnit | None,
        typer.Option("--unit", help="Whom to look for; by default whom the settings protect."),
    ] = None,
    models: Annotated[
        int, typer.Option("--models", help="Trainings; the others help to attack each.")
    ] = _MODELS,
    data_is_public: DataIsPublic = False,
    as_json: AsJson = False,
) -> None:
    """Infer who was part of a training, and compare with what its promise allows.

    OVERRIDES are settings, KEY=VALUE, as for `fl-dp run`. For example:

    - `fl-dp attack membership privacy.epsilon=8 rounds=30`

    - `fl-dp attack membership privacy=none --unit client rounds=30`

    - `fl-dp attack membership experiment=records --unit record --models 8`

    Only simulations can be attacked. It trains the task again and again in this process, each time
    with a random half of the clients (or of their records), by the code that `fl-dp run` runs.
    Attacks see the final models alone, and their answers for each candidate: a loss threshold, LiRA
    (offline and online), RMIA with one and with two reference models.

    Writes `runs/NAME/`: `membership.csv`, `roc.csv`, `roc.png`. Ends with status 1 if an attack
    does better than the promise allows.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # its folders are removed then, too
    with exit_on_errors():
        from .jobs import find_jobs, prepare

        texts = overrides or []
        if any(text.startswith("resume=") for text in texts):
            fail(
                "an attack trains models of its own: write the run's settings, not resume", status=2
            )
        (job,) = find_jobs(texts, multirun=False).trainings
        job.settings.require_training()
        because = "an attack trains and looks at models that are not released"
        require_public(job.settings, stated=data_is_public, because=because)
        whom = _unit_of(job, unit)
        from fl_dp.lab.games.membership import play_membership, promise_to

        with doing("looking at what is promised"):
            promise = promise_to(job.settings, whom)
        prepare(job)
        title = f"{job.settings.task.name}: training"
        console = err if as_json else out
        with counted(console, title, models, "models") as on_model:
            game = play_membership(job.settings, whom, models=models, on_model=on_model)
        result = _attack(job, whom, game, promise)
        drawn = _write(job.path, result)
    if as_json:
        print_json(result.document)
    else:
        _show(result, job.path, drawn=drawn)
    if result.document["exceeds"]:
        fail(
            "an attack does better than the promise allows: the promise is wrong, or its code is; "
            "`fl-dp audit` looks closer",
            status=1,
        )


def _unit_of(job: Job, asked: CandidateUnit | None) -> str:
    if asked is not None:
        return str(asked)
    settings = job.settings
    if settings.protects_records_alone or settings.privacy.unit == "record":
        return str(CandidateUnit.RECORD)
    return str(CandidateUnit.CLIENT)


@dataclass(frozen=True, kw_only=True, eq=False)
class _MembershipResult:
    """Result of all attacks.

    Attributes:
        document: Numbers, as `--json` prints them.
        rocs: ROC of each attack, by name.
        allowed: Curves that no attack lies above, the tightest last.
    """

    document: dict[str, Any]
    rocs: Mapping[str, Roc]
    allowed: Mapping[str, TradeOff]

    def rows(self, attack: str) -> list[dict[str, Any]]:
        return [row for row in self.document["attacks"] if row["attack"] == attack]


def _attack(
    job: Job, unit: str, game: GameResult, promise: MembershipPromise | None
) -> _MembershipResult:
    from fl_dp.lab.attacks.membership.inference import ATTACKS, attacked

    allowed = _allowed(promise)
    rocs = {name: attacked(game.observations, attack) for name, attack in ATTACKS.items()}
    alpha = _ACCUSATION / (len(rocs) * len(_RATES))
    rows = []
    for name, roc in rocs.items():
        rows += [_row(name, roc, roc.at(rate), allowed, alpha) for rate in _RATES]
    first = next(iter(rocs.values()))
    document = {
        "task": job.settings.task.name,
        "model": job.settings.model.name,
        "unit": unit,
        "models": game.observations.models,
        "members": len(first.members),
        "others": len(first.others),
        "train_accuracy": fmean(game.train_accuracy),
        "test_accuracy": fmean(game.test_accuracy),
        "promised": None if promise is None else promise.guarantee.to_dict(),
        "attacks": rows,
        "exceeds": any(row["exceeds"] for row in rows),
        "note": _NOTE,
        "path": str(job.path),
    }
    return _MembershipResult(document=document, rocs=rocs, allowed=allowed)


_NOTE = (
    "attacks of a simulation, on public data: that none succeeds proves no privacy, and intervals "
    "take trials as independent although those of one model share its noise"
)


def _allowed(promise: MembershipPromise | None) -> dict[str, TradeOff]:
    """Return the curves that no attack lies above, the tightest last."""
    if promise is None:
        return {}
    curves = {in_lines(f"allowed by {promise.guarantee}", 40): promise.curve()}
    try:
        curves["allowed by the whole\nprivacy-loss distribution"] = promise.full_curve()
    except ValueError as error:
        warn(f"no curve of the privacy-loss distribution: {error}")
    return curves


def _row(
    name: str, roc: Roc, point: OperatingPoint, allowed: Mapping[str, TradeOff], alpha: float
) -> dict[str, Any]:
    low, high = point.tpr_interval(_INTERVAL)
    curves = list(allowed.values())
    most = [float(curve(point.target_fpr)) for curve in curves]
    return {
        "attack": name,
        "auc": roc.auc,
        "asked_fpr": point.target_fpr,
        "fpr": point.fpr,
        "tpr": point.tpr,
        "tpr_low": low,
        "tpr_high": high,
        "allowed_by_epsilon_delta": next(iter(most), None),
        "allowed": next(reversed(most), None),
        "exceeds": any(point.exceeds(curve, alpha) for curve in curves),
    }


def _write(path: Path, result: _MembershipResult) -> bool:
    """Write tables and the picture; return whether there is a picture."""
    from fl_dp.files import private_folder
    from fl_dp.lab.attacks.membership.roc import plot_roc
    from fl_dp.terminal.sheets import write_sheet

    document = result.document
    private_folder(path, exist_ok=False)
    whole = ("task", "model", "unit", "models", "members", "others")
    shared, attacks = [document[key] for key in whole], document["attacks"]
    rows = ([*shared, *attack.values()] for attack in attacks)
    write_sheet(path / "membership.csv", [*whole, *attacks[0]], rows, public=True)
    points: list[list[Any]] = []
    for name, roc in result.rocs.items():
        points += ([name, *pair] for pair in zip(*roc.curve(), strict=True))
    write_sheet(path / "roc.csv", ["attack", "fpr", "tpr"], points, public=True)
    return plot_roc(
        result.rocs,
        result.allowed,
        path / "roc.png",
        title=f"Membership of a {document['unit']}: {document['task']}, {document['model']}, "
        f"{document['models']} models",
        rates=_RATES,
        alpha=_INTERVAL,
    )


def _show(result: _MembershipResult, path: Path, *, drawn: bool) -> None:
    document = result.document
    promise = "Nothing is promised to those who were looked for"
    if document["promised"] is not None:
        promise = f"Promised: {Guarantee.read(document['promised'])}"
    print_plainly(
        out,
        _table(result),
        f"Accuracy {document['train_accuracy']:.3f} on members, {document['test_accuracy']:.3f} on "
        "the public test part: means of all models",
        promise,
        f"Read it as {document['note']}",
        "TPR: share of members that are found, with 95 % intervals; FPR: of others that are, too",
        f"Everything is in {path}",
        where_drawn(path / "roc.png", drawn=drawn),
    )


def _table(result: _MembershipResult) -> Table:
    from fl_dp.terminal.sheets import sheet

    document = result.document
    title = (
        f"Membership of a {document['unit']}, {document['models']} models: "
        f"{document['members']} members, {document['others']} others"
    )
    rows = [
        (name, f"{roc.auc:.3f}", *map(_cell, result.rows(name)))
        for name, roc in result.rocs.items()
    ]
    if result.allowed:
        *_, tightest = result.allowed.values()
        most = (f"{float(tightest(rate)):.2%}" for rate in _RATES)
        rows.append(("allowed at most", "", *most))
    rows.append(("guessing", "0.500", *(f"{rate:.2%}" for rate in _RATES)))
    numbers = ("AUC", *(f"TPR at FPR {rate:.1%}" for rate in _RATES))
    return sheet(title, ("attack", *numbers), rows, numbers=numbers)


def _cell(row: Mapping[str, Any]) -> str:
    return f"{row['tpr']:.2%} ({100 * row['tpr_low']:.2f} to {100 * row['tpr_high']:.2f})"
