"""Several sums that are one Gaussian: their noise, and what one unit can do to each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from laws import ALARM
from scipy import stats

from fl_dp.codec import decode_text, encode_text
from fl_dp.mechanisms import GaussianBundle, ScalarMetric, SecureRandom

LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)
SIGNED = ScalarMetric(name="signed", low=-1.0, high=3.0)
TINY = ScalarMetric(name="tiny", low=1e-300, high=2e-300)
HUGE = ScalarMetric(name="huge", low=-8e307, high=8e307)


def bundle_of(**changes: Any) -> GaussianBundle:
    fields: dict[str, Any] = dict(
        noise_multiplier=1.0,
        clipping_norms=(0.5,),
        unclipped_bit=True,
        metrics=(LOSS, SIGNED),
        scalar_noise_std=5.0,
    )
    return GaussianBundle(**(fields | changes))


@pytest.mark.parametrize("bit", [False, True])
@pytest.mark.parametrize("metrics", [(), (LOSS, SIGNED, TINY)])
@pytest.mark.parametrize("count", [(), (7.0,)])
@pytest.mark.parametrize("multiplier", [0.01, 3.0])
def test_inverse_squares_of_all_multipliers_add_up_to_the_one_that_is_charged(
    bit: bool, metrics: tuple[ScalarMetric, ...], count: tuple[float, ...], multiplier: float
) -> None:
    bundle = bundle_of(
        noise_multiplier=multiplier,
        unclipped_bit=bit,
        metrics=metrics,
        count_noise_std=count[0] if count else None,
    )
    scalars = bundle.scalar_mechanisms
    centred = bit + len(metrics)
    assert [each.noise_std for each in scalars] == [*count, *[5.0] * centred]
    assert [each.clipping_norm for each in scalars] == [*[1.0] * len(count), *[0.5] * centred]
    assert bundle.scalars == len(scalars)
    parts = [each.noise_multiplier for each in (bundle.updates, *scalars)]
    assert sum(part**-2 for part in parts) == pytest.approx(multiplier**-2, rel=1e-12)


def test_updates_alone_get_the_noise_that_is_charged() -> None:
    bundle = bundle_of(unclipped_bit=False, metrics=(), scalar_noise_std=None)
    assert bundle.updates.noise_multiplier == 1.0
    assert bundle.scalar_mechanisms == ()
    assert bundle.scalar_values(0.1, {"loss": 3.0}) == []
    assert bundle.scalar_steps([]).shape == (0,)


@pytest.mark.parametrize(("norms", "joint"), [((0.5,), 0.5), ((3.0, 4.0), 5.0), ((1.0,) * 9, 3.0)])
def test_layers_have_the_sensitivity_of_their_joint_norm(
    norms: tuple[float, ...], joint: float
) -> None:
    assert bundle_of(clipping_norms=norms).updates.clipping_norm == pytest.approx(joint)


# --- one unit -----------------------------------------------------------------------------------

ODD_NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0, -0.0, 1e17, 2.0]


@pytest.mark.parametrize("metric", [LOSS, SIGNED, TINY, HUGE], ids=lambda metric: metric.name)
@pytest.mark.parametrize("value", ODD_NUMBERS)
def test_no_number_moves_a_metric_by_more_than_half(metric: ScalarMetric, value: float) -> None:
    bundle = bundle_of(metrics=(metric,), unclipped_bit=False)
    [centred] = bundle.scalar_values(0.0, {metric.name: value})
    assert -0.5 <= centred <= 0.5
    [steps] = bundle.scalar_steps([centred])
    assert bundle.scalar_mechanisms
    assert steps == np.trunc(steps)
    assert abs(steps) * bundle.scalar_mechanisms[-1].grid <= 0.5


@pytest.mark.parametrize("value", [1e9, -1e9, math.nan, math.inf])
def test_encoded_scalars_are_bounded_one_by_one_whatever_they_are(value: float) -> None:
    # A caller that skips scalar_values moves no scalar further, and no other with it.
    bundle = bundle_of()
    assert bundle.scalar_mechanisms
    steps = bundle.scalar_steps([0.25, value, -0.25])
    assert np.abs(steps).max() * bundle.scalar_mechanisms[-1].grid <= 0.5
    grid = bundle.scalar_mechanisms[-1].grid
    np.testing.assert_allclose(steps[[0, 2]] * grid, [0.25, -0.25], rtol=1e-6)


@pytest.mark.parametrize(
    ("norm", "bit"), [(0.0, 0.5), (0.5, 0.5), (0.5000001, -0.5), (math.inf, -0.5), (math.nan, -0.5)]
)
def test_the_bit_says_whether_an_update_was_short_enough(norm: float, bit: float) -> None:
    assert bundle_of(metrics=()).scalar_values(norm, {}) == [bit]


def test_what_is_missing_or_no_number_is_the_middle_and_nothing_else_is_read() -> None:
    values = bundle_of().scalar_values(0.1, {"signed": math.nan, "other": 7.0})
    assert values == [0.5, 0.0, 0.0]


def test_metrics_stand_in_their_declared_order_after_the_bit() -> None:
    values = bundle_of().scalar_values(9.0, {"signed": 3.0, "loss": 1.0})
    assert values == [-0.5, -0.25, 0.5]


@pytest.mark.parametrize("metric", [LOSS, SIGNED, TINY], ids=lambda metric: metric.name)
def test_the_mean_of_a_metric_is_in_its_own_units_and_range(metric: ScalarMetric) -> None:
    width = metric.high - metric.low
    for share in (0.0, 0.1, 0.5, 1.0):
        value = metric.low + share * width
        total = 8 * metric.centred(value)
        assert metric.mean(total, 8.0) == pytest.approx(value, rel=1e-9, abs=1e-9 * width)
    assert metric.mean(1e9, 8.0) == metric.high
    assert metric.mean(-1e9, 8.0) == metric.low
    assert metric.mean(0.0, 8.0) == pytest.approx(metric.low + width / 2)


# --- the noise ----------------------------------------------------------------------------------


def test_each_sum_is_released_with_noise_of_its_own() -> None:
    # 100,000 draws each: a chi-square at 1e-6 sees 3 % of scale.
    bundle, rng, count = bundle_of(noise_multiplier=1.5), SecureRandom(), 100_000
    assert bundle.scalar_mechanisms
    for mechanism, deviation in (
        (bundle.updates, bundle.updates.noise_multiplier * 0.5),
        (bundle.scalar_mechanisms[-1], 5.0),
    ):
        released = mechanism.release(np.zeros(count), mechanism.noise(count, rng))
        squares = ((released / deviation) ** 2).sum()
        law = stats.chi2(count)
        assert 2 * min(law.sf(squares), law.cdf(squares)) > ALARM
        assert law.sf(squares * 1.06) < ALARM
        assert law.cdf(squares / 1.06) < ALARM


@pytest.mark.parametrize("multiplier", [1e-5, 1.0])
def test_as_many_units_as_are_promised_are_summed_exactly(multiplier: float) -> None:
    bundle = bundle_of(noise_multiplier=multiplier, scalar_noise_std=max(5.0 * multiplier, 1e-4))
    assert bundle.scalar_mechanisms
    most = bundle.max_units
    for mechanism in (bundle.updates, bundle.scalar_mechanisms[-1]):
        longest = float(mechanism.encode(mechanism.clipping_norm))
        assert most * longest <= 2.0**53


# --- as data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bundle",
    [
        bundle_of(),
        bundle_of(metrics=(), unclipped_bit=False, scalar_noise_std=None),
        bundle_of(metrics=(TINY,), noise_multiplier=1 / 3),
    ],
)
def test_a_bundle_comes_back_from_json_as_it_was(bundle: GaussianBundle) -> None:
    again = decode_text(GaussianBundle, encode_text(bundle))
    assert again == bundle
    assert again.updates == bundle.updates
    assert again.scalar_mechanisms == bundle.scalar_mechanisms


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(noise_multiplier=0.0), "noise_multiplier"),
        (dict(clipping_norms=()), "norms must hold a clipping norm"),
        (dict(clipping_norms=(1.0, 0.0)), r"norms\["),
        (dict(scalar_noise_std=None), "give scalar_noise_std"),
        (dict(scalar_noise_std=math.nan), "scalar_noise_std"),
        # Three scalars of this noise cost as much as the whole: 3 / (2 s)^2 = 1.
        (dict(scalar_noise_std=math.sqrt(3) / 2), "alone would cost more"),
        (dict(metrics=(LOSS, LOSS)), "each metric is released once"),
    ],
)
def test_a_bundle_that_can_not_be_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bundle_of(**changes)


@pytest.mark.parametrize(
    ("low", "high"),
    [(1.0, 1.0), (math.nan, 1.0), (-1e308, 1e308)],
)
def test_a_metric_without_a_range_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="the range of metric 'm'"):
        ScalarMetric(name="m", low=low, high=high)


def delta_of(distance: float, rate: float, eps: float) -> float:
    """What a Gaussian on a Poisson sample spends, by quadrature: the larger of both directions."""
    x = np.linspace(-12.0, 12.0 + distance, 200_001)
    without = stats.norm.pdf(x)
    mixed = (1.0 - rate) * without + rate * stats.norm.pdf(x, distance)
    gained = (mixed - math.exp(eps) * without, without - math.exp(eps) * mixed)
    return max(float(np.trapezoid(np.maximum(each, 0.0), x)) for each in gained)


@pytest.mark.parametrize("eps", [0.2, 0.5, 1.0])
def test_correlated_updates_and_white_scalars_of_one_coin_are_one_event(eps: float) -> None:
    # A unit in one round of a block of two: its update shows in both, and its bit in the first.
    rate, z = 0.3, 1.0
    bundle = GaussianBundle(
        noise_multiplier=z,
        clipping_norms=(1.0,),
        unclipped_bit=True,
        scalar_noise_std=0.8,
        coefficients=(4096, 2458),
        size=2,
    )
    [bit] = bundle.scalar_mechanisms
    inverse = np.linalg.inv([[1.0, 0.0], [2458 / 4096, 1.0]])
    covariance = np.zeros((3, 3))
    covariance[:2, :2] = bundle.updates.noise_std**2 * inverse @ inverse.T
    covariance[2, 2] = bit.noise_std**2
    moved = np.array([1.0, 0.0, bit.clipping_norm])
    axes = [np.linspace(-8.0 * s, m + 8.0 * s, 121) for s, m in zip(
        np.sqrt(np.diag(covariance)), moved, strict=True)]  # fmt: skip
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    cell = float(np.prod([axis[1] - axis[0] for axis in axes]))
    without = stats.multivariate_normal(np.zeros(3), covariance).pdf(points) * cell
    mixed = (1.0 - rate) * without + rate * stats.multivariate_normal(moved, covariance).pdf(
        points
    ) * cell
    assert without.sum() == pytest.approx(1.0, abs=1e-9)
    spent = max(
        float(np.maximum(one - math.exp(eps) * other, 0.0).sum())
        for one, other in ((mixed, without), (without, mixed))
    )
    charged = delta_of(1.0 / z, rate, eps)
    assert 0.99 * charged < spent <= charged * (1.0 + 1e-3)  # the grid's own error
    # The updates alone, as if the bit had a coin of its own or cost nothing, would be too little.
    assert spent > 1.2 * delta_of(1.0 / bundle.updates.noise_multiplier, rate, eps)
