"""Accounts of the trainings of one command: room before they start, joint entries, totals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fl_dp.app.accounts import RunAccount, account_of, in_words, require_total_given_up
from fl_dp.app.people_of_data import population_of
from fl_dp.guarantee import grouped
from fl_dp.ledger import Population
from fl_dp.ledger.entered import EnteredSweep, NotJoint
from fl_dp.plan import Plan
from fl_dp.plan.ceiling import Neighbours

if TYPE_CHECKING:
    from .jobs import Job, Jobs


def run_account_of(job: Job) -> RunAccount | None:
    """Return the account of a training; None: a throw-away one."""
    if job.resumed or job.account is None:
        return account_of(job.folder, job.settings) if job.resumed else None
    asked = job.settings.privacy.with_values(account=job.account)
    return RunAccount.of(job.settings.with_group("privacy", asked), job.path)


def accounts_in_words(jobs: Jobs) -> list[str]:
    """Return a line for each account of the trainings."""
    lines = [in_words(run_account_of(job), job.settings) for job in jobs.trainings]
    return list(dict.fromkeys(lines))


def lost_totals(jobs: Jobs) -> list[str]:
    """Return a warning for each account that a run without a promise leaves without a total."""
    lines: list[str] = []
    for job in jobs.trainings:
        run_account = run_account_of(job)
        if job.resumed or run_account is None or job.plan is not None:
            continue
        lines.append(
            f"privacy=none: once it has begun, the account {run_account.location} has no total "
            "any more, for good, as nothing bounds what this run tells of its people"
        )
    return list(dict.fromkeys(lines))


def require_room(jobs: Jobs) -> None:
    """Check that the accounts have room for what is not begun, before anything starts.

    Raises:
        PrivacyBudgetExhausted, ValueError: One has not; the text says what is left.
    """
    joint: set[str] = set()
    for sweep, plans in _sweeps(jobs):
        with suppress(NotJoint):
            sweep.require_enterable(plans, len(plans))
            joint |= plans.keys()
    for job in jobs.trainings:
        run_account = run_account_of(job)
        if run_account is None or job.resumed or run_account.name in joint:
            continue
        if not run_account.has_entry():
            require_total_given_up(run_account, job.settings)
            people = population_of(job.settings)
            run_account.require_enterable(job.plan, job.settings.task.num_clients, people)


def enter_together(jobs: Jobs) -> None:
    """Enter the trainings of a new sweep, those of each account as one.

    What can't be joined, as it has no plan or one of other neighbours, enters itself.

    Raises:
        PrivacyBudgetExhausted, ValueError: An account has less left; nothing was begun.
    """
    people: dict[str, Population] = {}
    for job in jobs.trainings:
        run_account, population = run_account_of(job), population_of(job.settings)
        if run_account is not None and population is not None:
            people[run_account.name] = population
    for run_account, plans in _sweeps(jobs):
        with suppress(NotJoint):
            run_account.enter_sweep(plans, {name: people[name] for name in plans if name in people})


def totals_of(jobs: Jobs) -> list[str]:
    """Return what the trainings of a sweep add up to, a line for each unit and neighbours."""
    if jobs.sweep is None:
        return []
    plans: list[Plan] = []
    without = 0
    for job in jobs.trainings:
        if job.folder.has_ledger:
            plans.append(job.folder.read_plan())
        else:
            without += 1
    people = [population_of(job.settings) for job in jobs.trainings if job.settings.task.is_own]
    dealt_anew = len({one.clients for one in people if one is not None}) > 1
    lines: list[str] = []
    for neighbours, alike in grouped(plans, Neighbours.of).items():
        try:
            joint = EnteredSweep.of({str(n): plan for n, plan in enumerate(alike)}).budget
            epsilon, delta = joint.epsilon, joint.delta
        except NotJoint:
            epsilon = math.fsum(plan.budget.epsilon for plan in alike)
            delta = math.fsum(plan.budget.delta for plan in alike)
        condition = "they are of the same people"
        if neighbours.unit == "client" and dealt_anew:
            condition = (
                "all had the same clients; but seed or split dealt rows anew, so `fl-dp budgets` "
                "counts records"
            )
        lines.append(
            f"Together, the {len(alike)} trainings spend {neighbours.together(epsilon, delta)}, "
            f"if {condition}"
        )
    if without:
        lines.append(f"{without} of the trainings made no promise to clients, and have no number")
    return lines


def _sweeps(jobs: Jobs) -> Iterator[tuple[RunAccount, dict[str, Plan]]]:
    """Yield the new sweep's entry in each account, with the plans that may be joined there."""
    if jobs.sweep is None:
        return
    groups: dict[RunAccount, dict[str, Plan]] = {}
    for job in jobs.trainings:
        run_account = run_account_of(job)
        if run_account is not None and not job.resumed and isinstance(job.plan, Plan):
            group = replace(run_account, name=run_account.entry_of(jobs.sweep))
            groups.setdefault(group, {})[run_account.name] = job.plan
    for run_account, plans in groups.items():
        if len(plans) > 1 and not run_account.has_entry():
            yield run_account, plans
