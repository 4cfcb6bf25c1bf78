"""Sums of one round: each unit's clipped update and its scalars.

    >>> sums = BundleSum(bundle, layout, origin)
    >>> norm = sums.add(only_array_record(reply.content), {"loss": 0.7})
    >>> total = sums.updates.total
    >>> released = bundle.updates.release(total, bundle.updates.noise(total.size, rng))

The server adds units one by one, or nodes' own sums. Both ends use this class: a unit counts the
same wherever it is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fl_dp.mechanisms import GaussianBundle

from .clipped_sum import ClippedSum, Norms, Rows, read_norms
from .layout import RefusedUpdate, VectorLayout


class BundleSum:
    """The sums of a `GaussianBundle` over units, in grid steps; a unit is in all or in none.

    Privacy: whatever one unit sends, it moves each sum by at most that sum's clipping norm.

    Attributes:
        updates: The sum of clipped updates.
    """

    def __init__(
        self, bundle: GaussianBundle, layout: VectorLayout, origin: NDArray[np.float64]
    ) -> None:
        """Start from zero; arguments as for `ClippedSum`.

        Raises:
            ValueError: As `ClippedSum`.
        """
        self.bundle = bundle
        self.updates = ClippedSum(
            layout, origin, grid=bundle.updates.grid, clipping_norms=bundle.clipping_norms
        )
        self._scalars = np.zeros(bundle.scalars)
        self._unread: list[tuple[Norms, Sequence[Mapping[str, float]]]] = []

    @property
    def scalars(self) -> NDArray[np.float64]:
        """Sums of encoded scalars, integer-valued float64, shape `(bundle.scalars,)`."""
        unread, self._unread = self._unread, []
        for norms, measured in unread:
            for norm, metrics in zip(read_norms(norms), measured, strict=True):
                self._add_scalars(norm, metrics, 1.0)
        return self._scalars

    def add(
        self,
        unit: ArrayRecord | NDArray[np.float64],
        measured: Mapping[str, float],
        *,
        weight: float = 1.0,
    ) -> float:
        """Clip one unit, whose metrics are `measured`, and add it; see `ClippedSum.add`.

        `weight` is a public factor in [0, 1] on the clipped update.

        Raises:
            RefusedUpdate: As `ClippedSum.add` does; nothing was added, to no sum.
        """
        norm = self.updates.add(unit, weight=weight)  # may raise, so it comes first
        self._add_scalars(norm, measured, weight)
        return norm

    def add_rows(
        self,
        vectors: Rows,
        measured: Sequence[Mapping[str, float]],
    ) -> Norms:
        """Clip many units and add them, as `add` would one by one; see `ClippedSum.add_rows`.

        Raises:
            ValueError: There is not one mapping a row; nothing was added.
        """
        if len(measured) != len(vectors):
            raise ValueError(f"{len(vectors)} rows and {len(measured)} reports: give one each")
        norms = self.updates.add_rows(vectors)
        if self.bundle.scalars:  # their norms are read with the sums: no wait for a device here
            self._unread.append((norms, measured))
        return norms

    def add_node(self, arrays: ArrayRecord, scalars: Sequence[float], *, max_units: int) -> None:
        """Add the sums that a node made of at most `max_units` units of its own.

        Raises:
            RefusedUpdate: They are no such sums, or more than `max_units` can reach. Nothing was
                added.
        """
        sums = np.array(scalars, dtype=np.float64)
        mechanisms = self.bundle.scalar_mechanisms
        bounds = np.array(
            [max_units * mechanism.clipping_norm / mechanism.grid for mechanism in mechanisms]
        )
        # "not <=" instead of ">": a NaN has to fail, too.
        if sums.shape != bounds.shape or not (np.abs(sums) <= bounds).all():
            raise RefusedUpdate("its scalars are missing or more than its units can reach")
        self.updates.add_steps(arrays, max_units=max_units)
        self._scalars += np.trunc(sums)

    def _add_scalars(self, norm: float, measured: Mapping[str, float], weight: float) -> None:
        # An update that is not finite added nothing: nor must its scalars, or the unit moves more
        # than it was charged for.
        if self.bundle.scalars and math.isfinite(norm):
            values = self.bundle.scalar_values(norm, measured, weight=weight)
            self._scalars += self.bundle.scalar_steps(values)
