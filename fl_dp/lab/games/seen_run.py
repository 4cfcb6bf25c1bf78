"""One training with canaries: what it told, as a file, and what that shows of its privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import CyclicSampling, PoissonSampling, Sampling
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

from .canary_run import CanaryRun

_OTHERS = 0.1  # of alpha, for what is seen without a bound: it needs less of it
_SURELY = 0.05  # alpha of the bound that is an estimate only


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
    """

    rounds: list[SeenRound]
    moved: NDArray[np.float64]
    indices: list[int]
    turn: WhoseTurn | None
    coefficients: tuple[int, ...]
    drawn: NDArray[np.bool_]
    cohorts: NDArray[np.int64]

    def looks(self) -> list[SeenRound]:
        """Return what the releases tell of participations, in the form that is judged.

        Raises:
            ValueError: If a round is missing in the middle.
        """
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
        )


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
        ValueError: As `findings_of`.
    """
    statement = folder.read_statement()
    delta, sampling = float(statement["delta"]), folder.read_plan().sampling
    canaries = run.canaries(seen.moved.size)
    claimed: dict[str, Any] = {
        "claim": float(statement["epsilon"].get(statement["quoted"], math.inf)),
        "delta": delta,
        "curve": _charged_curve(folder),
    }
    surely = finding_of_run(
        canaries,
        seen.looks(),
        sampling_rate=rate_of_coins(sampling),
        alpha=_SURELY,
        **claimed,
    )
    return AuditReport(
        subject=f"{settings.task.name}, {len(seen.rounds)} rounds",
        findings=findings_of(seen, canaries, sampling, alpha=alpha, **claimed),
        estimates={
            "lower bound at confidence 0.95, on which no verdict rests": surely.bound or 0.0,
            "one-shot estimate from the last model alone, which is no bound": one_shot_epsilon(
                canaries, seen.moved, delta=delta
            ),
        },
        notes=(
            f"at delta {delta:.3g}; the adversary sees every released model and knows what all "
            f"others sent{_known_of_cohorts(seen.turn)}",
            "the bound by Gaussian DP supposes a trade-off curve near a Gaussian's, that by "
            "Clopper-Pearson nothing; the verdict goes by the claimed curve itself",
        ),
    )


def findings_of(
    seen: SeenRun,
    canaries: Canaries,
    sampling: Sampling,
    *,
    claim: float,
    delta: float,
    alpha: float,
    curve: TradeOff | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of a run, of which the first bounds its epsilon.

    Args:
        seen: What was released, and who took part.
        canaries: Those of the run.
        sampling: As charged.
        claim: Epsilon that the ledger claims.
        delta: Of the claim.
        alpha: Probability that a run that keeps its claim is accused, over all findings.
        curve: Trade-off curve of what the ledger was charged.

    Raises:
        ValueError: As `finding_of_run`, or if a round is missing amid correlated noise.
    """
    coins = None if sampling.visible else _coins(seen, sampling)
    each = _OTHERS * alpha / (1.0 if coins is None else 2.0)
    bound = finding_of_run(
        canaries,
        seen.looks(),
        sampling_rate=rate_of_coins(sampling),
        claim=claim,
        delta=delta,
        alpha=(1.0 - _OTHERS) * alpha,
        curve=curve,
    )
    fresh, scales, _ = without_memory(seen.rounds, seen.indices, seen.coefficients)
    idle = fresh[:, canaries.count :] / scales[:, None]
    findings = bound, *findings_on_noise(idle, alpha=each, cohorts=seen.cohorts)
    if coins is None:
        return findings
    return *findings, cohorts_are_poisson(coins, rate_of_coins(sampling), alpha=each)


def rate_of_coins(sampling: Sampling) -> float:
    """Return the probability of a client in a round that it may be drawn in; 1 if that is seen."""
    if sampling.visible:
        return 1.0
    inside = sampling.inside if isinstance(sampling, CyclicSampling) else sampling
    assert isinstance(inside, PoissonSampling)  # as `require_auditable` has checked
    return inside.sampling_rate


def _coins(seen: SeenRun, sampling: Sampling) -> NDArray[np.bool_]:
    """Return the coins of the canaries, one row a round, or a turn of each one's group."""
    if not isinstance(sampling, CyclicSampling) or seen.turn is None or seen.turn.groups is None:
        return seen.drawn
    turns = len(seen.rounds) // sampling.groups
    of_group = np.array(seen.indices) % sampling.groups
    return np.hstack(
        [
            seen.drawn[of_group == group][:turns, seen.turn.groups == group]
            for group in range(sampling.groups)
        ]
    )


def _charged_curve(folder: RunFolder) -> TradeOff | None:
    """Return the trade-off curve of what the ledger was charged, None if it has none."""
    with folder.read_ledger() as ledger:
        history, relation = ledger.history, ledger.plan.neighboring_relation
    try:
        return trade_off(history, neighboring_relation=relation)
    except NoDistribution:
        return None


def _known_of_cohorts(turn: WhoseTurn | None) -> str:
    if turn is None:
        return ", but not who was drawn"
    if turn.asked is not None:
        return ", and who was asked in each round"
    return ", and everybody's group, but not who was drawn of it"
