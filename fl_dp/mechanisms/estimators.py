"""Sensitivity of the two estimators of a weighted mean of updates.

McMahan et al. 2018, section 3: with weights `w_k` in [0, 1] that the clients apply to their updates
before clipping, and a cohort S in which each unit is with probability q,

- fixed denominator: `sum_S w_k D_k / (q W)`, W a public constant: a unit moves the numerator alone,
  by at most the clipping norm;
- capped denominator: `sum_S w_k D_k / max(q W_min, sum_S w_k)`: a unit moves numerator *and*
  denominator, which doubles the sensitivity.

Any other denominator that depends on who replied has no bound and can't be expressed.
"""

from __future__ import annotations

from .checks import require_positive


def capped_denominator_sensitivity(clipping_norm: float, least_denominator: float) -> float:
    """Return the L2 sensitivity of a weighted sum over `max(q W_min, sum of the weights)`.

    Args:
        clipping_norm: Bound on each `D_k` before its weight in [0, 1].
        least_denominator: `q W_min`, the public lower bound on the denominator.
    """
    require_positive(clipping_norm=clipping_norm, least_denominator=least_denominator)
    # Once for the unit's own term, and once as the mean of the others is rescaled by its weight.
    return 2.0 * clipping_norm / least_denominator
