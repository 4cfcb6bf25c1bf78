"""The noise of a secure sum: the number of shares that an adversary can't subtract.

Each client adds a share of noise to its own values before they are masked. The charge counts the
shares that are certainly in the sum and unknown to the adversary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_dp.mechanisms.noise_share import LEAST_NOISE_SCALE
from fl_dp.option_errors import OptionError, require_count, require_positive
from fl_dp.promise import ceiling

from .budget import PrivacyBudget

MASKS_DELTA = 2.0**-100
"""Assumed probability that masks, seeds or signatures fail: computational."""

_COLLUDING = ((10, 1), (20, 2), (200, 5), (math.inf, 10))
_CHANNEL_VARIANCE = 2.25  # of the rounding channel that makes a Gaussian discrete
_SAMPLER = 2.0**-48  # error of a log-ratio of one draw in float64


def usual_colluding(nodes: int) -> int:
    """The default number of colluding nodes, out of `nodes`."""
    return next(colluding for most, colluding in _COLLUDING if nodes <= most)


@dataclass(frozen=True, kw_only=True)
class SharedNoise:
    """Numbers of nodes that take part in a secure sum, may be lost or may collude.

    All rules are in integers: in floats `1 <= (1 - 5/6) * 6` is false.

    Attributes:
        cohort: Clients of the sum, `n`.
        least: Fewest repliers to open the sum with.
        colluding: Nodes that may reveal their shares of noise, and lie.
        committee: Members with shares of every client's seeds, `L`.
        threshold: Members who can open together, `t`.
        cross_check: Whether members agree on one set of repliers before opening.
    """

    cohort: int
    least: int
    colluding: int
    committee: int
    threshold: int
    cross_check: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range, or a server that lies to members could open
                one client's values.
        """
        if not 2 <= self.least <= self.cohort:
            raise OptionError(
                f"secure_sum.least must lie in [2, cohort = {self.cohort}], got "
                f"{self.least}: a sum over one client hides nothing",
                option="secure_sum.least",
            )
        if self.colluding < 0:
            raise OptionError(
                f"secure_sum.colluding must be at least 0, got {self.colluding}",
                option="secure_sum.colluding",
            )
        if not 1 <= self.committee <= 255:
            raise OptionError(
                f"secure_sum.committee must lie in [1, 255], got {self.committee}",
                option="secure_sum.committee",
            )
        # Never both masks of one client: two sets of honest members who answer have to meet.
        low = (self.committee + self.colluding_members) // 2 + 1
        if not low <= self.threshold <= self.committee:
            raise OptionError(
                f"secure_sum.threshold must lie in [{low}, committee = {self.committee}] where "
                f"{self.colluding_members} members may collude, got {self.threshold}",
                option="secure_sum.threshold",
            )
        if self.guaranteed - self.colluding < 2:
            raise OptionError(
                f"a server that lies to members could open a sum of {self.guaranteed} clients, "
                f"{self.colluding} of whom may collude: raise "
                f"secure_sum.least ({self.least}) or secure_sum.threshold "
                f"({self.threshold}), or write secure_sum.cross_check=True",
                option="secure_sum.least",
            )

    @property
    def colluding_members(self) -> int:
        """Members who may collude: all colluding nodes at most, however members were chosen."""
        return min(self.colluding, self.committee)

    @property
    def honest_members(self) -> int:
        """Members who do not collude, `H`."""
        return self.committee - self.colluding_members

    @property
    def lies(self) -> int:
        """Honest members to whom the server may name other repliers than to the rest."""
        return 0 if self.cross_check else self.committee - self.threshold

    @property
    def guaranteed(self) -> int:
        """Fewest clients of any sum that a lying server can open, colluding ones included: `N`."""
        named = self.least * self.honest_members - self.lies * self.cohort
        return -(-named // (self.honest_members - self.lies))

    def honest_shares(self, *, server_lies: bool) -> int:
        """How many shares of noise no adversary can subtract from an opened sum.

        Against a lying server, a promise needs nodes that know each other's keys.
        """
        clients = self.guaranteed if server_lies else self.least
        return clients - self.colluding


def shared_noise_multiplier(scale: float, sensitivity: float, shares: int) -> float:
    """The multiplier that shares of noise amount to.

    Args:
        scale: Scale of one share, in grid steps.
        sensitivity: L2 distance, in grid steps, by which one unit moves the sum.
        shares: Number of shares that no adversary can subtract.

    Raises:
        ValueError: If the shares are too little noise for a Gaussian.
    """
    variance = shares * scale**2 - _CHANNEL_VARIANCE
    if not variance > 0.0:
        raise ValueError(f"{shares} shares of scale {scale:.4g} are too little noise to account")
    return float(variance**0.5 / sensitivity)


def shared_noise_slack(
    releases: int, size: int, shares: int, *, noise_scale: float = LEAST_NOISE_SCALE
) -> float:
    """Lambda: the most by which log-ratios of all sums differ from those of Gaussians.

    With it, (epsilon, delta) of Gaussians is (epsilon + 2 lambda, e^lambda delta) of the sums. It
    has three parts per coordinate. A sum of discrete Gaussians around real centres is one but for
    `tau`. That one is post-processed from a continuous Gaussian but for `eta` (Peikert 2010, "An
    Efficient and Parallel Gaussian Sampler for Lattices"). The sampler computes in float64.

    Args:
        releases: Number of sums.
        size: Number of coordinates of each.
        shares: Number of shares of noise in each.
        noise_scale: Scale of one share, in grid steps.
    """
    require_count(releases=releases, size=size, shares=shares)
    require_positive(noise_scale=noise_scale)
    # h - 1 convolutions; each is a theta sum that Poisson summation makes constant but for this.
    # From the 64th on, k / (k + 1) is so near 1 that the last one's neighbour bounds each.
    first = min(shares - 1, 64)
    tau = sum(_theta(noise_scale**2 * k / (k + 1)) for k in range(1, first + 1))
    if first:
        tau += (shares - 1 - first) * _theta(noise_scale**2 * first / (first + 1))
    channel, whole = _theta(_CHANNEL_VARIANCE), _theta(shares * noise_scale**2)
    eta = math.log1p(2.0 * whole) - math.log1p(-2.0 * channel)
    return releases * size * (10.0 * tau + eta) + sampler_slack(releases * size * shares)


def sampler_slack(draws: int) -> float:
    """Float64's error in the log-ratio of `draws` draws of noise."""
    return draws * _SAMPLER


def _theta(variance: float) -> float:
    """The sum over j >= 1 of `exp(-2 pi^2 variance j^2)`; variance above a tenth."""
    return sum(math.exp(-2.0 * math.pi**2 * variance * j**2) for j in range(1, 8))


def within_slack(budget: PrivacyBudget, slack: float) -> PrivacyBudget:
    """What a budget leaves for the Gaussians that secure sums are charged as.

    Raises:
        ValueError: If nothing remains.
    """
    epsilon = budget.epsilon - 2.0 * slack
    if epsilon <= 0.0 or budget.delta <= MASKS_DELTA:
        raise ValueError(
            f"a secure sum's own error takes {ceiling(2.0 * slack, 2)} of epsilon, and "
            f"{MASKS_DELTA:g} of delta, which is all of the budget of epsilon={budget.epsilon:g} "
            f"and delta={budget.delta:g}: write a larger one"
        )
    return PrivacyBudget(epsilon=epsilon, delta=(budget.delta - MASKS_DELTA) * math.exp(-slack))
