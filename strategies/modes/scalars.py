"""Meaning of a round's released scalars: the next clipping norm, metrics, contributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_dp.mechanisms import GaussianBundle
from fl_dp.plan import Plan

from .base import Released


def released_by(
    plan: Plan,
    bundle: GaussianBundle,
    mean: NDArray[np.float64],
    scalars: Sequence[float],
) -> Released:
    """A round's release, made of numbers already private.

    `scalars` are the sums of scalars, in the order of `GaussianBundle.scalar_values`.
    """
    sums = list(scalars)
    # Popped in the order in which the bundle has its scalars: the count, the bit, the metrics.
    count = None if bundle.count_noise_std is None else sums.pop(0)
    norms = None
    if (clipping := plan.release.adaptive_clipping) is not None:
        next_norm = clipping.next_norm(
            bundle.clipping_norms[0],
            noisy_bit_sum=sums.pop(0),
            denominator=plan.expected_weight,
        )
        norms = (next_norm,)
    metrics = {
        metric.name: metric.mean(total, plan.expected_weight)
        for metric, total in zip(bundle.metrics, sums, strict=True)
    }
    return Released(
        mean=mean,
        metrics=metrics,
        clipping_norms=norms,
        contributions=count,
        contributions_std=bundle.count_noise_std or 0.0,
    )
