"""What the server releases: right without noise, as noisy as said, never more than was charged."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fl_dp.accounting.events import event_from_dict
from fl_dp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism, SecureRandom
from fl_dp.statistics import (
    Answer,
    Count,
    Evaluation,
    Frequencies,
    Histogram,
    Mean,
    NoiseChoice,
    Quantiles,
    Query,
    ScoreHistograms,
    Sum,
    choose_noise,
    release_statistic,
)

pytestmark = pytest.mark.slow

RNG = SecureRandom()
DELTA = 1e-5
NO_NOISE = 5000.0  # an epsilon
DRAWS = 20_000


def ask(query: Query, clients: list[np.ndarray], epsilon: float = NO_NOISE) -> Answer:
    choice = choose_noise(query, epsilon, DELTA)
    return release_statistic(choice, [query.contribution(data) for data in clients], RNG)


@pytest.fixture(scope="module")
def federation() -> list[np.ndarray]:
    """Three features of different scales; clients with 0 to 12 records."""
    rng = np.random.default_rng(3)
    clients = []
    for size in rng.integers(0, 13, 200):
        rows = rng.normal([40.0, -0.2, 1e4], [12.0, 0.3, 500.0], (size, 3))
        clients.append(np.clip(rows, LOWS, HIGHS))
    return clients


LOWS, HIGHS = (0.0, -1.0, 0.0), (120.0, 1.0, 2e4)


def within_noise(estimate: np.ndarray, truth: np.ndarray, error: np.ndarray) -> bool:
    # 12 standard deviations of Laplace noise: false alarms below 1e-7.
    return bool(np.all(np.abs(estimate - truth) <= 12 * error + 1e-9 * np.abs(truth)))


def test_without_noise_counts_and_sums_are_exact(federation: list[np.ndarray]) -> None:
    pooled = np.concatenate(federation)
    count = ask(Count(max_records=12), federation)
    assert within_noise(count.value, np.array(len(pooled)), count.error)
    assert count.error < 0.01
    with_data = ask(Count(), federation)
    assert round(float(with_data.value)) == sum(len(rows) > 0 for rows in federation)
    total = ask(Sum(lows=LOWS, highs=HIGHS, max_records=12), federation)
    assert within_noise(total.value, pooled.sum(axis=0), total.error)
    assert np.all(total.error < 1e-3 * np.abs(pooled).sum(axis=0))


def test_without_noise_means_and_standard_deviations_are_numpys(
    federation: list[np.ndarray],
) -> None:
    pooled = np.concatenate(federation)
    answer = ask(Mean(lows=LOWS, highs=HIGHS, max_records=12), federation)
    np.testing.assert_allclose(answer.value, pooled.mean(axis=0), rtol=2e-3)
    np.testing.assert_allclose(answer["std"].value, pooled.std(axis=0), rtol=2e-2)
    assert within_noise(answer["count"].value, np.array(len(pooled)), answer["count"].error)
    # 8 standard deviations of Gaussian noise.
    assert np.all(np.abs(answer["mean"].value - pooled.mean(axis=0)) < 8 * answer["mean"].error)
    assert np.all(np.abs(answer["std"].value - pooled.std(axis=0)) < 8 * answer["std"].error)


def test_with_one_record_a_client_the_mean_is_over_clients(federation: list[np.ndarray]) -> None:
    answer = ask(Mean(lows=LOWS, highs=HIGHS), federation)
    averages = np.array([rows.mean(axis=0) for rows in federation if len(rows)])
    np.testing.assert_allclose(answer.value, averages.mean(axis=0), rtol=3e-3)


def test_without_noise_histograms_and_frequencies_are_numpys(federation: list[np.ndarray]) -> None:
    ages = [rows[:, 0] for rows in federation]
    edges = (0.0, 20.0, 30.0, 40.0, 60.0, 120.0)
    answer = ask(Histogram(edges=edges, max_records=12), ages)
    np.testing.assert_allclose(answer.value, np.histogram(np.concatenate(ages), edges)[0], atol=0.1)
    words = [np.array(["old", "young"])[(age < 40).astype(int)] for age in ages]
    answer = ask(Frequencies(categories=("young", "old"), max_records=12), words)
    young = sum(int(np.count_nonzero(word == "young")) for word in words)
    assert round(float(answer.value[0])) == young


@pytest.mark.parametrize("size", [1, 4])
def test_without_noise_quantiles_are_numpys(size: int) -> None:
    rng = np.random.default_rng(5)
    clients = list(rng.integers(0, 50, (200, size)).astype(float))
    probabilities = (0.1003, 0.2503, 0.5003, 0.9003)  # no ties at 200 or 800 records
    query = Quantiles(probabilities=probabilities, grid=tuple(range(50)))
    expected = np.quantile(np.concatenate(clients), probabilities, method="inverted_cdf")
    np.testing.assert_array_equal(ask(query, clients).value, expected)


def test_a_quantiles_rank_is_as_close_as_said() -> None:
    query = Quantiles(probabilities=(0.5,), grid=tuple(range(1000)))
    clients = [np.array([float(value)]) for value in range(0, 1000, 5)]
    choice = choose_noise(query, 1.0, DELTA)
    contributions = [query.contribution(data) for data in clients]
    off = []
    for _ in range(200):
        answer = release_statistic(choice, contributions, RNG)
        off.append(abs(answer.value[0] / 5 - 100))
    # The theorem's bound is generous; 1 more for the ranks that a point spans.
    assert np.mean(np.array(off) <= float(answer.error[0]) + 1) >= 0.95
    assert np.median(off) > 0.5  # there is noise


def test_quantiles_read_off_a_noisy_sum_are_as_close_as_said() -> None:
    """100 answers; each is within its bound with probability 0.95, and 80 are with 1 - 1e-7."""
    grid = tuple(range(100))
    query = Quantiles(probabilities=(0.1, 0.5, 0.9), grid=grid)
    masses = np.full(100, 4.0)  # 4 clients at each point
    choice = choose_noise(query, 1.0, DELTA, law="gaussian")
    std = choice.mechanisms[0].noise_std  # type: ignore[union-attr]  # a Gaussian, as asked
    noise = np.random.default_rng(1)
    inside, off = 0, []
    for _ in range(100):
        found = query.estimates(masses + noise.normal(0.0, std, 100), std)["quantiles"]
        ranks = np.abs(found.value * 4.0 + 2.0 - np.array([40.0, 200.0, 360.0])) - 2.0
        inside += bool(np.all(ranks <= found.error))
        off.append(np.max(ranks))
    assert inside >= 80
    assert np.median(off) > 0.1 * std  # there is noise


def test_one_gaussian_answers_all_quantiles_and_one_event_is_charged() -> None:
    query = Quantiles(probabilities=(0.25, 0.5), grid=tuple(range(20)))
    choice = choose_noise(query, NO_NOISE, DELTA, law="gaussian")
    clients = [query.contribution([float(value)]) for value in range(20)] * 10
    answer = release_statistic(choice, clients, RNG)
    assert len(answer.events) == 1
    assert np.all(np.abs(answer.value - [4.5, 9.5]) <= 0.5)


def test_a_mass_within_its_noise_is_said() -> None:
    query = Quantiles(probabilities=(0.5,), grid=(0.0, 1.0, 2.0))
    found = query.estimates(np.array([1.0, 0.5, -0.2]), 3.0)["quantiles"]
    assert "within its noise" in found.note


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.75])
def test_a_quantiles_exact_law_has_the_charged_range_when_one_client_is_zeroed(
    probability: float,
) -> None:
    epsilon = 2.0
    query = Quantiles(probabilities=(probability,), grid=(0.0, 1.0, 2.0))
    mechanism = choose_noise(query, epsilon, DELTA).mechanisms[0]
    assert isinstance(mechanism, ExponentialMechanism)
    clients = [query.encode(point) for point in np.eye(3)]
    worst = 0.0
    for counts in itertools.product(range(8), repeat=3):
        rest = np.array(counts) @ np.array(clients)
        law = mechanism.log_probabilities(query.utilities(rest, probability))
        for client in clients:
            with_it = query.utilities(rest + client, probability)
            loss = mechanism.log_probabilities(with_it) - law
            worst = max(worst, float(loss.max() - loss.min()))
    assert worst <= epsilon * (1 + 1e-9)
    assert worst > 0.99 * epsilon  # attained, so the test would see a sensitivity too small


def deviation(released: np.ndarray, noise_std: float) -> float:
    """How far the measured standard deviation is from the promised one, as a share of it."""
    return abs(float(released.std()) / noise_std - 1)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_the_noise_of_a_histogram_is_what_the_choice_says_and_10_percent_less_is_seen(
    law: str,
) -> None:
    query = Histogram(edges=tuple(range(DRAWS + 1)))
    choice = choose_noise(query, 1.0, DELTA, law=law)
    answer = release_statistic(choice, [], RNG)
    promised = float(answer.error[0])
    # Standard error 0.8 % for Laplace noise, 0.5 % for Gaussian: false alarms below 1e-8.
    assert deviation(answer.value, promised) < 0.05
    (mechanism,) = choice.mechanisms
    kind = LaplaceMechanism if law == "laplace" else GaussianMechanism
    assert isinstance(mechanism, kind)
    less = kind(
        noise_multiplier=0.9 * mechanism.noise_multiplier, clipping_norm=mechanism.clipping_norm
    )
    weak = release_statistic(NoiseChoice(query=query, mechanisms=(less,)), [], RNG)
    assert deviation(weak.value, promised) > 0.05


def test_errors_of_means_are_those_of_repeated_releases(federation: list[np.ndarray]) -> None:
    query = Mean(lows=LOWS, highs=HIGHS, max_records=12)
    choice = choose_noise(query, 1000.0, DELTA)
    contributions = [query.contribution(rows) for rows in federation]
    answers = [release_statistic(choice, contributions, RNG) for _ in range(500)]
    for name in ("mean", "std"):
        measured = np.std([answer[name].value for answer in answers], axis=0)
        stated = np.median([answer[name].error for answer in answers], axis=0)
        # Ratios of noisy sums have heavy tails: of 250 draws, the deviation's own was up to 10 %.
        np.testing.assert_allclose(measured, stated, rtol=0.3)


def test_a_hostile_contribution_weighs_no_more_than_any_other() -> None:
    choice = choose_noise(Count(), NO_NOISE, DELTA)
    for hostile in ([1e300], [-1e300], [1.7e308], [2], np.array([3], np.int8)):
        answer = release_statistic(choice, [np.ones(1), hostile], RNG)
        assert -0.01 < answer.value < 2.01
    for nothing in ([np.nan], [np.inf], [1.0, 1.0], 1.0, [[1.0]], "1", None, [1j], [[], [1]]):
        assert float(release_statistic(choice, [np.ones(1), nothing], RNG).value) == pytest.approx(
            1, abs=0.01
        )


def test_a_hostile_client_can_not_carry_negative_or_excess_mass_into_quantiles() -> None:
    query = Quantiles(probabilities=(0.5,), grid=(0.0, 1.0, 2.0))
    honest = [query.contribution([1.0])] * 9
    choice = choose_noise(query, NO_NOISE, DELTA)
    for hostile in ([1e9, 0.0, 0.0], [0.0, -1e9, 0.0], [np.nan, 0, 0], [1.0]):
        assert release_statistic(choice, [*honest, hostile], RNG).value[0] == 1.0


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_a_mean_without_data_is_the_middle_of_the_range_or_at_least_within_it(
    epsilon: float,
) -> None:
    query = Mean(lows=(10.0, -1.0), highs=(30.0, 1.0))
    choice = choose_noise(query, epsilon, DELTA)
    said = 0
    for _ in range(200):
        answer = release_statistic(choice, [], RNG)
        std = answer["std"]
        assert np.all((answer.value >= query.lows) & (answer.value <= query.highs))
        assert np.all((std.value > 0) & (std.value <= [10.0, 1.0]))
        assert np.isfinite(answer.error).all() and np.isfinite(std.error).all()
        if answer["mean"].note:
            said += 1
            np.testing.assert_array_equal(answer.value, [20.0, 0.0])
            np.testing.assert_array_equal(std.value, [10.0, 1.0])
            assert "within its noise" in answer.explanation
    assert said > 100  # the noisy count of nobody is within its noise, or negative, 5 times of 6


def test_a_constant_feature_has_a_standard_deviation_that_can_be_divided_by() -> None:
    query = Mean(lows=(0.0,), highs=(1.0,))
    std = ask(query, [np.array([0.3])] * 100, epsilon=10.0)["std"]
    assert 0 < std.value[0] < 0.5


def test_counts_stay_unbiased_unless_asked_otherwise() -> None:
    for nonnegative in (False, True):
        count = Count(nonnegative=nonnegative)
        bins = Histogram(edges=(0.0, 1.0, 2.0), nonnegative=nonnegative)
        released = [ask(query, [], epsilon=1.0).value for query in (count, bins) for _ in range(60)]
        # All of them positive by chance: below 2^-60.
        assert (min(float(np.min(value)) for value in released) < 0) is not nonnegative


@pytest.mark.parametrize(
    "query",
    [
        Count(),
        Mean(lows=(0.0, 0.0), highs=(1.0, 1.0)),
        Quantiles(probabilities=(0.2, 0.5), grid=(0, 1, 2)),
    ],
)
def test_an_answer_carries_the_events_that_were_known_before(query: Query) -> None:
    choice = choose_noise(query, 1.0, DELTA)
    beforehand = choice.events
    answer = release_statistic(choice, [], RNG)
    assert answer.events == beforehand
    document = json.loads(json.dumps(answer.to_dict()))
    assert tuple(event_from_dict(event) for event in document["events"]) == beforehand
    assert document["explanation"].startswith(choice.explanation)


def test_more_contributions_than_can_be_summed_exactly_are_refused() -> None:
    choice = choose_noise(Count(), 1e6, DELTA)
    with pytest.raises(ValueError, match="contributions can be summed exactly"):
        release_statistic(choice, itertools.repeat(np.ones(1), 10_000), RNG)


def test_the_most_frequent_categories_come_first() -> None:
    query = Frequencies(categories=("a", "b", "c", "d"))
    answer = ask(query, [np.array([word]) for word in "ccccbbd"])
    assert [name for name, _ in query.ranked(answer["counts"], 2)] == ["c", "b"]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        query.ranked(answer["counts"], 0)


def scored(seed: int, rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.3).astype(np.int64)
    return labels, 1 / (1 + np.exp(-rng.normal(2.0 * labels - 1.0)))


def test_auc_and_accuracy_are_those_of_scikit_learn_up_to_the_bins() -> None:
    labels, scores = scored(0)
    query = ScoreHistograms(bins=50, max_records=10**6)
    total = query.contribution(np.column_stack([labels, scores]))
    found = query.estimates(total, 0.0)
    binned = np.floor(scores * 50)
    assert found["auc"].value == pytest.approx(roc_auc_score(labels, binned), abs=1e-12)
    negative, positive = total[:50], total[50:]
    in_one_bin = float(negative @ positive) / (negative.sum() * positive.sum())
    assert abs(found["auc"].value - roc_auc_score(labels, scores)) <= in_one_bin / 2
    assert found["accuracy"].value == np.mean((scores >= 0.5) == labels)
    assert float(found["positives"].value) == labels.sum()


def test_the_error_of_a_private_auc_is_that_of_its_noise() -> None:
    """The spread of 400 draws is within 20 % of what is said: 5.6 deviations, alarm 2e-8."""
    labels, scores = scored(1)
    query = ScoreHistograms(bins=10, max_records=10**6)
    total = query.contribution(np.column_stack([labels, scores]))
    rng = np.random.default_rng(7)
    drawn = [query.estimates(total + rng.normal(0.0, 5.0, total.size), 5.0) for _ in range(400)]
    for name in ("auc", "accuracy"):
        told = float(query.estimates(total, 5.0)[name].error)
        assert np.std([each[name].value for each in drawn]) == pytest.approx(told, rel=0.2)


def test_clients_scores_give_one_private_auc() -> None:
    labels, scores = scored(2)
    rows = np.array_split(np.column_stack([labels, scores]), 400)
    query = ScoreHistograms(bins=20, max_records=10)
    answer = ask(query, rows)
    assert answer["auc"].value == pytest.approx(roc_auc_score(labels, scores), abs=0.01)
    assert answer["positives"].value == pytest.approx(labels.sum(), abs=50)


@pytest.mark.parametrize("bad", [[[2, 0.5]], [[0.5, 0.5]], [[1, math.nan]], [[1, 0.5, 0.5]], []])
def test_rows_that_are_no_label_and_score_are_not_counted(bad: object) -> None:
    assert not ScoreHistograms().contribution(bad).any()


def test_an_auc_of_one_class_is_unknown_and_says_so() -> None:
    query = ScoreHistograms(bins=4)
    found = query.estimates(np.array([0, 0, 0, 0, 1, 3, 2, 9.0]), 0.1)
    assert float(found["auc"].value) == float(found["auc"].error) == 0.5
    assert "within its noise" in found["auc"].note


METRICS = Evaluation(names=("loss", "accuracy"), lows=(0.0, 0.0), highs=(4.0, 1.0))


def test_metrics_are_means_over_clients() -> None:
    clients = [np.array([10.0, 1.0, 0.5]), np.array([99.0, 3.0, 1.0]), np.array([1.0, 9.0, 0.0])]
    answer = ask(METRICS, clients * 100)
    assert answer["loss"].value == pytest.approx((1 + 3 + 4) / 3, abs=0.02)  # 9 counts as 4
    assert answer["accuracy"].value == pytest.approx(0.5, abs=0.005)
    assert answer["count"].value == pytest.approx(300, abs=0.5)


def test_metrics_by_records_weigh_a_client_by_its_records_up_to_the_cap() -> None:
    query = Evaluation(names=("accuracy",), lows=(0.0,), highs=(1.0,), max_records=50)
    answer = ask(query, [np.array([10.0, 1.0]), np.array([1e6, 0.0])] * 200)
    assert answer["accuracy"].value == pytest.approx(10 / 60, abs=0.005)
    assert answer["count"].value == pytest.approx(60 * 200, abs=100)


@pytest.mark.parametrize("bad", [[0, 1.0, 0.5], [10, math.nan, 0.5], [-3, 1.0, 0.5], [10, 1.0]])
def test_a_client_that_measured_nothing_is_not_counted(bad: list[float]) -> None:
    np.testing.assert_array_equal(METRICS.contribution(np.array(bad)), np.zeros(3))


def test_metrics_of_nobody_are_the_middle_and_say_so() -> None:
    found = METRICS.estimates(np.array([0.3, -0.1, 0.9]), 1.0)
    assert float(found["loss"].value) == float(found["loss"].error) == 2.0
    assert "within its noise" in found["accuracy"].note
