"""Audits from scores of a final model alone: of membership, losses, whatever an attack gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .bounds import most_that_clopper_pearson_shows
from .scores import bounds_of_scores
from .verdict import AuditReport, Finding


def report_of_scores(
    out: NDArray[np.float64],
    there: NDArray[np.float64],
    *,
    claim: float,
    delta: float,
    alpha: float,
    subject: str,
    seed: int = 0,
) -> AuditReport:
    """Return what scores are proof of, beside what their model claims.

    Args:
        out: Scores of units that the training did not see, larger where an attack believes that it
            did. Trials have to be independent: units of one model are so only approximately, and
            those of many independently trained models exactly.
        there: Scores of units that it saw.
        claim: Epsilon that it claims for one of them.
        delta: Of the claim.
        alpha: Probability that a model that keeps its claim is accused.
        subject: What is audited.
        seed: Of the order in which scores are split into halves.

    Raises:
        ValueError: As `bounds_of_scores`.
    """
    rng = np.random.default_rng(seed)
    out, there = rng.permutation(out), rng.permutation(there)
    found = bounds_of_scores(out, there, alpha=alpha, delta=delta)
    counts = found.at_epsilon
    most = most_that_clopper_pearson_shows(
        counts.positives, counts.negatives, alpha=alpha / 2.0, delta=delta
    )
    # Scores of a final model follow no law that is known: the Gaussian route is no bound here.
    finding = Finding(
        name="scores of the final model",
        alpha=alpha,
        claim=claim,
        delta=delta,
        bounds={"clopper_pearson": found.epsilon},
        seen=(
            f"{counts.true_positives} of {counts.positives} found at {counts.false_positives} "
            f"false alarms of {counts.negatives}"
        ),
        power=f"shows epsilon {most:.3g} at most",
    )
    return AuditReport(
        subject=subject,
        findings=(finding,),
        estimates={
            "epsilon by Gaussian DP, if the scores' trade-off were a Gaussian's; no bound": (
                found.gaussian_epsilon
            )
        },
        notes=(
            "the adversary sees the final model alone, and is as strong as its attack: a weak "
            "attack shows little of any leak",
        ),
    )
