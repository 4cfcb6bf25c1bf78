"""Several sums over one cohort, released together as *one* Gaussian.

A round releases more than the sum of updates: the number of contributions, the number of unclipped
updates (for adaptive clipping), or a metric of the clients. Each sum gets its own noise. Together
they cost one Gaussian of multiplier `z`, if `z^-2` is the sum of the parts'.

    >>> bundle = GaussianBundle(
    ...     noise_multiplier=1.0, clipping_norms=(0.5,), scalar_noise_std=5.0, unclipped_bit=True
    ... )
    >>> round(bundle.updates.noise_multiplier, 5)
    1.00504

Reference: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError, require_positive

from .adaptive_clipping import update_noise_multiplier
from .banded_stream import BandedGaussianMechanism
from .clipping import joint_clipping_norm
from .gaussian import GaussianMechanism
from .randomness import SecureRandom

_HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class ScalarMetric(Arguments):
    """A number that each unit measures, clipped to a public range.

    Attributes:
        name: Name under which the client reports it.
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the range is empty, or an end or its width is not finite.
        """
        super().__post_init__()
        if self.name == "num-examples" or self.name.startswith("fl-dp-"):
            raise OptionError(
                f"'{self.name}' is a name of the protocol: call the metric otherwise",
                option="metrics",
            )
        if not (math.isfinite(self.high - self.low) and self.low < self.high):
            raise OptionError(
                f"the range of metric '{self.name}' must be two finite numbers, the lower first, "
                f"got ({self.low}, {self.high})",
                option="metrics",
            )

    def centred(self, value: float) -> float:
        """The value in [-1/2, 1/2]; the range's middle is 0.

        A missing unit and a NaN count as the middle, which halves the sensitivity.
        """
        if math.isnan(value):
            return 0.0
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return min(max(share - _HALF, -_HALF), _HALF)

    def mean(self, released_sum: float, denominator: float) -> float:
        """The noisy mean in the metric's units, clipped to its range.

        `released_sum` adds up `centred` values, noise included; `denominator` is the public
        expected number of units.
        """
        share = min(1.0, max(0.0, released_sum / denominator + _HALF))
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True, kw_only=True)
class GaussianBundle:
    """The sums of one round and the noise of each.

    Privacy: releasing all sums is as private as one Gaussian of `noise_multiplier`, for one unit
    (the sender of one update with its scalars), add/remove or zero-out neighbours, against anyone
    who sees them all.

    Attributes:
        noise_multiplier: The charged multiplier of the whole.
        clipping_norms: L2 bound on one unit's whole update, or one bound per array (per-layer).
        unclipped_bit: Whether a bit about the update's norm is summed, too.
        metrics: The clients' metrics, summed, too.
        scalar_noise_std: Standard deviation of the noise on the sum of bits and on each sum of
            centred metrics; needed only with either.
        count_noise_std: Standard deviation of the noise on the number of contributing units (whose
            update is finite and not zero); None: they are not counted.
        coefficients: Coefficients of the updates' noise stream; None: rounds have independent
            noise. Scalars always have it.
        size: Number of coordinates of the sum of updates; `coefficients` need it for the noise's
            scale.
    """

    noise_multiplier: float
    clipping_norms: tuple[float, ...]
    unclipped_bit: bool = False
    metrics: tuple[ScalarMetric, ...] = ()
    scalar_noise_std: float | None = None
    count_noise_std: float | None = None
    coefficients: tuple[int, ...] | None = None
    size: int = 1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range, or the scalars alone cost more than the whole.
        """
        names = [metric.name for metric in self.metrics]
        if len(set(names)) != len(names):
            raise OptionError(
                f"each metric is released once, got {', '.join(names)}", option="metrics"
            )
        if self._centred and self.scalar_noise_std is None:
            raise OptionError(
                "bits and metrics need noise of their own: give scalar_noise_std",
                option="scalar_noise_std",
            )
        _ = self.updates, self.scalar_mechanisms  # both check themselves

    def counting_closely(self) -> Self:
        """Return a bundle of the same price whose count gets half of what the scalars leave.

        The updates get up to 1.42 times their noise. For a round that has to show whether anybody
        contributes. Returns itself without a count, or with noise correlated over rounds.
        """
        if self.count_noise_std is None or self.coefficients is not None:
            return self
        uncounted = replace(self, count_noise_std=None).updates.noise_multiplier
        std = min(self.count_noise_std, math.sqrt(2.0) * uncounted)
        return replace(self, count_noise_std=std)

    @property
    def scalars(self) -> int:
        """Number of scalars with each update."""
        return int(self.count_noise_std is not None) + self._centred

    @property
    def _centred(self) -> int:
        """Number of those in [-1/2, 1/2]: the bit and the metrics."""
        return int(self.unclipped_bit) + len(self.metrics)

    @cached_property
    def updates(self) -> GaussianMechanism:
        """The mechanism of the sum of updates: a little more noise than a lone sum needs."""
        multiplier = self.noise_multiplier
        if self.count_noise_std is not None:
            require_positive(count_noise_std=self.count_noise_std)
            if multiplier >= self.count_noise_std:
                raise OptionError(
                    f"count_noise_std must be above noise_multiplier = {multiplier:.4g}, got "
                    f"{self.count_noise_std}: the count alone would cost more than a round",
                    option="count_noise_std",
                )
            # One contribution moves the count by 1, a bit by 1/2: hence half of it.
            multiplier = update_noise_multiplier(multiplier, self.count_noise_std / 2.0)
        if self._centred:
            assert self.scalar_noise_std is not None  # checked at construction
            require_positive(scalar_noise_std=self.scalar_noise_std)
            # Sums of squared inverse multipliers: k scalars of std s are one of std s / sqrt(k).
            joint = self.scalar_noise_std / math.sqrt(self._centred)
            if multiplier >= 2.0 * joint:
                least = multiplier * math.sqrt(self._centred) / 2.0
                raise OptionError(
                    f"scalar_noise_std must be above {least:.4g}, got {self.scalar_noise_std}: "
                    "the bits and metrics alone would cost more than a round; leave it out and "
                    "it is chosen",
                    option="scalar_noise_std",
                )
            multiplier = update_noise_multiplier(multiplier, joint)
        clipping_norm = joint_clipping_norm(self.clipping_norms)
        if self.coefficients is None:
            return GaussianMechanism(noise_multiplier=multiplier, clipping_norm=clipping_norm)
        return BandedGaussianMechanism(
            noise_multiplier=multiplier,
            clipping_norm=clipping_norm,
            coefficients=self.coefficients,
            size=self.size,
        )

    @cached_property
    def scalar_mechanisms(self) -> tuple[GaussianMechanism, ...]:
        """The mechanism of each sum of scalars, in the order of `scalar_values`."""
        mechanisms = []
        if self.count_noise_std is not None:
            count = GaussianMechanism(noise_multiplier=self.count_noise_std, clipping_norm=1.0)
            mechanisms.append(count)
        if self._centred:
            assert self.scalar_noise_std is not None  # checked at construction
            centred = GaussianMechanism(
                noise_multiplier=2.0 * self.scalar_noise_std, clipping_norm=_HALF
            )
            mechanisms += [centred] * self._centred
        return tuple(mechanisms)

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the sums of scalars, in the order of `scalar_values`."""
        return (
            ("count",) * (self.count_noise_std is not None)
            + ("unclipped",) * self.unclipped_bit
            + tuple(f"metric:{metric.name}" for metric in self.metrics)
        )

    @property
    def max_units(self) -> int:
        """Most units that can be summed exactly."""
        mechanisms = (self.updates, *self.scalar_mechanisms)
        return min(mechanism.max_units for mechanism in mechanisms)

    def scalar_values(
        self,
        update_norm: float,
        measured: Mapping[str, float],
        *,
        weight: float = 1.0,
    ) -> list[float]:
        """Return one unit's scalars: whether it contributes (1 or 0), the bit, then the metrics.

        Bit and metrics, in order, lie in [-1/2, 1/2]; scalars without a sum in the bundle are left
        out.

        Args:
            update_norm: Its update's L2 norm before clipping; not finite counts as clipped.
            measured: Its metrics by name; a missing one counts as the middle of its range.
            weight: Factor on its clipped update; with 0 it does not contribute.
        """
        values: list[float] = []
        if self.count_noise_std is not None:
            values.append(float(weight > 0.0 and 0.0 < update_norm < math.inf))
        if self.unclipped_bit:
            bit = _HALF if update_norm <= self.updates.clipping_norm else -_HALF
            values.append(bit)
        for metric in self.metrics:
            values.append(metric.centred(measured.get(metric.name, math.nan)))
        return values

    def scalar_steps(self, values: Sequence[float]) -> NDArray[np.float64]:
        """One unit's scalars on their grids, each clipped on its own.

        Returns:
            Integer-valued float64 in grid steps, shape `(scalars,)`.
        """
        pairs = zip(self.scalar_mechanisms, values, strict=True)
        return np.array([float(mechanism.encode(value)) for mechanism, value in pairs])

    def scalar_noise(self, rng: SecureRandom) -> NDArray[np.int64]:
        """Draw fresh noise for one release of the scalars.

        It never comes from the updates' noise stream: each scalar has its own law and grid, and a
        stream with memory carries noise in steps of one grid.

        Returns:
            Integers in each scalar's grid steps, shape `(scalars,)`.
        """
        drawn = [int(mechanism.noise(1, rng)[0]) for mechanism in self.scalar_mechanisms]
        return np.array(drawn, dtype=np.int64)

    def release_scalars(self, steps: NDArray[np.float64], noise: NDArray[np.int64]) -> list[float]:
        """The sums of scalars with their noise, in the order of `scalar_values`.

        Raises:
            ValueError: If there is not one integer of noise per scalar.
        """
        rows = zip(self.scalar_mechanisms, steps.reshape(-1, 1), noise.reshape(-1, 1), strict=True)
        return [float(mechanism.release(step, drawn)[0]) for mechanism, step, drawn in rows]
