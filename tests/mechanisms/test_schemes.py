"""What all local noise schemes have in common. False alarms: below 1e-6 a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from laws import DRAWS

from fl_dp.mechanisms import (
    ClientScheme,
    GaussianMechanism,
    LaplaceMechanism,
    SecureRandom,
    client_scheme,
)
from fl_dp.mechanisms.clipping import Norm
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism

KINDS = {
    "gaussian": (GaussianMechanism, Norm.L2),
    "laplace": (LaplaceMechanism, Norm.L1),
    "exponential": (GridExponentialMechanism, Norm.L2),
}


def scheme(name: str) -> ClientScheme:
    return client_scheme(name, noise_multiplier=1.3, clipping_norm=2.0)


@pytest.mark.parametrize("name", KINDS)
def test_a_scheme_is_built_by_its_name(name: str) -> None:
    made = scheme(name)
    kind, norm = KINDS[name]
    assert isinstance(made, kind)
    assert (made.noise_multiplier, made.clipping_norm, made.clipping) == (1.3, 2.0, norm)


def test_an_unknown_scheme_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match="gaussian, laplace, exponential"):
        client_scheme("gauss", noise_multiplier=1.0, clipping_norm=1.0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_scheme_without_noise_or_bound_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        client_scheme(name, noise_multiplier=value, clipping_norm=1.0)
    with pytest.raises(ValueError, match="clipping_norm"):
        client_scheme(name, noise_multiplier=1.0, clipping_norm=value)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "update",
    [
        np.float32(3.0),
        np.zeros((2, 0)),
        np.ones((2, 3), np.float16),
        np.arange(5),
        [np.nan, 1.0],
        [np.inf, -np.inf],
        [1e300, -1e300],
    ],
)
def test_any_update_is_taken_keeps_its_shape_and_comes_out_finite(name: str, update: Any) -> None:
    sent = scheme(name).privatize(update, SecureRandom())
    assert isinstance(sent, np.ndarray)
    assert sent.shape == np.shape(update)
    assert sent.dtype == np.float64
    assert np.isfinite(sent).all()


@pytest.mark.parametrize("name", KINDS)
def test_the_stated_deviation_is_that_of_what_is_sent(name: str) -> None:
    made = scheme(name)
    transposed = np.zeros((10, 100, DRAWS // 1000)).transpose(2, 0, 1)
    sent = made.privatize(transposed, SecureRandom())
    # Six standard errors of the widest-tailed of the three, the Laplace law.
    assert sent.std() == pytest.approx(made.noise_std, rel=6 * np.sqrt(5 / 4 / DRAWS))
    assert abs(sent.mean()) < 5 * made.noise_std / np.sqrt(DRAWS)


@pytest.mark.parametrize("true_value", [0.0, 1.0])
def test_no_sent_value_is_off_the_grid_whatever_it_hides(true_value: float) -> None:
    # Mironov 2012: the spacing of floats gives the hidden value away; here there is one spacing.
    mechanism = LaplaceMechanism(noise_multiplier=1.0 / DRAWS, clipping_norm=2.0 * DRAWS)
    sent = mechanism.privatize(np.full(DRAWS, true_value), SecureRandom())
    steps = sent / mechanism.grid
    assert np.count_nonzero(steps != np.rint(steps)) == 0


@pytest.mark.parametrize("levels", [2, 4, 65])
def test_the_points_of_the_exponential_scheme_change_its_noise_and_not_its_price(
    levels: int,
) -> None:
    made = client_scheme("exponential", noise_multiplier=2.0, clipping_norm=1.5, levels=levels)
    assert isinstance(made, GridExponentialMechanism)
    assert made.zcdp_rho == 0.5 / 2.0**2
    assert np.unique(made.privatize(np.zeros(10_000), SecureRandom())).size == levels


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_scheme_without_points_takes_no_number_of_them(name: str) -> None:
    with pytest.raises(ValueError, match="only the exponential scheme has levels"):
        client_scheme(name, noise_multiplier=1.0, clipping_norm=1.0, levels=2)
