"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fl_dp.mechanisms import SecureRandom


class Selection(Protocol):
    """A rule that draws a cohort and knows what it may be charged as."""

    @property
    def sampling_rate(self) -> float:
        """Upper bound on each client's probability of being drawn."""
        ...

    def sample(self, roster: Sequence[int], rng: SecureRandom) -> list[int]:
        """Return the node ids of one cohort."""
        ...


class PoissonSelection:
    """An independent secret coin for each client: the one sampling that earns amplification.

    Privacy: each client is in the cohort with probability at most `sampling_rate`, independently of
    all others. The cohort must stay secret from the adversary; its size is never made constant,
    topped up or reported. Fixed-size cohorts may not be charged as Poisson samples.
    """

    def __init__(self, sampling_rate: float) -> None:
        """Draw each client with probability `sampling_rate`, in (0, 1].

        Raises:
            ValueError: If the rate is out of range.
        """
        if not 0.0 < sampling_rate <= 1.0:
            raise ValueError(f"sampling_rate must lie in (0, 1], got {sampling_rate}")
        self.sampling_rate = sampling_rate

    def sample(self, roster: Sequence[int], rng: SecureRandom) -> list[int]:
        """Return the node ids whose coin came up; possibly none."""
        coins = rng.bernoulli(self.sampling_rate, len(roster))
        return [node for node, heads in zip(roster, coins, strict=True) if heads]
