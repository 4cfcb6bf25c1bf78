"""How long the accounting takes, against what a federation would use otherwise.

Every call gets new parameters, so no cache answers. The gate is the one exception: answering from
what is certified is its work.

    python benchmarks/accounting.py [--json] [--repeats 3]
"""

from __future__ import annotations

import itertools
import logging

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from flwr.supercore import privacy_accounting as flower
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant as FlowerAccountant
from side_by_side import Case, main

from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyBudget,
    calibrate_noise_multiplier,
    epsilon,
)
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.filters import DeclaredFilter
from fl_dp.accounting.loss_distributions import poisson_gaussian
from fl_dp.accounting.renyi import ORDERS, renyi_divergences

RATE, DELTA = 0.1, 1e-5
INTERVAL, COARSE = 1e-4, 1e-3
SPECIAL = dpa.NeighboringRelation.REPLACE_SPECIAL
_fresh = itertools.count()


def new_multiplier() -> float:
    """A noise multiplier near 1 that was never used before."""
    return 1.0 + 1e-7 * next(_fresh)


def sampled(noise_multiplier: float) -> dpa.DpEvent:
    """dp-accounting's event of one round."""
    return dpa.PoissonSampledDpEvent(RATE, dpa.GaussianDpEvent(noise_multiplier))


def ours(noise_multiplier: float) -> PoissonGaussianEvent:
    """Our event of the same round."""
    return PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=RATE)


def gate_case() -> Case:
    """Compare asking whether the next round may run: ours at round 10,000, Flower's at 100."""
    one = ours(2.0)
    gate = DeclaredFilter(PrivacyBudget(epsilon=100.0, delta=DELTA), {one: 20_000})
    for _ in range(10_000):
        gate.spend(one)
    peer = FlowerAccountant(
        flower.PrivacyConfig(
            target_delta=DELTA,
            population_size=1000,
            neighboring_relation=flower.NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=flower.SamplingMethod.POISSON,
            max_epsilon=100.0,
        )
    )
    theirs = flower.GaussianPrivacyEvent(
        noise_multiplier=2.0, sample_size=100, population_size=1000
    )
    for _ in range(100):
        peer.compose(theirs)
    return Case(
        name="may the next round run? (ours at round 10,000)",
        peer="flwr RdpAccountant at round 100",
        ours=lambda: gate.would_exceed(one),
        theirs=lambda: peer.would_exceed(theirs),
    )


def their_epsilon(multipliers: list[float], count: int, interval: float) -> float:
    """dp-accounting's PLD epsilon."""
    accountant = PLDAccountant(SPECIAL, interval)
    for noise_multiplier in multipliers:
        accountant.compose(sampled(noise_multiplier), count)
    return float(accountant.get_epsilon(DELTA))


def schedule_of_200() -> list[float]:
    """200 different noise multipliers."""
    return list(np.linspace(1.0, 2.0, 200) * new_multiplier())


def their_renyi_vector() -> object:
    """dp-accounting's Renyi divergences of one round."""
    accountant = RdpAccountant(ORDERS, SPECIAL)
    accountant.compose(sampled(new_multiplier()))
    return accountant.rdp


def their_calibration() -> float:
    """dp-accounting's calibrated noise multiplier."""
    return float(
        dpa.calibrate_dp_mechanism(
            lambda: PLDAccountant(SPECIAL, INTERVAL),
            lambda z: dpa.SelfComposedDpEvent(sampled(z), 100),
            8.0 + 1e-6 * next(_fresh),
            DELTA,
            dpa.ExplicitBracketInterval(0.3, 3.0),
            tol=1e-5,
        )
    )


def cases() -> list[Case]:
    """Every comparison."""
    return [
        gate_case(),
        Case(
            name="privacy-loss distribution of one sampled Gaussian, interval 1e-4",
            peer="dp-accounting",
            ours=lambda: poisson_gaussian(new_multiplier(), RATE, INTERVAL),
            theirs=lambda: from_gaussian_mechanism(
                new_multiplier(), value_discretization_interval=INTERVAL, sampling_prob=RATE
            ),
        ),
        Case(
            name=f"Renyi vector of one sampled Gaussian, {len(ORDERS)} orders",
            peer="dp-accounting",
            ours=lambda: renyi_divergences(ours(new_multiplier()), NeighboringRelation.ZERO_OUT),
            theirs=their_renyi_vector,
        ),
        Case(
            name="epsilon of 100 equal rounds by PLD, interval 1e-4",
            peer="dp-accounting",
            ours=lambda: pld_epsilon({ours(new_multiplier()): 100}, DELTA, interval=INTERVAL),
            theirs=lambda: their_epsilon([new_multiplier()], 100, INTERVAL),
        ),
        Case(
            name="epsilon of 200 different rounds, by every accountant (peer: PLD only)",
            peer="dp-accounting, interval 1e-3",
            ours=lambda: epsilon({ours(z): 1 for z in schedule_of_200()}, DELTA),
            theirs=lambda: their_epsilon(schedule_of_200(), 1, COARSE),
        ),
        Case(
            name="noise multiplier for epsilon 8 in 100 rounds",
            peer="dp-accounting, interval 1e-4",
            ours=lambda: calibrate_noise_multiplier(
                8.0 + 1e-6 * next(_fresh), DELTA, sampling_rate=RATE, rounds=100
            ),
            theirs=their_calibration,
        ),
    ]


if __name__ == "__main__":
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that are left out, again and again
    main("Accounting", cases(), repeats=3)
