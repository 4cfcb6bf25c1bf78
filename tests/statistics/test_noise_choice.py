"""Which noise is chosen, and that its events are what is charged."""

from __future__ import annotations

import math

import pytest

from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent, LaplaceEvent
from fl_dp.statistics import (
    Count,
    Frequencies,
    Histogram,
    Mean,
    NoiseChoice,
    Quantiles,
    Query,
    Sum,
    choose_noise,
)

DELTA = 1e-5
MEDIAN = Quantiles(probabilities=(0.5,), grid=(0.0, 1.0))


def dense(dimension: int) -> Sum:
    """A query whose L1 sensitivity is sqrt(d) times that in L2."""
    return Sum(lows=(-1.0,) * dimension, highs=(1.0,) * dimension)


def noise_std(query: Query, epsilon: float, law: str | None = None) -> float:
    mechanism = choose_noise(query, epsilon, DELTA, law=law).mechanisms[0]
    assert isinstance(mechanism, LaplaceMechanism | GaussianMechanism)
    return mechanism.noise_std


@pytest.mark.parametrize(
    ("epsilon", "dimension", "ratio"),
    # sqrt(2 d) / (epsilon z), z from Balle and Wang 2018: 3.7306316348 and 0.6002290722.
    [
        (1.0, 1, 0.37908),
        (1.0, 10, 1.19877),
        (1.0, 100, 3.79084),
        (8.0, 100, 2.94515),
    ],
)
def test_the_smaller_noise_is_chosen_on_both_sides_of_the_crossover(
    epsilon: float, dimension: int, ratio: float
) -> None:
    query = dense(dimension)
    laplace, gaussian = (noise_std(query, epsilon, law) for law in ("laplace", "gaussian"))
    assert laplace / gaussian == pytest.approx(ratio, rel=1e-4)
    assert noise_std(query, epsilon) == min(laplace, gaussian)


@pytest.mark.parametrize(
    "query",
    [
        Count(max_records=10),
        Histogram(edges=tuple(range(1001))),
        Frequencies(categories=("a", "b", "c")),
    ],
)
def test_counts_and_histograms_of_any_length_get_laplace_noise(query: Query) -> None:
    epsilon = 8.0
    choice = choose_noise(query, epsilon, DELTA)
    assert choice.events == (LaplaceEvent(noise_multiplier=1 / epsilon),)
    assert noise_std(query, epsilon) == pytest.approx(math.sqrt(2) * query.max_records / epsilon)


def test_means_of_many_features_get_gaussian_noise_of_exactly_the_target() -> None:
    query = Mean(lows=(0.0,) * 64, highs=(1.0,) * 64)
    choice = choose_noise(query, 2.0, DELTA)
    (event,) = choice.events
    assert isinstance(event, GaussianEvent)
    assert gaussian_epsilon(event.noise_multiplier, DELTA) == pytest.approx(2.0, rel=1e-6)
    assert choice.mechanisms == (
        GaussianMechanism(
            noise_multiplier=event.noise_multiplier, clipping_norm=query.l2_sensitivity
        ),
    )


def test_the_explanation_has_both_numbers() -> None:
    assert choose_noise(Count(), 1.0, DELTA).explanation == (
        "Laplace noise of standard deviation 1.414 on each coordinate of the sum, the smaller: "
        "Gaussian noise would have 3.731"
    )
    assert choose_noise(dense(100), 1.0, DELTA).explanation.startswith(
        "Gaussian noise of standard deviation 37.31 on each coordinate of the sum, the smaller: "
        "Laplace noise would have 141.4"
    )


def test_a_pure_guarantee_takes_laplace_noise_whatever_the_dimension() -> None:
    choice = choose_noise(dense(100), 1.0, 0.0)
    assert choice.events == (LaplaceEvent(noise_multiplier=1.0),)
    assert "only Laplace noise is pure" in choice.explanation
    with pytest.raises(ValueError, match="not pure"):
        choose_noise(Count(), 1.0, 0.0, law="gaussian")


def test_quantiles_share_epsilon_evenly_and_each_draw_is_an_event() -> None:
    query = Quantiles(probabilities=(0.25, 0.5, 0.75), grid=tuple(range(100)))
    choice = choose_noise(query, 1.5, DELTA)
    assert choice.events == (ExponentialEvent(epsilon=0.5),) * 3
    assert "each of 3 quantiles among 100 grid points, with equal shares" in choice.explanation


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 1.0},
        {"delta": math.nan},
        {"law": "cauchy"},
        {"query": MEDIAN, "law": "laplace"},
    ],
    ids=str,
)
def test_a_target_that_makes_no_sense_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        choose_noise(**{"query": Count(), "epsilon": 1.0, "delta": DELTA, **arguments})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("query", "mechanisms", "message"),
    [
        (Count(), (), "answered by one LaplaceMechanism or GaussianMechanism, got nothing"),
        (Count(), (ExponentialMechanism(epsilon=1.0, sensitivity=1.0),), "got ExponentialMech"),
        (MEDIAN, (), "of 1 draws .*got nothing"),
        (MEDIAN, (LaplaceMechanism(noise_multiplier=1.0, clipping_norm=1.0),), "ExponentialMech"),
        (MEDIAN, (ExponentialMechanism(epsilon=1.0, sensitivity=0.4),), "write sensitivity=0.5"),
        (
            MEDIAN,
            (ExponentialMechanism(epsilon=1.0, sensitivity=0.5, one_coordinate=True),),
            "one_coordinate=False",
        ),
    ],
)
def test_a_mechanism_that_does_not_cover_the_query_is_refused(
    query: Query, mechanisms: tuple[LaplaceMechanism, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NoiseChoice(query=query, mechanisms=mechanisms)
