"""A training with canaries: its releases, as a file, and what they show of its privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import CyclicSampling, OwnRatesSampling, PoissonSampling, Sampling
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.loss_distributions import NoDistribution
from fl_dp.accounting.trade_off import TradeOff, trade_off
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import Settings
from fl_dp.files import written_whole
from fl_dp.guarantee import Guarantee
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.cohorts import cohorts_are_poisson
from fl_dp.lab.audit.correlated_run import PublicTurns, matched_filters, with_fresh_noise
from fl_dp.lab.audit.noise_findings import findings_on_noise
from fl_dp.lab.audit.verdict import AuditReport, Finding
from fl_dp.lab.audit.whole_run import ObservedRound, finding_of_run, one_shot_epsilon
from fl_dp.plan import Plan

from .canary_run import CanaryRun

_SHARE_OF_OTHERS = 0.1  # of alpha, for findings without a bound: they need less of it
_ALPHA_OF_ESTIMATE = 0.05  # of the bound on which no verdict rests


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The promise to all canaries, or to one group with its own budget.

    Attributes:
        epsilon: Epsilon that the ledger claims for them.
        sampling_rate: Probability of being drawn in an eligible round; 1 if that is visible.
        curve: Trade-off curve of the ledger's charges; None: unknown.
        group: The group; None: all canaries.
        label_suffix: Text appended to each finding's name.
    """

    epsilon: float
    sampling_rate: float
    curve: TradeOff | None = None
    group: int | None = None
    label_suffix: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRun:
    """Everything that a run's releases showed.

    Attributes:
        rounds: Every release.
        moved: Change of the model over all rounds, flat.
        indices: Index of each round.
        turns: What is public of who took part; None: secret coins alone draw cohorts.
        coefficients: Coefficients of the noise, in units of 2^-12; one where it is independent.
        drawn: Which canaries took part, shape `(rounds, count)`; for the auditor alone.
        cohorts: Number of drawn units of each round; for the auditor alone.
        budget_groups: Each canary's public group, where groups have their own budgets; -1 if it
            was never drawn, so its node did not report the group.
    """

    rounds: list[ObservedRound]
    moved: NDArray[np.float64]
    indices: list[int]
    turns: PublicTurns | None
    coefficients: tuple[int, ...]
    drawn: NDArray[np.bool_]
    cohorts: NDArray[np.int64]
    budget_groups: NDArray[np.int64] | None = None

    @property
    def num_unknown(self) -> int:
        """Number of canaries whose group is unknown."""
        return 0 if self.budget_groups is None else int((self.budget_groups < 0).sum())

    def rounds_for(self, claim: Claim) -> list[ObservedRound]:
        """Return what the releases show of a claim's canaries, for `finding_of_run`.

        Raises:
            ValueError: As `matched_filters`.
        """
        if self.budget_groups is not None:
            idle = np.ones(self.moved.size - len(self.budget_groups), dtype=np.bool_)
            # A canary that was never drawn shows noise alone, in any group. Without it, the others
            # of its group would seem to be drawn more often.
            members = (self.budget_groups == claim.group) | (self.budget_groups < 0)
            eligible = np.r_[members, idle]
            return [replace(release, eligible=eligible) for release in self.rounds]
        if self.turns is None or not self.rounds:
            return self.rounds
        return matched_filters(
            self.rounds, self.indices, self.turns, coefficients=self.coefficients
        )


def write_observed_run(path: Path, run: ObservedRun) -> None:
    """Write an observed run to a `.npz` file."""
    turns = run.turns
    participation: dict[str, Any] = {}
    if turns is not None and turns.asked is not None:
        participation = {"asked": turns.asked}
    elif turns is not None and turns.groups is not None:
        participation = {"groups": turns.groups, "num_groups": np.array(turns.num_groups)}
    if run.budget_groups is not None:
        participation["own"] = run.budget_groups
    along = np.empty((0, 0))
    if run.rounds:
        along = np.stack([release.along for release in run.rounds])
    with written_whole(path) as unfinished, unfinished.open("wb") as stream:
        np.savez(
            stream,
            along=along,
            noise_multiplier=np.array([release.noise_multiplier for release in run.rounds]),
            moved=run.moved,
            indices=np.array(run.indices, dtype=np.int64),
            coefficients=np.array(run.coefficients, dtype=np.int64),
            drawn=run.drawn,
            cohorts=run.cohorts,
            **participation,
        )


def read_observed_run(path: Path) -> ObservedRun:
    """Read what `write_observed_run` wrote.

    Raises:
        OSError: If it can't be read.
    """
    with np.load(path, allow_pickle=False) as stored:
        multipliers = stored["noise_multiplier"].tolist()
        turns = None
        if "asked" in stored:
            turns = PublicTurns(asked=stored["asked"])
        elif "groups" in stored:
            turns = PublicTurns(groups=stored["groups"], num_groups=int(stored["num_groups"]))
        return ObservedRun(
            rounds=[
                ObservedRound(along=along, noise_multiplier=multiplier)
                for along, multiplier in zip(stored["along"], multipliers, strict=True)
            ],
            moved=stored["moved"],
            indices=stored["indices"].tolist(),
            turns=turns,
            coefficients=tuple(stored["coefficients"].tolist()),
            drawn=stored["drawn"],
            cohorts=stored["cohorts"],
            budget_groups=stored.get("own"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """A run's releases and participation, beside its ledger's or plan's claims."""

    run: ObservedRun
    canaries: Canaries
    sampling: Sampling
    claims: Sequence[Claim]
    delta: float

    def report(
        self,
        *,
        alpha: float,
        subject: str,
        promise: Guarantee,
        knowledge: str,
        estimates: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
    ) -> AuditReport:
        """The findings, with the notes that a reader needs.

        A run that keeps its claims is accused with probability `alpha`, over all findings.
        `knowledge` is what the adversary knows besides the releases; `estimates`, by name, are no
        bounds. `subject` names what is audited, and `promise` has the terms of all claims.

        Raises:
            ValueError: As `bound`.
        """
        at_95 = {}
        for claim in self.claims:
            name = f"lower bound at confidence 0.95{claim.label_suffix}, on which no verdict rests"
            at_95[name] = self.bound(claim, alpha=_ALPHA_OF_ESTIMATE).bound or 0.0
        if self.run.num_unknown:
            notes = (
                f"{self.run.num_unknown} canaries were never drawn, so their group is not known: "
                "they count in each, and coins were not looked at",
                *notes,
            )
        return AuditReport(
            subject=subject,
            promise=promise,
            findings=self.findings(alpha=alpha),
            estimates={**at_95, **(estimates or {})},
            notes=(
                f"the adversary sees every release and knows {knowledge}",
                "the bound by Gaussian DP supposes a trade-off curve near a Gaussian's, that by "
                "Clopper-Pearson nothing; the verdict goes by the claimed curve itself",
                *notes,
            ),
        )

    def bound(self, claim: Claim, *, alpha: float) -> Finding:
        """Return what the releases prove, beside one claim.

        Raises:
            ValueError: As `finding_of_run` and `matched_filters`.
        """
        finding = finding_of_run(
            self.canaries,
            self.run.rounds_for(claim),
            sampling_rate=claim.sampling_rate,
            claim=claim.epsilon,
            delta=self.delta,
            alpha=alpha,
            curve=claim.curve,
        )
        return replace(finding, name=finding.name + claim.label_suffix)

    def findings(self, *, alpha: float) -> tuple[Finding, ...]:
        """The findings; the first ones bound the epsilon of each claim.

        A run that keeps its claims is accused with probability `alpha`, over all findings.

        Raises:
            ValueError: As `bound`.
        """
        run, claims = self.run, self.claims
        # Coins of drawn members alone are no fair sample of their group's coins.
        has_coins = not self.sampling.visible and len(run.drawn) > 0 and not run.num_unknown
        level = _SHARE_OF_OTHERS * alpha
        if has_coins:
            level /= 2.0
        share = (1.0 - _SHARE_OF_OTHERS) * alpha / len(claims)
        fresh, scales, _ = with_fresh_noise(run.rounds, run.indices, run.coefficients)
        idle = fresh[:, self.canaries.count :] / scales[:, None]
        findings = [self.bound(claim, alpha=share) for claim in claims]
        findings += findings_on_noise(idle, alpha=level, cohorts=run.cohorts)
        for claim in claims if has_coins else ():
            coins = _coins(run, self.sampling, claim)
            finding = cohorts_are_poisson(coins, claim.sampling_rate, alpha=level / len(claims))
            findings.append(replace(finding, name=finding.name + claim.label_suffix))
        return tuple(findings)


def report_of_run(
    observed: ObservedRun, run: CanaryRun, settings: Settings, folder: RunFolder, *, alpha: float
) -> AuditReport:
    """Return what a run's releases prove, beside the claims of its statement and ledger.

    A run that keeps its claim is accused with probability `alpha`, over all findings.

    Raises:
        ValueError: As `Audited.bound`.
    """
    statement = folder.read_statement()
    delta, sampling = float(statement["delta"]), folder.read_plan().sampling
    canaries = run.canaries(observed.moved.size)
    quoted = float(statement["epsilon"].get(statement["quoted"], math.inf))
    with folder.read_ledger() as ledger:
        claims = claims_of(ledger.plan, ledger.history, quoted)
    audited = Audited(
        run=observed, canaries=canaries, sampling=sampling, claims=claims, delta=delta
    )
    one_shot = one_shot_epsilon(canaries, observed.moved, delta=delta)
    return audited.report(
        alpha=alpha,
        subject=f"{settings.task.name}, {len(observed.rounds)} rounds",
        promise=Guarantee.stated(statement),
        knowledge=f"what all others sent{_knowledge_of_cohorts(observed.turns)}",
        estimates={"one-shot estimate from the last model alone, which is no bound": one_shot},
    )


def claims_of(plan: Plan, history: FrozenHistory, quoted: float) -> list[Claim]:
    """One claim for all units, or one per group with its own budget.

    `quoted` is the epsilon of all units, `history` the charged releases.
    """
    law, relation = plan.sampling, plan.neighboring_relation

    def curve(history: FrozenHistory) -> TradeOff | None:
        try:
            return trade_off(history, neighboring_relation=relation)
        except NoDistribution:
            return None

    if not isinstance(law, OwnRatesSampling):
        rate = rate_of_coins(law)
        return [Claim(epsilon=quoted, sampling_rate=rate, curve=curve(history))]
    groups = zip(law.own_groups, plan.own_epsilons(history), strict=True)
    return [
        Claim(
            epsilon=spent.best,
            sampling_rate=group.sampling_rate,
            curve=curve(law.history_for(number, history)),
            group=number,
            label_suffix=f", of those that allow {group.budget:g}",
        )
        for number, (group, spent) in enumerate(groups)
    ]


def rate_of_coins(sampling: Sampling) -> float:
    """A client's probability of being drawn in an eligible round; 1 if that is visible."""
    if sampling.visible:
        return 1.0
    inside = sampling.inside if isinstance(sampling, CyclicSampling) else sampling
    assert isinstance(inside, PoissonSampling)  # as `require_auditable` has checked
    return inside.sampling_rate


def _coins(run: ObservedRun, sampling: Sampling, claim: Claim) -> NDArray[np.bool_]:
    """The coins of a claim's canaries, one row per round or per turn of their group."""
    if run.budget_groups is not None:
        return run.drawn[:, run.budget_groups == claim.group]
    turns = run.turns
    if not isinstance(sampling, CyclicSampling) or turns is None or turns.groups is None:
        return run.drawn
    num_turns = len(run.rounds) // sampling.num_groups
    group_of_round = np.array([sampling.group_at(index) for index in run.indices])
    columns = []
    for group in range(sampling.num_groups):
        coins = run.drawn[group_of_round == group]
        columns.append(coins[:num_turns, turns.groups == group])
    return np.hstack(columns)


def _knowledge_of_cohorts(turns: PublicTurns | None) -> str:
    if turns is None:
        return ", but not who was drawn"
    if turns.asked is not None:
        return ", and who was asked in each round"
    return ", and everybody's group, but not who was drawn of it"
