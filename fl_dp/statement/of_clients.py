"""Privacy statement of a training: the promise to its clients, and its basis."""

from __future__ import annotations

import math

from fl_dp.accounting import OwnRatesSampling, PrivacyEvent, freeze
from fl_dp.accounting.events import RandomStoppingEvent
from fl_dp.accounting.second_figure import SecondFigure, second_figure
from fl_dp.ledger import SpentLedger
from fl_dp.ledger.training import library_versions
from fl_dp.plan import DistributedNoise, Plan
from fl_dp.plan.ceiling import Neighbours
from fl_dp.plan.plan_base import ANOTHER_APP, AROUND_A_GATE
from fl_dp.promise import Enforcement

from .sentences import MEAN_OF_A_PERSON, NOT_COVERED_OF_CLIENTS, UNITS
from .several_records import several_records_of
from .stated_promise import AccountClaims, OwnPromise, PrivacyStatement, SecureSumClaims
from .words import figure_of, neighbours_in_words, not_covered_of


def privacy_statement(ledger: SpentLedger) -> PrivacyStatement:
    """Compute the statement from the ledger's entries alone.

    With noise at the clients it has one number, which holds against the server. The sum of their
    noise gives no second number against those who see only models. Messages are rounded to the
    model's floating-point type, and a sum of rounded Gaussians is as private as no known Gaussian.
    A sum's last bits reveal its terms' binades, however large the noise.
    """
    plan = ledger.plan
    spent, promised = ledger.epsilon(), ledger.promise()
    chosen, second = _hyper_parameters(ledger), second_figure_of(ledger)
    holds = {
        "seed": ledger.insecure,
        "figure": second.above_ours,
        "choice": chosen is None,
        "liars": plan.noise is None,  # noise in shares has sentences of its own on them
        "best of many": any(isinstance(event, RandomStoppingEvent) for event, _ in ledger.history),
        "so far": promised != spent,
        "items": plan.hosting.of_records,
        "rows": plan.hosting.of_records,
    }
    enforcement = _enforcement(ledger)
    not_covered = not_covered_of(NOT_COVERED_OF_CLIENTS, holds, figure=figure_of(second))
    not_covered += _not_covered_of_plan(plan, enforcement)
    trusted = plan.trusted_behind_gates() if enforcement else plan.trusted
    own: tuple[OwnPromise, ...] | None = None
    if isinstance(plan.sampling, OwnRatesSampling):
        own = _own_budgets(ledger, plan.sampling)
    mechanism = plan.mechanism
    if plan.unit == "person":
        mechanism += MEAN_OF_A_PERSON
    if ledger.other_releases_spent:
        mechanism += ", and the other releases that are listed"
    return PrivacyStatement(
        delta=plan.budget.delta,
        epsilon=promised.by_name,
        quoted=promised.best_name,
        epsilon_so_far=spent.by_name,
        budget=plan.budget,
        unit=UNITS[plan.unit],
        neighboring_relation=plan.neighboring_relation,
        against=plan.against,
        adversary=plan.adversary,
        trusted=trusted,
        mechanism=mechanism,
        sampling=_sampling(plan),
        rule=ledger.rule,
        sampling_rate=plan.sampling_rate,
        rounds=ledger.rounds_spent,
        rounds_planned=plan.rounds,
        rounds_committed=ledger.rounds_committed,
        noise_multipliers=tuple(ledger.noise_multipliers),
        most_rounds=plan.sampling.cap,
        metrics=tuple(metric.name for metric in plan.release.metrics),
        releases=tuple(ledger.history),
        clipping=plan.release.clipping,
        clipping_norm=plan.clipping_norm,
        denominator=plan.denominator,
        num_clients=plan.num_units,
        randomness=tuple(sorted(ledger.randomness)),
        insecure=ledger.insecure,
        not_covered=tuple(not_covered),
        versions=library_versions(),
        ledger=ledger.name,
        anchor=ledger.anchor,
        account=_account(ledger),
        secure_sums=None if plan.noise is None else _secure_sums(ledger, plan.noise),
        own_budgets=own,
        hyper_parameters=chosen,
        epsilon_of_several=None if plan.unit == "client" else several_records_of(ledger),
        second_figure=second,
        enforcement=enforcement,
    )


def _enforcement(ledger: SpentLedger) -> Enforcement | None:
    """Return the gates' enforcement of a promise against the server; None without gates."""
    if ledger.plan.trusts_server:
        return None
    if ledger.enforcement not in (Enforcement.SITE, Enforcement.COOPERATIVE):
        return None
    return ledger.enforcement


def _not_covered_of_plan(plan: Plan, enforcement: Enforcement | None) -> list[str]:
    """Return what the plan's kind does not cover, with the sentence for gates, if any."""
    another_app = {
        None: [ANOTHER_APP],
        Enforcement.COOPERATIVE: [AROUND_A_GATE],
        Enforcement.SITE: [],
    }
    sentences: list[str] = []
    for sentence in plan.not_covered:
        if sentence == ANOTHER_APP:
            sentences += another_app[enforcement]
        else:
            sentences.append(sentence)
    return sentences


def second_figure_of(ledger: SpentLedger) -> SecondFigure:
    """Return dp-accounting's own epsilon for the history of the promise."""
    plan = ledger.plan
    return second_figure(
        ledger.promised_history,
        plan.event_budget.delta,
        ours=ledger.promise(),
        neighboring_relation=plan.neighboring_relation,
        slack=plan.slack,
    )


def _sampling(plan: Plan) -> str:
    """Return the law of cohorts in words, with the rounds that one client is charged for."""
    cap = plan.sampling.cap
    if cap is None:
        return plan.sampling.describe(_sampled(plan))
    least = " of the least noise" if len(set(plan.noise_multipliers)) > 1 else ""
    law = plan.sampling.describe().partition(":")[0]
    return f"{law}: {cap} rounds{least} are charged in full, a client's most"


def _hyper_parameters(ledger: SpentLedger) -> str | None:
    """Return how they were chosen; None: unknown, or the training used others."""
    choice = ledger.choice
    if choice is None or not ledger.trained_as_chosen:
        return None
    paid = "at no charge" if choice.reserved is None else "its charge is among the releases"
    return f"{choice.chosen}, {choice.how}; {paid}"


def _account(ledger: SpentLedger) -> AccountClaims:
    """Return what all trainings of the account add up to."""
    account, neighbours = ledger.account, Neighbours.of(ledger.plan)
    total = account.total(neighbours)
    return AccountClaims(
        name=account.terms.name,
        training=ledger.training,
        trainings=account.size,
        epsilon=total if math.isfinite(total) else None,
        delta=account.terms.delta,
        cap=account.terms.cap if neighbours == account.neighbours else None,
    )


def _own_budgets(ledger: SpentLedger, law: OwnRatesSampling) -> tuple[OwnPromise, ...]:
    """Return the promise to each group with its own budget."""
    promises: list[OwnPromise] = []
    for group, bounds in zip(law.own_groups, ledger.own_promises(), strict=True):
        promise = OwnPromise(
            budget=group.budget,
            share=group.share,
            sampling_rate=group.sampling_rate,
            epsilon=bounds.best,
            noise_scale=1.0 / group.scale,
        )
        promises.append(promise)
    return tuple(promises)


def _secure_sums(ledger: SpentLedger, noise: DistributedNoise) -> SecureSumClaims:
    """Return the promises of secure sums."""
    plan = ledger.plan
    planned = freeze([(plan.event_at(multiplier), 1) for multiplier in plan.noise_multipliers])
    # Other releases may have their noise elsewhere, and could look the same.
    rounds = dict(planned).keys() - dict(plan.other_releases).keys()
    public_history: list[tuple[PrivacyEvent, int]] = []
    for event, count in ledger.promised_history:
        if event in rounds:
            event = noise.of_public_models(event)
        public_history.append((event, count))
    shares = noise.shares
    guaranteed = shares.guaranteed if noise.secure_sum.roster else None
    return SecureSumClaims(
        nodes=shares.cohort,
        sampled=_sampled(plan),
        least=shares.least,
        guaranteed=guaranteed,
        colluding=shares.colluding,
        honest_shares=noise.honest_shares,
        slack=plan.slack,
        epsilon_of_models=plan.epsilon(public_history).within(plan.budget.epsilon).best,
    )


def _sampled(plan: Plan) -> str:
    """Return the word for what a round samples."""
    return plan.unit if plan.hosting.of_records else plan.hosting.sampled


def promise_in_words(plan: Plan) -> dict[str, str]:
    """Return a plan's promise in words: its unit, neighbours, adversary and trusted parties."""
    unit, relation = UNITS[plan.unit], plan.neighboring_relation
    return {
        "unit": unit,
        "neighbours": f"{relation}: {neighbours_in_words(unit, relation)}",
        "adversary": plan.adversary,
        "trusted": plan.trusted,
    }
