"""Choice of a run's hyper-parameters, in the run's own ledger and before its first round."""

from __future__ import annotations

import logging

import numpy as np
from flwr.serverapp import Grid

from fl_dp.app.accounts import open_training
from fl_dp.app.cells import digest_of
from fl_dp.app.charged_choice import vote_of
from fl_dp.app.planning import make_clipping, make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import Settings
from fl_dp.app.workload import check_data
from fl_dp.ledger import PrivacyLedger, Reservation
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.statement import privacy_statement
from fl_dp.strategies import AskOptions, ask_federation

from . import TRIAL_VALUES
from .candidates import as_chosen, candidates_of
from .trial import TrialRounds
from .trial_scores import public_scores, trials_config

CHOICE = "choice of hyper-parameters"
"""Name of the vote in the ledger."""

TRIALS = "trials"
"""Folder of trainings that may lose, in the run's folder, as long as they last."""

logger = logging.getLogger("flwr.fl_dp")


def _left_over(folder: RunFolder) -> str:
    """Name an interrupted choice's leftovers, which must stay secret."""
    trials = folder.path / TRIALS
    return f"; delete {trials}, which shows what lost" if trials.exists() else ""


def chosen_settings(folder: RunFolder, grid: Grid, settings: Settings, *, run_id: str) -> Settings:
    """Choose hyper-parameters, if the settings ask for it, and return those to train with.

    The choice goes to the run's `config.yaml`; `run_id` names the opening in the ledger.

    Privacy: for a vote, see `vote_of`; it is charged to the run's ledger before any client is
    asked. A charged choice without an outcome in the ledger is not made again.

    Raises:
        ValueError: If the choice was charged and lost, or the settings can't be carried out.
    """
    tune = settings.tune
    if not tune.pending:
        return settings
    if tune.by == "stopping":
        spent = "; what was charged for it stays charged" if folder.has_ledger else ""
        raise ValueError(
            "tune.by=stopping makes a random number of trainings, and none of them is continued: "
            f"write `fl-dp tune tune.by=stopping ...`{spent}{_left_over(folder)}"
        )
    name = _recorded_choice(folder) or _choose(folder, grid, settings, run_id)
    chosen = as_chosen(settings, name)
    _record(folder, chosen)
    return chosen


def _recorded_choice(folder: RunFolder) -> str | None:
    """An interrupted run's choice, None if it had made none."""
    if not folder.has_ledger:
        return None
    with folder.read_ledger() as ledger:
        return None if ledger.choice is None else ledger.choice.chosen


def _record(folder: RunFolder, chosen: Settings) -> None:
    folder.write_settings(chosen)
    logger.info("Chosen by %s: %s", chosen.tune.by, chosen.tune.chosen)


def _choose(folder: RunFolder, grid: Grid, settings: Settings, run_id: str) -> str:
    """Choose a candidate; return it once it is in the ledger."""
    check_data(settings)
    rng = settings.privacy.rng()
    plan = folder.read_plan() if folder.has_ledger else make_plan(settings)
    with open_training(folder, settings, plan, rng=rng, run_id=run_id) as ledger:
        try:
            return _chosen(ledger, grid, settings, rng)
        finally:
            # Also after a failure: the reserved charge is spent, and the statement has to count it.
            folder.write_statement(privacy_statement(ledger))


def _chosen(ledger: PrivacyLedger, grid: Grid, settings: Settings, rng: SecureRandom) -> str:
    if ledger.reservation_of(CHOICE) is not None:
        raise ValueError(
            "the choice of hyper-parameters was charged, and what came of it was lost: it stays "
            "charged and is not made twice; start a new run, with what is left of the budget"
        )
    candidates = candidates_of(settings)
    # The trials' rounds have the noise of the plan's round with the least.
    rounds = TrialRounds(
        most=settings.tune.rounds,
        multiplier=ledger.plan.noise_multiplier,
        denominator=ledger.plan.denominator,
    )
    ballot, paid = vote_of(settings), None
    if ballot is None:
        winner = int(np.argmax(public_scores(candidates, rounds)))
        description = (
            f"the best of {len(candidates)} by trials on the server's public test part, which "
            "measures accuracy too"
        )
    else:
        answer = ask_federation(
            grid,
            ledger,
            CHOICE,
            ballot,
            AskOptions(
                rng=rng,
                config=trials_config([one.for_clients() for one in candidates], rounds),
                timeout=settings.round_timeout,
                roster_timeout=settings.roster_timeout,
            ),
            values=TRIAL_VALUES,
        )
        winner, paid = int(answer.value), ledger.reservation_of(CHOICE)
        description = f"drawn among {len(candidates)} by a vote of the clients on their own data"
    return _write_down(ledger, settings, winner, description, paid)


def _write_down(
    ledger: PrivacyLedger,
    settings: Settings,
    winner: int,
    description: str,
    paid: Reservation | None,
) -> str:
    candidates = settings.tune.candidates
    assert candidates is not None  # there was a choice among them
    name = candidates[winner]
    chosen = as_chosen(settings, name)
    ledger.choose(
        name,
        how=description,
        settings=digest_of(chosen),
        plan=plan_with(ledger.plan, chosen),
        paid=paid,
    )
    return name


def plan_with(plan: Plan, chosen: Settings) -> Plan:
    """A plan of the chosen settings' releases, at the same charge."""
    return plan.with_clipping(make_clipping(chosen))
