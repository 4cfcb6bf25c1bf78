"""What becomes of a round's replies: who clips, who adds the noise, what the sum is divided by.

One class a mode. `CentralSum` clips and adds the noise at the server; `LocalSum` adds up what
clients have noised themselves; `UnprotectedMean` is for comparison. Noise that clients share under
secure aggregation will be another class here: it opens a round, folds replies in, and releases.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.mechanisms import (
    GaussianBundle,
    GaussianMechanism,
    GridExponentialMechanism,
    NoiseStream,
    SecureRandom,
    WhiteStream,
)
from fl_dp.plan import ClientNoise, PrivacyPlan
from fl_dp.protocol.instruction import NoiseInstruction
from fl_dp.protocol.keys import SCALARS_METRIC, UTILITY_METRIC, WEIGHT_METRIC
from fl_dp.updates import (
    ClippedSum,
    Compression,
    PlainSum,
    RefusedUpdate,
    VectorLayout,
    only_array_record,
    update_in,
)

from .roster import Unit
from .selection import Observation

_WEIGHT_STEPS = 2.0**20  # weights on a grid: their sum is exact in any order


@dataclass(frozen=True, kw_only=True)
class Released:
    """What a round lets out, all of it private.

    Attributes:
        mean: The mean update, float64, shape `(d,)`.
        metrics: Means of the clients' metrics by name.
        clipping_norms: Those of the next round, where they change.
        contributions: How many units contributed, as far as that may be known: noisy where the
            bundle counts them, exact where every reply is seen anyway; None: not counted.
        contributions_std: Standard deviation of the noise on that number; 0 where it is exact.
    """

    mean: NDArray[np.float64]
    metrics: dict[str, float] = field(default_factory=dict)
    clipping_norms: tuple[float, ...] | None = None
    contributions: float | None = None
    contributions_std: float = 0.0


class RoundSum(ABC):
    """The replies of one round, folded into one sum as they come."""

    @property
    def bundle(self) -> GaussianBundle | None:
        """How units are clipped and what they report, where clients have to know it."""
        return None

    @property
    def client_noise(self) -> NoiseInstruction | None:
        """The noise that clients have to add."""
        return None

    @property
    def compression(self) -> Compression | None:
        """How clients are to encode their updates."""
        return None

    @abstractmethod
    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply.

        Args:
            content: The reply's.
            units: Those that the message asked for: one means an ordinary reply, unless the round
                was opened for sums of units.
            server_round: The round's number.

        Returns:
            What the server learnt of each unit.

        Raises:
            RefusedUpdate: If it is no update of this model; then nothing was added.
        """

    @abstractmethod
    def release(self, rng: SecureRandom) -> Released:
        """Make the sum private and divide it, once."""


class CentralSum(RoundSum):
    """The server clips each unit, adds the noise once, and divides by a public constant.

    Privacy: the release is as private as one Gaussian of the round's noise multiplier, for one
    unit, zero-out neighbours, against anyone who sees it. The server is trusted, and so is a node
    that sums its own units.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        noise_multiplier: float,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        *,
        clipping_norms: tuple[float, ...],
        max_units_of_node: int | None,
        compression: Compression | None = None,
        stream: NoiseStream | None = None,
        index: int = 0,
    ) -> None:
        """Open a round.

        Args:
            plan: The training's.
            noise_multiplier: What the round is charged as.
            layout: Of the model that is sent.
            origin: That model, flattened.
            clipping_norms: Those of this round.
            max_units_of_node: How many units a node may host, if nodes sum their own; else None.
            compression: How clients are to encode their updates, which are clipped as they are
                decoded; None where nodes sum their units: a sum has to stay exact.
            stream: Of the noise on the sum of updates; fresh noise if None.
            index: Of this round in that stream, from the ledger.
        """
        self._plan = plan
        self._clipping_norms = clipping_norms
        self._bundle = plan.bundle(noise_multiplier, clipping_norms=clipping_norms)
        self._total = ClippedSum(
            layout, origin, grid=self._bundle.updates.grid, clipping_norms=clipping_norms
        )
        self._scalars = np.zeros(self._bundle.scalars)
        self._weight = 0.0
        self._max_units = max_units_of_node
        self._compression = compression
        self._stream = stream if stream is not None else WhiteStream()
        self._index = index

    @property
    def bundle(self) -> GaussianBundle | None:
        """Clients have to know it to sum their units, or to report metrics."""
        sums = self._max_units is not None
        return self._bundle if sums or self._bundle.metrics else None

    @property
    def compression(self) -> Compression | None:
        """How clients are to encode their updates."""
        return self._compression

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Clip one unit and add it, or add a node's own sum. See `RoundSum.fold`."""
        measured = _numbers(content)
        if self._max_units is not None:
            arrays = only_array_record(content)
            most = min(len(units), self._max_units)
            scalars = self._node_scalars(measured, most)
            self._total.add_steps(arrays, max_units=most)
            self._scalars += scalars
            reports = _padded(measured.get(UTILITY_METRIC, []), len(units))
            return [
                _observation(unit, server_round, math.nan, report)
                for unit, report in zip(units, reports, strict=True)
            ]
        weight = 1.0
        if self._plan.release.capped_denominator:
            weight = _on_weight_grid(_first(measured, WEIGHT_METRIC, missing=0.0))
        unit = update_in(content, self._compression, self._total.layout.size)
        norm = self._total.add(unit, weight=weight)
        report = _first(measured, UTILITY_METRIC)
        if not math.isfinite(norm):
            return [_observation(units[0], server_round, math.inf, report)]
        self._weight += weight
        if self._bundle.scalars:
            values = {name: _first(measured, name) for name in measured}
            self._scalars += self._bundle.scalar_steps(
                self._bundle.scalar_values(norm, values, weight=weight)
            )
        return [_observation(units[0], server_round, norm, report)]

    def release(self, rng: SecureRandom) -> Released:
        """Add the noise to every sum. See `RoundSum.release`."""
        plan, bundle = self._plan, self._bundle
        sums = bundle.release_scalars(self._scalars, bundle.scalar_noise(rng))
        count = None if bundle.count_noise_std is None else sums.pop(0)
        norms = None
        if (clipping := plan.release.adaptive_clipping) is not None:
            next_norm = clipping.next_norm(
                self._clipping_norms[0],
                noisy_bit_sum=sums.pop(0),
                denominator=plan.expected_cohort,
            )
            norms = (next_norm,)
        metrics = {
            metric.name: metric.mean(total, plan.expected_cohort)
            for metric, total in zip(bundle.metrics, sums, strict=True)
        }
        return Released(
            mean=self._mean(rng),
            metrics=metrics,
            clipping_norms=norms,
            contributions=count,
            contributions_std=bundle.count_noise_std or 0.0,
        )

    def _mean(self, rng: SecureRandom) -> NDArray[np.float64]:
        plan, updates = self._plan, self._bundle.updates
        if not plan.release.capped_denominator:
            released = self._noised(updates, self._total.total, rng)
            released /= plan.denominator
            return released
        mechanism = plan.release.mean_mechanism(
            updates.noise_multiplier,
            self._total.total.size,
            clipping_norm=updates.clipping_norm,
            denominator=plan.denominator,
        )
        steps = self._total.total * (updates.grid / max(plan.denominator, self._weight))
        steps *= 1.0 / mechanism.grid
        return self._noised(mechanism, np.trunc(steps, out=steps), rng)

    def _noised(
        self, mechanism: GaussianMechanism, total: NDArray[np.float64], rng: SecureRandom
    ) -> NDArray[np.float64]:
        noise = self._stream.next(mechanism.law, total.size, rng, index=self._index)
        return mechanism.release(total, noise)

    def _node_scalars(
        self, measured: Mapping[str, list[float]], max_units: int
    ) -> NDArray[np.float64]:
        """Return a node's sums of encoded scalars.

        Raises:
            RefusedUpdate: If they are missing, or more than so many units can reach.
        """
        sums = np.array(measured.get(SCALARS_METRIC, []), dtype=np.float64)
        bounds = np.array(
            [max_units * each.clipping_norm / each.grid for each in self._bundle.scalar_mechanisms]
        )
        if sums.shape != bounds.shape or not (np.abs(sums) <= bounds).all():
            raise RefusedUpdate("its scalars are missing or more than its units can reach")
        return np.trunc(sums)


class LocalSum(RoundSum):
    """The sum of what clients have clipped and noised themselves, over a public constant.

    Privacy: none of its own; each message is private before it gets here, even against the server.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        noise_multiplier: float,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        *,
        compression: Compression | None = None,
    ) -> None:
        """Open a round; arguments as for `CentralSum`."""
        self._plan = plan
        self._noise_multiplier = noise_multiplier
        self._total = PlainSum(layout, origin)
        self._compression = compression
        self._contributions = 0

    @property
    def client_noise(self) -> NoiseInstruction:
        """The noise that clients have to add."""
        return client_noise_of(self._plan, self._noise_multiplier, self._compression)

    @property
    def compression(self) -> Compression | None:
        """How clients are to encode their updates, once the noise is in them."""
        return self._compression

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply. See `RoundSum.fold`."""
        norm = self._total.add(update_in(content, self._compression, self._total.layout.size))
        self._contributions += 0.0 < norm < math.inf
        return [_observation(units[0], server_round, norm, math.nan)]

    def release(self, rng: SecureRandom) -> Released:
        """Divide. See `RoundSum.release`."""
        return Released(
            mean=self._total.total / self._plan.denominator, contributions=self._contributions
        )


class UnprotectedMean(RoundSum):
    """Flower's own mean, weighted by what clients say of themselves. Nothing is private here."""

    def __init__(
        self,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        *,
        weighted_by: str,
        compression: Compression | None = None,
    ) -> None:
        """Open a round.

        Args:
            layout: Of the model that is sent.
            origin: That model, flattened.
            weighted_by: Name of the metric that replies are weighted by; 1 where it is missing.
            compression: How clients are to encode their updates.
        """
        self._total = PlainSum(layout, origin)
        self._weighted_by = weighted_by
        self._compression = compression
        self._weight = 0.0
        self._contributions = 0

    @property
    def compression(self) -> Compression | None:
        """How clients are to encode their updates."""
        return self._compression

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply. See `RoundSum.fold`."""
        measured = _numbers(content)
        weight = _first(measured, self._weighted_by, missing=1.0)
        unit = update_in(content, self._compression, self._total.layout.size)
        norm = self._total.add(unit, weight=weight)
        if math.isfinite(norm):
            self._weight += weight
            self._contributions += norm * weight > 0.0
        return [_observation(units[0], server_round, norm, _first(measured, UTILITY_METRIC))]

    def release(self, rng: SecureRandom) -> Released:
        """Divide by the weights; nothing moves if nobody replied. See `RoundSum.release`."""
        return Released(
            mean=self._total.total / (self._weight or 1.0), contributions=self._contributions
        )


def client_noise_of(
    plan: PrivacyPlan, noise_multiplier: float, compression: Compression | None
) -> NoiseInstruction:
    """Return the noise that clients have to add in a round of that noise multiplier."""
    assert isinstance(plan.noise, ClientNoise)  # no other noise is told to clients
    budget = plan.budget
    # A ledger that would have to admit several kinds of noise needs more room than the plan.
    one_kind = len(set(plan.noise_multipliers)) == 1
    return NoiseInstruction(
        scheme=plan.noise.scheme,
        noise_multiplier=noise_multiplier,
        clipping_norm=plan.clipping_norm,
        epsilon=budget.epsilon if one_kind else None,
        delta=min(0.5, budget.delta / DECLARED_SHARE) if one_kind else None,
        neighboring_relation=str(plan.neighboring_relation),
        levels=_levels(plan.noise.scheme, noise_multiplier, plan.clipping_norm, compression),
    )


def _levels(
    scheme: str, noise_multiplier: float, clipping_norm: float, compression: Compression | None
) -> int | None:
    """Return as many points as the encoding has levels, so that it loses none of them."""
    if scheme != "exponential" or compression is None or compression.up != "quantize":
        return None
    levels = 1 << compression.bits
    try:
        GridExponentialMechanism(
            noise_multiplier=noise_multiplier, clipping_norm=clipping_norm, levels=levels
        )
    except ValueError:  # too few or too many points for this noise: the default has to do
        return None
    return levels


def _observation(unit: Unit, server_round: int, norm: float, report: float) -> Observation:
    return Observation(
        unit=unit,
        server_round=server_round,
        update_norm=norm,
        utility=None if math.isnan(report) else report,
    )


def _numbers(content: RecordDict) -> dict[str, list[float]]:
    """Return every metric of a reply as a list of numbers."""
    records: Sequence[MetricRecord] = list(content.metric_records.values())
    return {
        str(name): [_real(each) for each in (value if isinstance(value, list) else [value])]
        for record in records
        for name, value in record.items()
    }


def _real(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an int of hundreds of digits, which only a simulation lets through
        return math.nan


def _first(
    measured: Mapping[str, Sequence[float]], name: str, *, missing: float = math.nan
) -> float:
    values = measured.get(name, ())
    return values[0] if len(values) == 1 else missing


def _padded(values: Sequence[float], length: int) -> list[float]:
    return [*values[:length], *[math.nan] * (length - len(values))]


def _on_weight_grid(weight: float) -> float:
    """Return the weight in [0, 1], rounded down; NaN weighs nothing."""
    if math.isnan(weight):
        return 0.0
    return math.floor(min(max(weight, 0.0), 1.0) * _WEIGHT_STEPS) / _WEIGHT_STEPS
