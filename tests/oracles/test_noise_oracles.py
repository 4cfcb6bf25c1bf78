"""Our integer laws against OpenDP's exact samplers. False alarms: below 1e-6 a test."""

from __future__ import annotations

import numpy as np
import pytest
from laws import ALARM, same_law_p

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.mechanisms.laplace import DiscreteLaplace

dp = pytest.importorskip(
    "opendp.prelude", reason="compares with OpenDP: install it with pip install opendp"
)

THEIRS = 100_000  # they take ten microseconds a draw
OURS = 400_000
LAWS: dict[str, type[DiscreteGaussian] | type[DiscreteLaplace]] = {
    "gaussian": DiscreteGaussian,
    "laplace": DiscreteLaplace,
}


def their_draws(law: str, scale: float) -> np.ndarray:
    dp.enable_features("contrib")
    make, metric = {
        "gaussian": (dp.m.make_gaussian, dp.l2_distance(T="i64")),
        "laplace": (dp.m.make_laplace, dp.l1_distance(T="i64")),
    }[law]
    measurement = make(dp.vector_domain(dp.atom_domain(T="i64")), metric, scale=scale)
    return np.array(measurement([0] * THEIRS), dtype=np.int64)


@pytest.mark.parametrize("scale", [0.7, 2.0, 10.0])
@pytest.mark.parametrize("law", LAWS)
def test_our_draws_and_opendps_follow_one_law(law: str, scale: float) -> None:
    theirs = their_draws(law, scale)
    assert same_law_p(LAWS[law](scale).sample(OURS, SecureRandom()), theirs) > ALARM
    for wrong in (0.9, 1.1):  # and the comparison sees a tenth
        assert same_law_p(LAWS[law](wrong * scale).sample(OURS, SecureRandom()), theirs) < ALARM
