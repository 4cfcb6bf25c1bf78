"""What a sequence of releases spends: every valid epsilon by name, and the smallest of them.

    >>> history = Counter({PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.05): 100})
    >>> epsilon(history, delta=1000**-1.1)
    EpsilonBounds(pld=2.402..., rdp=2.904..., naive=116...)

PLD: privacy-loss distributions, composed numerically and rounded pessimistically (Koskela et al.
2020; Doroshenko et al. 2022, "Connect the dots"). RDP: Renyi divergences, added up and converted
(Mironov 2017; Mironov, Talwar and Zhang 2019; Canonne, Kamath and Steinke 2020). Naive: basic
composition, each release at an equal share of delta; for comparison, nobody should pay it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dp_accounting import PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from .events import PoissonGaussianEvent
from .relations import NeighboringRelation

History = Mapping[PoissonGaussianEvent, int]
"""How often each event happened; composition does not care in which order."""

REPORTING_INTERVAL = 1e-4
"""Discretisation of the privacy loss for numbers that are reported or gated on."""

SEARCH_INTERVAL = 1e-3
"""Coarser and faster: still an upper bound, within 0.3 % of the fine one at federated settings."""


@dataclass(frozen=True, kw_only=True)
class EpsilonBounds:
    """Upper bounds on epsilon at one delta, each valid on its own."""

    pld: float
    rdp: float
    naive: float

    @property
    def best(self) -> float:
        """The smallest of them, the number to quote."""
        return min(self.pld, self.rdp, self.naive)


def epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> EpsilonBounds:
    """Return what the releases in `history` spend together at `delta`.

    Valid for releases whose parameters were fixed beforehand, not for noise that was chosen on what
    earlier releases showed.

    Raises:
        ValueError: If `delta` is not in (0, 1) or a count is negative.
    """
    return EpsilonBounds(
        pld=pld_epsilon(history, delta, neighboring_relation=neighboring_relation),
        rdp=_rdp_epsilon(history, delta, neighboring_relation),
        naive=_naive_epsilon(history, delta, neighboring_relation),
    )


def pld_epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    interval: float = REPORTING_INTERVAL,
) -> float:
    """Return the PLD bound alone; `interval` is the discretisation of the privacy loss."""
    frozen = tuple(sorted((event, count) for event, count in history.items() if count))
    return _cached_pld_epsilon(frozen, delta, neighboring_relation, interval)


@lru_cache(maxsize=4096)
def _cached_pld_epsilon(
    history: tuple[tuple[PoissonGaussianEvent, int], ...],
    delta: float,
    neighboring_relation: NeighboringRelation,
    interval: float,
) -> float:
    accountant = PLDAccountant(neighboring_relation.to_dp_accounting(), interval)
    return _library_epsilon(accountant, dict(history), delta)


def _rdp_epsilon(
    history: History, delta: float, neighboring_relation: NeighboringRelation
) -> float:
    accountant = RdpAccountant(neighboring_relation=neighboring_relation.to_dp_accounting())
    chatter = logging.getLogger("absl")
    before = chatter.level
    # An order whose series does not converge is left out, which can only raise the bound.
    chatter.setLevel(logging.ERROR)
    try:
        return _library_epsilon(accountant, history, delta)
    finally:
        chatter.setLevel(before)


def _library_epsilon(accountant: PrivacyAccountant, history: History, delta: float) -> float:
    if not (math.isfinite(delta) and 0.0 < delta < 1.0):
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    for event, count in history.items():
        if count < 0:
            raise ValueError(f"{event} can't have happened {count} times")
        if count:
            accountant.compose(event.to_dp_accounting(), count)
    return float(accountant.get_epsilon(delta))


def _naive_epsilon(
    history: History, delta: float, neighboring_relation: NeighboringRelation
) -> float:
    releases = sum(history.values())
    return sum(
        count * pld_epsilon({event: 1}, delta / releases, neighboring_relation=neighboring_relation)
        for event, count in history.items()
        if count
    )
