"""How long private noise takes, against generators unfit for privacy and one that is fit.

NumPy's are the yardstick of what noise costs; their floating-point output and predictable state
make them unfit here. OpenDP's samplers are as careful as ours. If installed, they are timed on a
tenth of the coordinates, on both sides, with the Python lists they take and return.

    python benchmarks/noise.py [--json] [--repeats 9] [--of-processor]
"""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
from side_by_side import Case, main

from fl_dp.mechanisms import GaussianMechanism, LaplaceMechanism, SecureRandom
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.mechanisms.laplace import DiscreteLaplace

MANY, FEWER = 1_000_000, 100_000
SCALE = 1.3 * 2.0**30  # in grid steps, as the mechanisms have it


def numpy_cases() -> list[Case]:
    """Compare each mechanism's release of a million coordinates with adding NumPy's noise."""
    rng = SecureRandom()
    total = np.zeros(MANY)
    gaussian = GaussianMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    laplace = LaplaceMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    points = GridExponentialMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    normal, double_exponential = "np.random.normal (insecure)", "np.random.laplace (insecure)"
    return [
        Case(
            name=f"grid Gaussian, {MANY} coordinates",
            peer=normal,
            ours=lambda: gaussian.release(total, gaussian.noise(MANY, rng)),
            theirs=lambda: total + np.random.normal(0.0, 1.0, MANY),
        ),
        Case(
            name=f"grid Laplace, {MANY} coordinates",
            peer=double_exponential,
            ours=lambda: laplace.release(total, laplace.noise(MANY, rng)),
            theirs=lambda: total + np.random.laplace(0.0, 1.0, MANY),
        ),
        Case(
            name=f"discrete Laplace, {MANY} integers",
            peer=double_exponential,
            ours=lambda: DiscreteLaplace(SCALE).sample(MANY, rng),
            theirs=lambda: np.random.laplace(0.0, SCALE, MANY),
        ),
        Case(
            name=f"grid exponential, {MANY} coordinates",
            peer=double_exponential,
            ours=lambda: points.privatize(total, rng),
            theirs=lambda: total + np.random.laplace(0.0, 1.0, MANY),
        ),
    ]


def opendp_cases() -> list[Case]:
    """Compare the integer laws with OpenDP's, fewer coordinates on both sides; none without it."""
    if importlib.util.find_spec("opendp") is None:
        return []
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    rng = SecureRandom()
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    zeros = [0] * FEWER
    their_gaussian = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), scale=SCALE)
    their_laplace = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=SCALE)
    return [
        Case(
            name=f"discrete Gaussian, {FEWER} integers",
            peer="OpenDP make_gaussian",
            ours=lambda: DiscreteGaussian(SCALE).sample(FEWER, rng),
            theirs=lambda: their_gaussian(zeros),
        ),
        Case(
            name=f"discrete Laplace, {FEWER} integers",
            peer="OpenDP make_laplace",
            ours=lambda: DiscreteLaplace(SCALE).sample(FEWER, rng),
            theirs=lambda: their_laplace(zeros),
        ),
    ]


if __name__ == "__main__":
    main("Noise", numpy_cases() + opendp_cases())
