"""One training with canaries: what it told, as a file, and what that shows of its privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import Sampling
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.loss_distributions import NoDistribution
from fl_dp.accounting.trade_off import TradeOff, trade_off
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import Settings
from fl_dp.files import written_whole
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.cohorts import cohorts_are_poisson
from fl_dp.lab.audit.correlated_run import WhoseTurn, seen_with_memory, without_memory
from fl_dp.lab.audit.noise_findings import findings_on_noise
from fl_dp.lab.audit.verdict import AuditReport, Finding
from fl_dp.lab.audit.whole_run import SeenRound, finding_of_run, one_shot_epsilon
from fl_dp.plan import Plan
from fl_dp.promise import delta_rounded_up

from .canary_run import CanaryRun

_OTHERS = 0.1  # of alpha, for what is seen without a bound: it needs less of it
_SURELY = 0.05  # alpha of the bound that is an estimate only


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What canaries were promised: all of them, or those of one group with a budget of its own.

    Attributes:
        epsilon: That the ledger claims for them.
        sampling_rate: Probability of one in a round that it may be drawn in; 1 if that is seen.
        curve: Trade-off curve of what the ledger was charged.
        group: Whose claim it is; None: everybody's.
        whose: Added to the names of its findings.
    """

    epsilon: float
    sampling_rate: float
    curve: TradeOff | None = None
    group: int | None = None
    whose: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenRun:
    """Everything that a run's releases told.

    Attributes:
        rounds: Every release.
        moved: How far the model moved over all of them, flat.
        indices: Of the rounds.
        turn: Public knowledge of who took part; None: cohorts are drawn by secret coins alone.
        coefficients: Of the noise, in units of 2^-12; one where it is independent.
        drawn: Which canaries took part, shape `(rounds, count)`: the auditor's, no adversary's.
        cohorts: How many units were drawn in each round, in the same way.
        own: Group of each canary, where groups have budgets of their own; public. -1: it was never
            drawn, and nobody told its node's.
    """

    rounds: list[SeenRound]
    moved: NDArray[np.float64]
    indices: list[int]
    turn: WhoseTurn | None
    coefficients: tuple[int, ...]
    drawn: NDArray[np.bool_]
    cohorts: NDArray[np.int64]
    own: NDArray[np.int64] | None = None

    @property
    def strangers(self) -> int:
        """How many canaries have a group that nobody knows."""
        return 0 if self.own is None else int((self.own < 0).sum())

    def looks(self, claim: Claim) -> list[SeenRound]:
        """Return what the releases tell of those with that claim, in the form that is judged.

        Raises:
            ValueError: If a round is missing in the middle.
        """
        if self.own is not None:
            idle = np.ones(self.moved.size - len(self.own), dtype=np.bool_)
            # Who was never drawn shows noise alone, whichever its group. Left out of its own, the
            # others would seem to be drawn more often than they are.
            of = np.r_[(self.own == claim.group) | (self.own < 0), idle]
            return [replace(each, of=of) for each in self.rounds]
        if self.turn is None or not self.rounds:
            return self.rounds
        return seen_with_memory(
            self.rounds, self.indices, self.turn, coefficients=self.coefficients
        )


def write_seen(path: Path, run: SeenRun) -> None:
    """Write what was seen of each round, and how far the model moved over all of them."""
    turn = run.turn
    known: dict[str, Any] = {}
    if turn is not None and turn.asked is not None:
        known = {"asked": turn.asked}
    elif turn is not None and turn.groups is not None:
        known = {"groups": turn.groups, "num_groups": np.array(turn.num_groups)}
    if run.own is not None:
        known["own"] = run.own
    with written_whole(path) as unfinished, unfinished.open("wb") as stream:
        np.savez(
            stream,
            along=np.stack([each.along for each in run.rounds]) if run.rounds else np.empty((0, 0)),
            noise_multiplier=np.array([each.noise_multiplier for each in run.rounds]),
            moved=run.moved,
            indices=np.array(run.indices, dtype=np.int64),
            coefficients=np.array(run.coefficients, dtype=np.int64),
            drawn=run.drawn,
            cohorts=run.cohorts,
            **known,
        )


def read_seen(path: Path) -> SeenRun:
    """Read it back.

    Raises:
        OSError: If it can't be read.
    """
    with np.load(path, allow_pickle=False) as stored:
        multipliers = stored["noise_multiplier"].tolist()
        turn = None
        if "asked" in stored:
            turn = WhoseTurn(asked=stored["asked"])
        elif "groups" in stored:
            turn = WhoseTurn(groups=stored["groups"], num_groups=int(stored["num_groups"]))
        return SeenRun(
            rounds=[
                SeenRound(along=along, noise_multiplier=multiplier)
                for along, multiplier in zip(stored["along"], multipliers, strict=True)
            ],
            moved=stored["moved"],
            indices=stored["indices"].tolist(),
            turn=turn,
            coefficients=tuple(stored["coefficients"].tolist()),
            drawn=stored["drawn"],
            cohorts=stored["cohorts"],
            own=stored.get("own"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """A run's releases beside what its ledger, or its plan, claims.

    Attributes:
        seen: What was released, and who took part.
        canaries: Those of the run.
        sampling: As charged.
        claims: Of the ledger, or the plan.
        delta: Of the claims.
    """

    seen: SeenRun
    canaries: Canaries
    sampling: Sampling
    claims: Sequence[Claim]
    delta: float

    def report(
        self,
        *,
        alpha: float,
        subject: str,
        known: str,
        estimates: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
    ) -> AuditReport:
        """Return the findings, and what a reader has to know besides.

        Args:
            alpha: Probability that a run that keeps its claims is accused, over all findings.
            subject: What is audited.
            known: To the adversary, beside the releases.
            estimates: Numbers that are no bounds, by name.
            notes: What else a reader has to know.

        Raises:
            ValueError: As `bound`.
        """
        surely = {
            f"lower bound at confidence 0.95{claim.whose}, on which no verdict rests": self.bound(
                claim, alpha=_SURELY
            ).bound
            or 0.0
            for claim in self.claims
        }
        if self.seen.strangers:
            notes = (
                f"{self.seen.strangers} canaries were never drawn, so their group is not known: "
                "they count in each, and coins were not looked at",
                *notes,
            )
        return AuditReport(
            subject=subject,
            findings=self.findings(alpha=alpha),
            estimates={**surely, **(estimates or {})},
            notes=(
                f"at delta {delta_rounded_up(self.delta)}; the adversary sees every release and "
                f"knows {known}",
                "the bound by Gaussian DP supposes a trade-off curve near a Gaussian's, that by "
                "Clopper-Pearson nothing; the verdict goes by the claimed curve itself",
                *notes,
            ),
        )

    def bound(self, claim: Claim, *, alpha: float) -> Finding:
        """Return what the releases are proof of, beside one claim.

        Raises:
            ValueError: As `finding_of_run`, or if a round is missing amid correlated noise.
        """
        found = finding_of_run(
            self.canaries,
            self.seen.looks(claim),
            sampling_rate=claim.sampling_rate,
            claim=claim.epsilon,
            delta=self.delta,
            alpha=alpha,
            curve=claim.curve,
        )
        return replace(found, name=found.name + claim.whose)

    def findings(self, *, alpha: float) -> tuple[Finding, ...]:
        """Return the findings, of which the first bound the epsilon of each claim.

        Args:
            alpha: Probability that a run that keeps its claims is accused, over all findings.

        Raises:
            ValueError: As `bound`.
        """
        seen, claims = self.seen, self.claims
        # The coins of those in a group who were drawn are no fair sample of the group's.
        unseen = self.sampling.visible or not len(seen.drawn) or seen.strangers
        coins = [] if unseen else claims
        each = _OTHERS * alpha / (2.0 if coins else 1.0)
        share = (1.0 - _OTHERS) * alpha / len(claims)
        fresh, scales, _ = without_memory(seen.rounds, seen.indices, seen.coefficients)
        idle = fresh[:, self.canaries.count :] / scales[:, None]
        findings = [
            *(self.bound(claim, alpha=share) for claim in claims),
            *findings_on_noise(idle, alpha=each, cohorts=seen.cohorts),
        ]
        for claim in coins:
            found = cohorts_are_poisson(
                _coins(seen, self.sampling, claim), claim.sampling_rate, alpha=each / len(claims)
            )
            findings.append(replace(found, name=found.name + claim.whose))
        return tuple(findings)


def report_of_run(
    seen: SeenRun, run: CanaryRun, settings: Settings, folder: RunFolder, *, alpha: float
) -> AuditReport:
    """Return what a run's releases are proof of, beside what its statement and ledger claim.

    Args:
        seen: What was released, and who took part.
        run: Which canaries there were.
        settings: Of the run.
        folder: Of the run.
        alpha: Probability that a run that keeps its claim is accused, over all findings.

    Raises:
        ValueError: As `Audited.bound`.
    """
    statement = folder.read_statement()
    delta, sampling = float(statement["delta"]), folder.read_plan().sampling
    canaries = run.canaries(seen.moved.size)
    quoted = float(statement["epsilon"].get(statement["quoted"], math.inf))
    with folder.read_ledger() as ledger:
        claims = claims_of(ledger.plan, ledger.history, quoted)
    audited = Audited(seen=seen, canaries=canaries, sampling=sampling, claims=claims, delta=delta)
    return audited.report(
        alpha=alpha,
        subject=f"{settings.task.name}, {len(seen.rounds)} rounds",
        known=f"what all others sent{_known_of_cohorts(seen.turn)}",
        estimates={
            "one-shot estimate from the last model alone, which is no bound": one_shot_epsilon(
                canaries, seen.moved, delta=delta
            ),
        },
    )


def claims_of(plan: Plan, history: FrozenHistory, quoted: float) -> list[Claim]:
    """Return what is claimed: for all units, or for each group with a budget of its own.

    Args:
        plan: Of the run.
        history: Releases that were charged.
        quoted: Epsilon of all units.
    """
    law, relation = plan.sampling, plan.neighboring_relation

    def curve(history: FrozenHistory) -> TradeOff | None:
        try:
            return trade_off(history, neighboring_relation=relation)
        except NoDistribution:
            return None

    if not law.own_groups:
        rate = rate_of_coins(law)
        return [Claim(epsilon=quoted, sampling_rate=rate, curve=curve(history))]
    return [
        Claim(
            epsilon=spent.best,
            sampling_rate=group.sampling_rate,
            curve=curve(law.history_for(number, history)),
            group=number,
            whose=f", of those that allow {group.budget:g}",
        )
        for number, (group, spent) in enumerate(
            zip(law.own_groups, plan.own_epsilons(history), strict=True)
        )
    ]


def rate_of_coins(sampling: Sampling) -> float:
    """Return the probability of a client in a round that it may be drawn in; 1 if that is seen."""
    if sampling.visible:
        return 1.0
    assert sampling.coin_rate is not None  # as `require_auditable` has checked
    return sampling.coin_rate


def _coins(seen: SeenRun, sampling: Sampling, claim: Claim) -> NDArray[np.bool_]:
    """Return the coins of canaries with a claim, one row a round, or a turn of each one's group."""
    if seen.own is not None:
        return seen.drawn[:, seen.own == claim.group]
    if not sampling.takes_turns or seen.turn is None or seen.turn.groups is None:
        return seen.drawn
    turns = len(seen.rounds) // sampling.num_groups
    of_group = np.array([sampling.group_at(index) for index in seen.indices])
    return np.hstack(
        [
            seen.drawn[of_group == group][:turns, seen.turn.groups == group]
            for group in range(sampling.num_groups)
        ]
    )


def _known_of_cohorts(turn: WhoseTurn | None) -> str:
    if turn is None:
        return ", but not who was drawn"
    if turn.asked is not None:
        return ", and who was asked in each round"
    return ", and everybody's group, but not who was drawn of it"
