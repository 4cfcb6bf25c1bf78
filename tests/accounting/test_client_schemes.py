"""What client mechanisms are charged, and one target for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from fl_dp.accounting import NeighboringRelation, tight_epsilon
from fl_dp.accounting.calibration import calibrate_client_scheme
from fl_dp.accounting.gaussian_formulas import gaussian_noise_multiplier
from fl_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from fl_dp.mechanisms.clipping import Norm
from fl_dp.mechanisms.grid import GridMechanism
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.mechanisms.laplace import DiscreteLaplace
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent, ZcdpEvent

NAMES = ["gaussian", "laplace", "exponential"]


def test_each_mechanism_is_charged_as_what_it_is() -> None:
    sizes: dict[str, Any] = dict(noise_multiplier=2.0, clipping_norm=0.5)
    assert GaussianMechanism(**sizes).event() == GaussianEvent(noise_multiplier=2.0)
    assert LaplaceMechanism(**sizes).event() == LaplaceEvent(noise_multiplier=2.0)
    assert GridExponentialMechanism(**sizes).event() == ZcdpEvent(rho=0.125)


def test_a_mechanism_without_a_charge_can_not_be_made() -> None:
    class Uncharged(GridMechanism):
        clipping, noise_std, law = Norm.L2, 1.0, DiscreteLaplace(1.0)

    with pytest.raises(TypeError, match="event"):
        Uncharged(noise_multiplier=1.0, clipping_norm=1.0)  # type: ignore[abstract]  # the point


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("target", "participations"), [(1.0, 1), (8.0, 10)])
def test_a_scheme_spends_the_target_and_nearly_all_of_it(
    name: str, target: float, participations: int, relation: NeighboringRelation
) -> None:
    scheme = calibrate_client_scheme(
        name,
        target,
        1e-5,
        participations=participations,
        clipping_norm=0.7,
        neighboring_relation=relation,
    )
    spent = tight_epsilon({scheme.event(): participations}, 1e-5, neighboring_relation=relation)
    assert target * 0.998 <= spent <= target
    assert scheme.clipping_norm == 0.7


def test_the_gaussian_scheme_is_the_analytic_one() -> None:
    scheme = calibrate_client_scheme("gaussian", 8.0, 1e-5, participations=10, clipping_norm=1.0)
    # sqrt(10) times Balle and Wang's multiplier: 1.898091.
    assert scheme.noise_multiplier == pytest.approx(1.898091, rel=1e-5)
    exact = 10**0.5 * gaussian_noise_multiplier(8.0, 1e-5)
    assert scheme.noise_multiplier == pytest.approx(exact, rel=1e-5)


def test_replacing_a_clients_data_takes_twice_the_noise() -> None:
    for name in NAMES:
        zeroed, replaced = (
            calibrate_client_scheme(
                name,
                4.0,
                1e-5,
                participations=3,
                clipping_norm=1.0,
                neighboring_relation=relation,
            ).noise_multiplier
            for relation in (NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE)
        )
        assert replaced == pytest.approx(2 * zeroed, rel=1e-3)
