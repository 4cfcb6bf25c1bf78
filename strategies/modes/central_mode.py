"""Noise at the server, once per sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.protocol.message_keys import SCALARS_METRIC, UTILITY_METRIC
from fl_dp.updates import BundleSum, only_array_record

from ..message_exchange import Ask
from ..selection import Observation
from ..unit_roster import Unit
from .base import Cohort, Released, coin_rate, numbers_of, single_number
from .planned import ChargedRound, PlannedMode
from .scalars import released_by


class CentralMode(PlannedMode[Plan]):
    """The server clips each unit, adds the noise once, and divides by a public constant.

    Privacy: the release is as private as one Gaussian of the round's noise multiplier, for one
    unit, zero-out neighbours, against anyone who sees it. The server is trusted, and so is a node
    that sums its own units.
    """

    def __init__(self, plan: Plan, charged: ChargedRound) -> None:
        """Prepare a round.

        Compressed updates are clipped after decoding. Nodes that sum their units don't compress: a
        sum has to stay exact.
        """
        super().__init__(plan, charged)
        bundle = plan.bundle(
            charged.noise_multiplier,
            clipping_norms=charged.clipping_norms,
            size=charged.layout.size,
        )
        if charged.untried:
            bundle = bundle.counting_closely()
        # A node has to know the bundle to sum its units, or to report metrics.
        nodes_need_bundle = plan.hosting.sums_at_nodes or bundle.metrics
        self.instruction = replace(
            charged.instruction,
            bundle=bundle if nodes_need_bundle else None,
            max_units=plan.hosting.max_units,
            sampling_rate=coin_rate(plan),
        )
        self._sums = BundleSum(bundle, charged.layout, charged.origin)
        self._mechanism = bundle.updates
        self._cohort: Cohort = {}

    @property
    def sums(self) -> BundleSum:
        """The exact sums so far, not private: only for audits of a round."""
        return self._sums

    @property
    def reads_models(self) -> bool:
        """As `Mode.reads_models`; not where nodes sum their units."""
        return not self._plan.hosting.sums_at_nodes and super().reads_models

    def reply_bytes(self, model: ArrayRecord) -> int:
        """Bytes of a reply's arrays; public."""
        if self._plan.hosting.sums_at_nodes:
            return self.layout.sum_bytes
        return super().reply_bytes(model)

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """Note the cohort, and begin to draw the noise. See `Mode.open`."""
        self._cohort = cohort
        charged = self._charged
        if charged.rng is not None:  # its law is known, and the round is charged
            charged.stream.draw_ahead(
                self._mechanism.law, self.layout.size, charged.rng, index=charged.index
            )

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """Name the units that take part, if the node sums them. See `Mode.content_for`."""
        if not self._plan.hosting.sums_at_nodes or self._plan.hosting.coins_at_nodes:
            return super().content_for(node, content)
        numbers = tuple(unit.number for unit in self._cohort[node])
        return self.with_instruction(content, replace(self.instruction, units=numbers))

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Clip one unit and add it, or add a node's own sums. See `Mode.fold`."""
        measured = numbers_of(content)
        if self._plan.hosting.sums_at_nodes:
            most = min(len(units), self._plan.hosting.max_units)
            self._sums.add_node(
                only_array_record(content), measured.get(SCALARS_METRIC, []), max_units=most
            )
            # NaN: no report.
            reports = [*measured.get(UTILITY_METRIC, []), *[math.nan] * len(units)]
            return [
                Observation.of(unit, server_round, math.nan, report)
                for unit, report in zip(units, reports, strict=False)
            ]
        unit = self.update_in(content)
        norm = self._sums.add(unit, {name: single_number(measured, name) for name in measured})
        return [
            Observation.of(units[0], server_round, norm, single_number(measured, UTILITY_METRIC))
        ]

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Add the noise to every sum. See `Mode.release`."""
        plan, bundle = self._plan, self._sums.bundle
        scalars = bundle.release_scalars(self._sums.scalars, bundle.scalar_noise(rng))
        return released_by(plan, bundle, self._mean(rng), scalars)

    def _mean(self, rng: SecureRandom) -> NDArray[np.float64]:
        plan, mechanism, sums = self._plan, self._mechanism, self._sums.updates
        charged = self._charged
        noise = charged.stream.next(mechanism.law, self.layout.size, rng, index=charged.index)
        mean = noise.view(np.float64)  # in its place: no noise is left behind
        sums.visit_blocks(
            lambda total, block: mechanism.release(
                total, noise[block], divided_by=plan.denominator, out=mean[block]
            )
        )
        return mean
