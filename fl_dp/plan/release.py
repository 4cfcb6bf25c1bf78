"""A round's release: a bounded mean over its cohort, and scalars beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_dp.mechanisms import (
    AdaptiveClipping,
    Clipping,
    GaussianBundle,
    ScalarMetric,
)
from fl_dp.mechanisms.adaptive_clipping import default_bit_noise_std
from fl_dp.mechanisms.clipping import joint_clipping_norm
from fl_dp.mechanisms.clipping_rules import require_clipping
from fl_dp.option_errors import OptionError

# A part of noise std r times the round's own costs the rest a factor (1 - r^-2)^-1/2: solved for r.
# Bits and metrics lie in [-1/2, 1/2], so half of it is enough for them; they may cost 5 %.
_CHEAP_SCALARS = 0.5 / math.sqrt(1.0 - 1.05**-2)
# The same of the number of contributions, at 1 % and at most; below a tenth of the cohort it gains
# nothing. A round whose count has noise std s tells nobody from three quarters of a cohort of m by
# a logarithm of (0.75 m / s)^2 / 2: at this times m sqrt(rounds), by 20 in a quarter of the rounds.
_CHEAP_COUNT = 1.0 / math.sqrt(1.0 - 1.01**-2)
_DEAREST_COUNT = 1.0 / math.sqrt(1.0 - 1.05**-2)
_CLEAR_COUNT = 0.1
_TIMELY_COUNT = 0.75 / math.sqrt(4.0 * 2.0 * 20.0)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Bounds on updates, scalars released beside them, and the denominator of their sum.

    Attributes:
        metrics: Clients' metrics that each round releases, at no charge of their own: the updates
            get a little more noise instead.
        scalar_noise_std: Noise standard deviation on the sum of each metric and of adaptive
            clipping's bits, both scaled to [-1/2, 1/2]. Default: 0.05 x expected cohort, or more
            where that would add over 5 % to the updates' noise.
        total_weight: Public sum of all clients' weights in [0, 1], for the denominator (the
            estimator `f~f` of McMahan et al. 2018); None: every client weighs 1.
        contribution_check: Whether each round also releases a noisy number of contributing units,
            at no charge of its own. The updates get at most 1 % more noise, or up to 5 % where few
            clients or rounds would show a failure too late. A training without contributions then
            ends early. With noise at the clients, the server counts the messages it sees.
    """

    clipping: Clipping
    metrics: tuple[ScalarMetric, ...] = ()
    scalar_noise_std: float | None = None
    total_weight: float | None = None
    contribution_check: bool = True

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            TypeError: The clipping is no rule.
        """
        require_clipping(self.clipping)

    def check(self, num_clients: int) -> None:
        """Refuse weights that no such roster has.

        Raises:
            ValueError: `total_weight` is not in (0, `num_clients`].
        """
        weight = self.total_weight
        if weight is not None and not 0.0 < weight <= num_clients:
            raise OptionError(
                f"total_weight must lie in (0, num_clients={num_clients}], as no client "
                f"weighs more than 1, got {weight}",
                option="total_weight",
            )

    @property
    def adaptive_clipping(self) -> AdaptiveClipping | None:
        """The rule that moves the clipping norm, if one does."""
        return self.clipping if isinstance(self.clipping, AdaptiveClipping) else None

    @property
    def clipping_norm(self) -> float:
        """L2 bound on one client's whole update, in the first round."""
        return joint_clipping_norm(self.clipping.first_norms)

    def bundle(
        self,
        noise_multiplier: float,
        *,
        expected_cohort: float,
        rounds: int,
        counted: bool = True,
        clipping_norms: tuple[float, ...] | None = None,
        coefficients: tuple[int, ...] | None = None,
        size: int = 1,
    ) -> GaussianBundle:
        """Return a round's sums, with each one's noise; see `Plan.bundle`.

        `counted`: whether the number of contributions needs noise.
        """
        bit = self.adaptive_clipping is not None
        scalars = int(bit) + len(self.metrics)
        noise_std = self.scalar_noise_std
        if scalars and noise_std is None:
            noise_std = max(
                default_bit_noise_std(expected_cohort),
                _CHEAP_SCALARS * noise_multiplier * math.sqrt(scalars),
            )
        count_noise_std = None
        if self.contribution_check and counted:
            count_noise_std = _count_noise_std(noise_multiplier, expected_cohort, rounds)
        if coefficients is None:
            size = 1
        return GaussianBundle(
            noise_multiplier=noise_multiplier,
            clipping_norms=clipping_norms or self.clipping.first_norms,
            unclipped_bit=bit,
            metrics=self.metrics,
            scalar_noise_std=noise_std,
            count_noise_std=count_noise_std,
            coefficients=coefficients,
            size=size,
        )

    def denominator(self, expected_cohort: float, num_clients: int) -> float:
        """Return the public divisor of a round's sum: a cohort's expected weight."""
        if self.total_weight is None:
            return expected_cohort
        return expected_cohort * self.total_weight / num_clients


def _count_noise_std(noise_multiplier: float, expected_cohort: float, rounds: int) -> float:
    """Return the noise standard deviation on a round's number of contributions."""
    timely = _TIMELY_COUNT * expected_cohort * math.sqrt(rounds)
    cheap, dearest = _CHEAP_COUNT * noise_multiplier, _DEAREST_COUNT * noise_multiplier
    return max(_CLEAR_COUNT * expected_cohort, min(cheap, max(timely, dearest)))
