"""A clipping norm that follows a quantile of the update norms, privately.

With its clipped update, each client sends whether it stayed *un*clipped. The noisy share of those
moves the norm geometrically towards one that leaves `target_quantile` of the updates unclipped.
Reference: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", algorithm
1.

    >>> rule = AdaptiveClipping(target_quantile=0.5)
    >>> rule.next_norm(1.0, noisy_bit_sum=-20.0, denominator=100.0)  # most were clipped: grow
    1.040...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError, require_positive, require_probability

_LARGEST_STEP = 5.0


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping(Arguments):
    """The rule that moves the clipping norm.

    Privacy: the pair of a round's clipped sum and its sum of bits is *one* Gaussian release of the
    round's noise multiplier, for one unit, add/remove or zero-out neighbours, against anyone who
    sees both, when the updates get the noise of `update_noise_multiplier` **and the norm that the
    clients clipped with**, not the next round's.

    Attributes:
        norm: Clipping norm of the first round.
        target_quantile: Share of updates that stays unclipped, in (0, 1).
        learning_rate: Largest change of the norm's logarithm in one round.
    """

    kind: ClassVar[str] = "adaptive"
    norm: float = 0.1
    target_quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        super().__post_init__()
        require_positive(norm=self.norm, learning_rate=self.learning_rate)
        if self.learning_rate > _LARGEST_STEP:
            raise OptionError(
                f"learning_rate must be at most {_LARGEST_STEP:g}, got {self.learning_rate}: it is "
                "the largest change of the norm's logarithm in one round, usually 0.2",
                option="learning_rate",
            )
        require_probability(target_quantile=self.target_quantile)

    @property
    def first_norms(self) -> tuple[float, ...]:
        """Bounds of the first round."""
        return (self.norm,)

    def next_norm(self, clipping_norm: float, *, noisy_bit_sum: float, denominator: float) -> float:
        """Return the next round's clipping norm.

        Args:
            clipping_norm: The norm that clients used this round.
            noisy_bit_sum: Released sum of bits (1/2 if unclipped, -1/2 if clipped), with noise.
            denominator: The public divisor of sums: the expected cohort.
        """
        # C exp(-eta (b - gamma)), algorithm 1; b is a share, so noise can't take it out of [0, 1].
        unclipped = min(1.0, max(0.0, noisy_bit_sum / denominator + 0.5))
        return clipping_norm * math.exp(-self.learning_rate * (unclipped - self.target_quantile))


def default_bit_noise_std(denominator: float) -> float:
    """The usual standard deviation of noise on the sum of bits: 1/20 of the expected cohort."""
    return denominator / 20.0


def update_noise_multiplier(noise_multiplier: float, bit_noise_std: float) -> float:
    """The updates' noise multiplier at which they and the bits cost `noise_multiplier`.

    `(z^-2 - (2 sigma_b)^-2)^(-1/2)`: bits have sensitivity 1/2, so their multiplier is
    `2 sigma_b`; `bit_noise_std`, sigma_b, is the standard deviation of the noise on their sum.

    Raises:
        ValueError: If the bits alone cost as much: `bit_noise_std` must exceed half of
            `noise_multiplier`.
    """
    require_positive(noise_multiplier=noise_multiplier, bit_noise_std=bit_noise_std)
    if noise_multiplier >= 2.0 * bit_noise_std:
        raise OptionError(
            f"bit_noise_std must be above noise_multiplier / 2 = {noise_multiplier / 2:.4g}, got "
            f"{bit_noise_std}: the bits alone would cost more than the round",
            option="bit_noise_std",
        )
    # Theorem 1: the joint release is one Gaussian whose squared inverse multipliers add up.
    return 1.0 / math.sqrt(noise_multiplier**-2 - (2.0 * bit_noise_std) ** -2)
