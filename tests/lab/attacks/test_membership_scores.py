"""Membership attacks on scores whose law is known: they find who is there, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from fl_dp.accounting import epsilon_delta_trade_off, gaussian_trade_off
from fl_dp.lab.attacks.membership.inference import ATTACKS, attacked, lira, rmia
from fl_dp.lab.attacks.membership.observations import (
    Observations,
    logit_confidence,
    mean_per_client,
)
from fl_dp.lab.attacks.membership.roc import Roc

FALSE_ALARM = 1e-6
SHIFT = 3.0  # deviations by which training on a candidate raises its confidence


def gaussian_models(
    *, shift: float, models: int = 24, candidates: int = 400, spread: float = 4.0
) -> Observations:
    """Confidences around a mean of each candidate's own, raised where it is a member."""
    draws = np.random.default_rng(0)
    means = draws.normal(2.0, spread, size=candidates + 300)
    members = draws.random((models, candidates)) < 0.5
    noise = draws.normal(size=(models, candidates + 300))
    return Observations(
        members=members,
        candidates=means[:candidates] + noise[:, :candidates] + shift * members,
        population=means[candidates:] + noise[:, candidates:],
    )


def test_the_logit_of_a_confidence_is_that_of_its_probability() -> None:
    logits = np.array([[2.0, 0.5, -1.0], [0.0, 0.0, 0.0]])
    labels = np.array([0, 2])
    p = np.exp(logits[np.arange(2), labels]) / np.exp(logits).sum(axis=1)
    assert logit_confidence(logits, labels) == pytest.approx(np.log(p / (1 - p)), abs=1e-12)


def test_a_client_is_known_by_the_mean_of_its_records() -> None:
    records = np.array([[1.0, 3.0, 7.0]])
    assert mean_per_client(records, np.array([0, 0, 1]), 2).tolist() == [[2.0, 7.0]]
    with pytest.raises(ValueError):
        mean_per_client(records, np.array([0, 0, 2]), 3)


@pytest.mark.parametrize("online", [False, True])
def test_lira_comes_close_to_the_best_test(online: bool) -> None:
    found = attacked(gaussian_models(shift=SHIFT), lambda seen, t: lira(seen, t, online=online))
    best = float(norm.sf(norm.isf(0.01) - SHIFT))
    # References are 23 models, half of them without the candidate: their mean is off by 0.3.
    assert best - 0.12 < found.at(0.01).tpr < best + 0.03


@pytest.mark.parametrize("references", [1, 2])
def test_rmia_finds_members_with_one_or_two_references(references: int) -> None:
    seen = gaussian_models(shift=SHIFT)
    found = attacked(seen, lambda seen, t: rmia(seen, t, references=references))
    assert found.auc > 0.75
    assert found.auc > attacked(seen, ATTACKS["loss threshold"]).auc + 0.1


@pytest.mark.parametrize("name", ATTACKS)
def test_who_leaves_no_trace_is_not_found(name: str) -> None:
    point = attacked(gaussian_models(shift=0.0), ATTACKS[name]).at(0.01)
    caught, trials = point.counts.true_positives, point.counts.positives
    # The threshold's own rate varies with 4,800 others: 0.02 is beyond six deviations of it.
    assert binom.sf(caught - 1, trials, 0.02) > FALSE_ALARM


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_not_look_at_the_coins_of_its_target(name: str) -> None:
    seen = gaussian_models(shift=SHIFT, models=8)
    turned = seen.members.copy()
    turned[3] = ~turned[3]
    other = replace(seen, members=turned)
    assert np.array_equal(ATTACKS[name](seen, 3), ATTACKS[name](other, 3))


def test_an_own_deviation_for_each_candidate_needs_many_models() -> None:
    draws = np.random.default_rng(0)
    deviations = np.array([0.1, 10.0] * 50)
    members = draws.random((100, 100)) < 0.5
    values = draws.normal(size=(100, 100)) * deviations + 0.5 * members
    seen = Observations(members=members, candidates=values, population=values[:, :1])
    many = attacked(seen, ATTACKS["lira offline"])
    few = Observations(members=members[:20], candidates=values[:20], population=values[:20, :1])
    # A candidate that hardly varies is found for certain, but not where all share one deviation.
    assert many.at(0.01).tpr > 0.4 > 0.3 > attacked(few, ATTACKS["lira offline"]).at(0.01).tpr


def test_a_model_that_diverged_is_named() -> None:
    values = np.zeros((4, 5))
    values[2, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        Observations(members=values > 0, candidates=values, population=np.zeros((4, 2)))


def roc_of(*, members: list[float], others: list[float]) -> Roc:
    return Roc(np.array(members), np.array(others))


def test_the_area_under_the_curve_is_that_of_scikit_learn() -> None:
    draws = np.random.default_rng(0)
    members = draws.integers(1, 10, 200).astype(np.float64)  # with ties
    others = draws.integers(0, 9, 300).astype(np.float64)
    truth = np.repeat([1, 0], [200, 300])
    expected = roc_auc_score(truth, np.concatenate([members, others]))
    roc = Roc(members, others)
    assert roc.auc == pytest.approx(expected, abs=1e-12)
    fpr, tpr = roc.curve()
    assert np.trapezoid(tpr, fpr) == pytest.approx(expected, abs=1e-12)
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_a_point_spares_no_more_others_than_asked_for() -> None:
    roc = roc_of(members=[5, 4, 3, 0], others=[4.5, 2, 2, 1])
    points = [roc.at(rate) for rate in (0.0, 0.25, 0.5, 1.0)]
    # At 0.5 two of the others tie, and none goes.
    assert [each.fpr for each in points] == [0.0, 0.25, 0.25, 1.0]
    assert [each.tpr for each in points] == [0.25, 0.75, 0.75, 1.0]


def test_one_per_cent_of_a_hundred_is_one() -> None:
    others = np.arange(100.0)
    assert Roc(np.array([98.5]), others).at(0.01).counts.false_positives == 1
    assert Roc(np.array([98.5]), others).at(0.29).counts.false_positives == 29


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0])
def test_the_best_attack_on_a_gaussian_does_not_exceed_its_curve(mu: float) -> None:
    draws = np.random.default_rng(0)
    roc = Roc(draws.normal(mu, 1.0, 20_000), draws.normal(0.0, 1.0, 20_000))
    for rate in (0.001, 0.01, 0.1):
        assert not roc.at(rate).exceeds(gaussian_trade_off(mu), FALSE_ALARM)


def test_an_attack_above_its_curve_is_told() -> None:
    draws = np.random.default_rng(0)
    roc = Roc(draws.normal(2.0, 1.0, 5_000), draws.normal(0.0, 1.0, 5_000))
    assert roc.at(0.01).exceeds(gaussian_trade_off(1.5), FALSE_ALARM)
    assert roc.at(0.01).exceeds(epsilon_delta_trade_off(1.0, 1e-5), FALSE_ALARM)
    assert not roc.at(0.01).exceeds(epsilon_delta_trade_off(9.0, 1e-5), FALSE_ALARM)


def test_intervals_hold_although_the_threshold_was_chosen_on_the_same_trials() -> None:
    # 400 games at a level of 5 %: more than 45 misses come with a probability below 1e-6.
    draws = np.random.default_rng(0)
    missed = 0
    for _ in range(400):
        roc = Roc(draws.normal(1.0, 1.0, 300), draws.normal(0.0, 1.0, 300))
        missed += roc.at(0.02).exceeds(gaussian_trade_off(1.0), 0.05)
    assert missed <= 45
