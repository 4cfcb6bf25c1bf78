"""A vote on candidates: its law, its sensitivity whatever clients send, its price."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fl_dp.codec import encode_text
from fl_dp.mechanisms import ExponentialMechanism, GaussianMechanism, SecureRandom
from fl_dp.mechanisms.mechanism_events import ExponentialEvent
from fl_dp.statistics import (
    NoiseChoice,
    Vote,
    choose_noise,
    query_from_json,
    release_statistic,
)

RNG = SecureRandom()
DRAWS = 7_000
HOSTILE: dict[str, object] = {
    "nan": [0.5, math.nan, 0.5],
    "infinite": [math.inf, 0.0, 0.0],
    "minus infinite": [0.0, -math.inf, 0.0],
    "too many": [1.0, 0.0, 0.0, 0.0],
    "too few": [1.0, 0.0],
    "empty": [],
    "0-d": np.float64(1.0),
    "a matrix": np.ones((1, 3)),
    "above one": [1.0 + 1e-9, 0.0, 0.0],
    "below zero": [-1e-300, 0.0, 1.0],
    "huge integers": np.array([2**62, 0, 0]),
    "negative integers": np.array([-1, 1, 0], dtype=np.int8),
    "bytes": b"\x01\x00\x00",
    "text": "100",
    "nothing": None,
    "complex": np.array([1j, 0, 0]),
    "hundreds of digits": [10**400, 0, 0],
}


def deviations(drawn_at: float, charged: float) -> float:
    """Standard deviations by which the mean utility of winners is off the law of `charged`.

    One client scores 200 candidates evenly from 0 to 1: then a draw tells most about epsilon.
    """
    scores = np.linspace(0.0, 1.0, 200)
    choice = choose_noise(Vote(candidates=200), drawn_at, 0.0)
    won = [int(release_statistic(choice, [scores], RNG).value) for _ in range(DRAWS)]
    law = np.exp(charged * scores) / np.exp(charged * scores).sum()
    mean = law @ scores
    error = math.sqrt((law @ (scores - mean) ** 2) / DRAWS)
    return float(abs(np.mean(scores[won]) - mean) / error)


def test_the_winner_follows_the_law_of_its_epsilon() -> None:
    """Candidate i wins with probability proportional to e^(epsilon votes): 5 deviations, 6e-7."""
    assert deviations(10.0, charged=10.0) < 5.0


@pytest.mark.parametrize("off", [0.9, 1.1])
def test_that_test_notices_a_tenth_of_epsilon(off: float) -> None:
    """Expected are 7 deviations or more."""
    assert deviations(10.0 * off, charged=10.0) > 5.0


def log_law(epsilon: float, votes: list[Any], candidates: int) -> np.ndarray:
    choice = choose_noise(Vote(candidates=candidates), epsilon, 0.0)
    (mechanism,) = choice.mechanisms
    assert isinstance(mechanism, ExponentialMechanism)
    query = Vote(candidates=candidates)
    total = np.sum([query.encode(each) for each in votes], axis=0)
    return mechanism.log_probabilities(query.utilities(total))


@pytest.mark.parametrize("candidates", [2, 3, 50])
def test_one_client_moves_the_law_by_no_more_than_was_charged(candidates: int) -> None:
    rng, epsilon = np.random.default_rng(1), 0.7
    for _ in range(40):
        others = list(rng.random((5, candidates)))
        votes = [rng.random(candidates), (rng.random(candidates) < 0.5).astype(float)]
        for mine in (*votes, np.eye(candidates)[0], 1.0 - np.eye(candidates)[0]):
            ratio = log_law(epsilon, [*others, mine], candidates)
            ratio = ratio - log_law(epsilon, [*others, np.zeros(candidates)], candidates)
            assert np.ptp(ratio) <= epsilon * (1 + 1e-9)


def test_the_charge_is_used_up_by_one_candidate_and_any_number_of_others() -> None:
    for candidates in (2, 3, 50):
        ratio = log_law(0.7, [np.eye(candidates)[0]], candidates)
        ratio = ratio - log_law(0.7, [np.zeros(candidates)], candidates)
        assert np.ptp(ratio) == pytest.approx(0.7, rel=1e-9)


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_whatever_is_no_vote_counts_for_nobody(sent: Any) -> None:
    query = Vote(candidates=3)
    np.testing.assert_array_equal(query.encode(sent), np.zeros(3))
    np.testing.assert_array_equal(query.contribution(sent), np.zeros(3))
    choice = choose_noise(query, 1e4, 0.0)
    assert int(release_statistic(choice, [sent, [0.0, 0.0, 1.0]], RNG).value) == 2


def test_a_buffer_that_was_sent_stays_as_it_was() -> None:
    sent = np.array([0, 1, 1], dtype=np.int8)
    Vote(candidates=3).encode(sent)
    assert sent.tolist() == [0, 1, 1]
    assert sent.dtype == np.int8


@pytest.mark.parametrize("candidates", [2, 8, 1000])
def test_the_price_does_not_depend_on_the_number_of_candidates(candidates: int) -> None:
    choice = choose_noise(Vote(candidates=candidates), 0.4, 0.0)
    assert choice.events == (ExponentialEvent(epsilon=0.4),)


def test_a_vote_is_drawn_with_the_range_that_is_charged_or_not_at_all() -> None:
    query = Vote(candidates=3)
    for wrong in (
        ExponentialMechanism(epsilon=1.0, sensitivity=0.25),
        ExponentialMechanism(epsilon=1.0, sensitivity=0.5, one_coordinate=True),
        GaussianMechanism(noise_multiplier=1.0, clipping_norm=1.0),
    ):
        with pytest.raises(ValueError, match=r"vote|sensitivity"):
            NoiseChoice(query=query, mechanisms=(wrong,))
    with pytest.raises(ValueError, match="leave out law"):
        choose_noise(query, 1.0, 1e-5, law="gaussian")


def test_a_vote_travels_as_plain_values() -> None:
    query = Vote(candidates=3)
    assert query_from_json(encode_text(query)) == query
    for wrong in (1, True, 2.5):
        with pytest.raises(ValueError, match=r"at least 2 candidates|candidates must be a whole"):
            query_from_json(json.dumps({"kind": "vote", "candidates": wrong}))
    with pytest.raises(ValueError, match="one vote"):
        Vote(candidates=2, max_records=2)
