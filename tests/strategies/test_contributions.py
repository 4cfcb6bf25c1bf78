"""A training to which nobody contributes ends early; the count costs next to nothing, and no more.

Statistical tests draw from fixed seeds, so each says the same in every run; their bounds hold for
a random seed with a false-alarm rate of at most 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from charged_rounds import charged_round
from fl_dp.strategies.contributions import (
    FALSE_ALARM,
    CohortLaw,
    ContributionCheck,
    Evidence,
    _log_likelihood,
)
from fl_dp.strategies.modes import CentralMode
from flwr.app import Error, Message, RecordDict
from flwr.client import NumPyClient
from laws import ALARM
from local_grid import answer_with_app, answer_with_update
from scipy import integrate, stats
from trainings import able, plan_of, record, train

from fl_dp import Plan
from fl_dp.accounting import FixedSizeSampling, PoissonSampling, TruncatedPoissonSampling
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.codec import decode_text, encode_text
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import AdaptiveClipping, GaussianBundle, ScalarMetric, SecureRandom
from fl_dp.protocol.introduction import Ability
from fl_dp.strategies import LawSelection, NobodyContributes, Unit
from fl_dp.updates import VectorLayout


def model() -> Any:
    return record(w=np.zeros(4))


def ones(count: int) -> list[dict[str, Any]]:
    return [{"w": np.ones(4)}] * count


def fails(message: Message, partition: int) -> Message:
    return Message(Error(code=2, reason="ValueError"), reply_to=message)


# --- What the count costs, and what one unit can do to it -----------------------------------------


def test_the_whole_round_costs_what_it_is_charged_as() -> None:
    metric = ScalarMetric(name="loss", low=0.0, high=4.0)
    bundle = GaussianBundle(
        noise_multiplier=1.3,
        clipping_norms=(0.5,),
        unclipped_bit=True,
        metrics=(metric,),
        scalar_noise_std=4.0,
        count_noise_std=9.0,
    )
    count, bit, loss = bundle.scalar_mechanisms
    assert (count.noise_std, count.clipping_norm) == (9.0, 1.0)
    parts = [bundle.updates.noise_multiplier, 9.0, 8.0, 8.0]
    assert [each.noise_multiplier for each in (count, bit, loss)] == parts[1:]
    assert sum(part**-2 for part in parts) == pytest.approx(1.3**-2, rel=1e-12)
    again = decode_text(GaussianBundle, encode_text(bundle))
    assert again == bundle


@pytest.mark.parametrize(
    ("multiplier", "clients", "rate", "rounds", "of_updates"),
    [  # z (1 - z^2 / s^2)^-1/2 at the count's deviation s, by hand
        (2.66, 200, 0.25, 100, 2.6866),  # 1 %
        (1.0, 1000, 0.25, 1, 1.0008009612),  # a tenth of the cohort
        (0.01, 8, 0.5, 1, 0.0100031264656),
        (1.0, 10, 1.0, 100, 1.0145330052),  # 0.75 cohort sqrt(rounds / 160)
        (1.0, 10, 1.0, 5, 1.05),  # 5 %
    ],
)
def test_the_updates_get_one_per_cent_more_noise_and_five_where_few_contribute(
    multiplier: float, clients: int, rate: float, rounds: int, of_updates: float
) -> None:
    plan = plan_of(clients, sampling_rate=rate, rounds=rounds, contribution_check=True)
    made = plan.bundle(multiplier).updates.noise_multiplier
    assert made == pytest.approx(of_updates, rel=1e-8)
    assert made <= 1.05 * multiplier * (1 + 1e-12)


def test_a_warning_comes_before_the_end_and_in_trainings_too_short_to_be_sure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check = ContributionCheck(plan_of(10, rounds=5, contribution_check=True))
    check.observe(0.0, noise_std=2.5, asked=10)
    assert "almost nobody" not in caplog.text
    check.observe(0.0, noise_std=2.5, asked=10)
    assert caplog.text.count("It looks as if almost nobody contributes") == 1
    with pytest.raises(NobodyContributes):
        for _ in range(3):
            check.observe(0.0, noise_std=2.5, asked=10)
    assert caplog.text.count("It looks as if") == 1


@pytest.mark.parametrize(
    ("norm", "weight", "counted"),
    [
        (0.3, 1.0, 1.0),
        (1e300, 1.0, 1.0),
        (0.0, 1.0, 0.0),  # the model as it came
        (math.inf, 1.0, 0.0),
        (math.nan, 1.0, 0.0),
        (0.3, 0.0, 0.0),
        (0.3, 0.25, 1.0),
    ],
)
def test_a_unit_counts_once_or_not_at_all(norm: float, weight: float, counted: float) -> None:
    bundle = GaussianBundle(noise_multiplier=1.0, clipping_norms=(1.0,), count_noise_std=7.0)
    assert bundle.scalar_values(norm, {}, weight=weight) == [counted]
    [steps] = bundle.scalar_steps([counted])
    assert 0.0 <= steps * bundle.scalar_mechanisms[0].grid <= 1.0  # never more than sensitivity 1


def test_a_released_count_has_the_noise_that_it_was_charged_for() -> None:
    rounds = 2000  # a chi-square at 1e-6 then sees a tenth of the scale missing
    plan = plan_of(6, noise_multiplier=2.0, contribution_check=True)
    std = plan.bundle(2.0).count_noise_std
    assert std is not None
    layout, rng = VectorLayout.of(model()), SecureRandom()
    reply = RecordDict({"arrays": record(w=np.ones(4))})
    noise = np.empty(rounds)
    for draw in range(rounds):
        opened = CentralMode(plan, charged_round(layout, noise_multiplier=2.0))
        for node in range(2):
            opened.fold(reply, [Unit(node)], server_round=1)
        released = opened.release(rng, lambda messages, timeout: iter(()))
        assert released.contributions is not None
        assert released.contributions_std == std
        noise[draw] = (released.contributions - 2.0) / std
    law = stats.chi2(rounds)
    squares = float((noise**2).sum())
    assert 2 * min(law.sf(squares), law.cdf(squares)) > ALARM
    assert law.cdf(rounds * 0.9**2) < ALARM  # a tenth less noise would be seen
    assert law.sf(rounds * 1.1**2) < ALARM
    assert 2 * stats.norm.sf(abs(noise.mean()) * math.sqrt(rounds)) > ALARM


# --- The decision ---------------------------------------------------------------------------------


LAWS = {
    "poisson": (CohortLaw(units=40, rate=0.25), 5.0),
    "known": (CohortLaw(units=8, rate=1.0), 7.1),
    "clear": (CohortLaw(units=30, rate=0.5), 1.5),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("share", "against"), [(0.0, 0.75), (0.5, 0.9)])
def test_one_round_s_evidence_is_one_on_average_where_enough_contribute(
    name: str, share: float, against: float
) -> None:
    law, std = LAWS[name]

    def weighted(count: float, of: float) -> float:
        usual = math.exp(_log_likelihood(count, law, of, std))
        return usual * math.exp(-((count / std) ** 2) / 2.0) / (std * math.sqrt(2.0 * math.pi))

    low, high = -12.0 * std, law.units + 12.0 * std
    for of in (share, against):  # both are densities, so their ratio has mean 1 under the second
        mass, _ = integrate.quad(weighted, low, high, args=(of,), limit=500)
        assert mass == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("share", "against"), [(0.0, 0.75), (0.5, 0.9)])
def test_more_contributions_are_less_evidence(name: str, share: float, against: float) -> None:
    law, std = LAWS[name]
    counts = np.linspace(-6 * std, law.units + 6 * std, 200)
    ratios = [
        _log_likelihood(count, law, share, std) - _log_likelihood(count, law, against, std)
        for count in counts
    ]
    assert (np.diff(ratios) < 0).all()


def passed(
    rng: np.random.Generator, law: CohortLaw, std: float, *, rounds: int, rate: float, at: float
) -> int | None:
    """Return the round in which the evidence for nobody passes, None if it never does."""
    evidence = Evidence(share=0.0, against=0.75)
    for server_round in range(1, rounds + 1):
        count = rng.binomial(law.units, law.rate * rate) + rng.normal(0.0, std)
        evidence.observe(count, law, noise_std=std)
        if evidence.passes(at):
            return server_round
    return None


@pytest.mark.parametrize("name", LAWS)
def test_a_training_is_rarely_ended_while_three_quarters_contribute(name: str) -> None:
    # At 1e-6 no simulation would see anything; the same rule at 0.05 keeps its promise, too.
    law, std = LAWS[name]
    rng, trainings = np.random.default_rng(11), 200
    alarms = sum(
        passed(rng, law, std, rounds=60, rate=0.75, at=0.05) is not None for _ in range(trainings)
    )
    assert stats.binom.sf(alarms - 1, trainings, 0.05) > ALARM


def test_the_promised_false_alarm_rate_is_one_in_a_million() -> None:
    assert FALSE_ALARM == 1e-6
    evidence = Evidence(share=0.0, against=0.75)
    evidence.observe(0, CohortLaw(units=10, rate=1.0), noise_std=0.0)  # 4^10 / 2 = 524,288
    assert not evidence.passes(FALSE_ALARM)
    evidence.observe(0, CohortLaw(units=1, rate=1.0), noise_std=0.0)  # (... + 1/6) * 4
    assert evidence.passes(FALSE_ALARM)


@pytest.mark.parametrize(
    ("multiplier", "units", "rate", "at_most"),
    [(2.66, 200, 0.25, 25), (1.0, 200, 0.25, 5), (1.1, 1000, 0.05, 6), (1.0, 3000, 0.1, 4)],
)
def test_nobody_is_found_out_soon(multiplier: float, units: int, rate: float, at_most: int) -> None:
    plan = plan_of(units, sampling_rate=rate, contribution_check=True)
    std = plan.bundle(multiplier).count_noise_std
    assert std is not None
    law, rng = CohortLaw.of(plan, asked=-1), np.random.default_rng(5)
    assert law == CohortLaw(units=units, rate=rate)
    for _ in range(200):
        assert passed(rng, law, std, rounds=at_most, rate=0.0, at=FALSE_ALARM) is not None


def test_trouble_that_begins_late_is_found_as_well() -> None:
    law, rng, evidence = CohortLaw(units=200, rate=0.25), np.random.default_rng(3), None
    evidence = Evidence(share=0.0, against=0.75)
    for _ in range(100):
        evidence.observe(rng.binomial(200, 0.25) + rng.normal(0, 7.1), law, noise_std=7.1)
        assert not evidence.passes(FALSE_ALARM)
    for _ in range(10):
        evidence.observe(rng.normal(0, 7.1), law, noise_std=7.1)
    assert evidence.passes(FALSE_ALARM)


def test_a_cohort_s_law_is_what_is_public_of_it() -> None:
    def of(sampling: Any, asked: int = 3) -> CohortLaw:
        return CohortLaw.of(plan_of(20, sampling=sampling), asked)

    assert of(PoissonSampling(sampling_rate=0.5)) == CohortLaw(units=20, rate=0.5)
    assert of(PoissonSampling(sampling_rate=1.0), 20) == CohortLaw(units=20, rate=1.0)
    assert of(FixedSizeSampling(cohort=5)) == CohortLaw(units=5, rate=1.0)
    truncated = TruncatedPoissonSampling(sampling_rate=0.5, max_cohort=8)
    assert of(truncated) == CohortLaw(units=20, rate=0.4)
    assert CohortLaw.of(None, asked=3) == CohortLaw(units=3, rate=1.0)
    assert CohortLaw.of(None, asked=0).mean == 0.0
    silent = Evidence(share=0.0, against=0.75)
    for _ in range(1000):  # rounds that ask nobody say nothing
        silent.observe(0, CohortLaw(units=0, rate=1.0), noise_std=0.0)
    assert not silent.passes(0.5)


# --- In a training --------------------------------------------------------------------------------


def counting(count: int, **changes: Any) -> Plan:
    fields = dict(rounds=60, noise_multiplier=0.5, contribution_check=True)
    return plan_of(count, **(fields | changes))


ZERO = {
    "raises": fails,
    "another shape": answer_with_update([{"w": np.ones((4, 1))}] * 40),
    "not finite": answer_with_update([{"w": np.full(4, np.nan)}] * 40),
    "the model as it came": answer_with_update([{}] * 40),
    "silent": lambda message, partition: None,
}


@pytest.mark.parametrize("kind", ZERO)
def test_a_training_to_which_nobody_contributes_ends_before_much_is_spent(
    tmp_path: Path, kind: str
) -> None:
    plan = counting(40)
    with pytest.raises(NobodyContributes, match="Likely causes") as ended:
        train(tmp_path, plan, ZERO[kind], model(), timeout=0.05)
    assert "raises an exception" in str(ended.value)
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert 1 <= ledger.rounds_committed <= 5
        assert ledger.rounds_spent == ledger.rounds_committed


@pytest.mark.parametrize(
    "options",
    [
        dict(clipping=AdaptiveClipping(norm=1.0)),
        dict(metrics=(ScalarMetric(name="loss", low=0.0, high=1.0),)),
        dict(total_weight=40.0),
        dict(sampling=FixedSizeSampling(cohort=30)),
    ],
)
def test_every_mode_with_noise_at_the_server_counts(tmp_path: Path, options: Any) -> None:
    plan = counting(40, **options)
    weights: dict[str, Any] = {} if plan.release.total_weight is None else {"weight_cap": 1.0}
    with pytest.raises(NobodyContributes):
        train(tmp_path, plan, able(Ability.WEIGHTS)(fails), model(), **weights)


class Trains(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        return [each + 1 for each in parameters], 1, {}


class Raises(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        raise ValueError("no data")


@pytest.mark.parametrize("coins_at_nodes", [False, True])
def test_nodes_that_sum_their_units_count_them(tmp_path: Path, coins_at_nodes: bool) -> None:
    def app(client: Callable[[], NumPyClient]) -> Any:
        units = NodeUnits(client_fn=lambda c, u: client(), count=lambda *_: 10)
        return answer_with_app(numpy_client_app(lambda c: client(), units=units), 4)

    how: Any = dict(nodes=4, units_per_node=10, coins_at_nodes=coins_at_nodes)
    plan = counting(40, sampling_rate=0.5, rounds=8)
    (tmp_path / "good").mkdir()
    trained = train(tmp_path / "good", plan, app(Trains), model(), **how)
    assert trained.strategy.rounds_completed == 8
    with pytest.raises(NobodyContributes):
        train(tmp_path, plan, app(Raises), model(), **how)


def test_without_a_plan_the_count_is_exact(tmp_path: Path) -> None:
    def run(answer: Any) -> Any:
        return train(
            None,
            None,
            answer,
            model(),
            nodes=5,
            rounds=20,
            selection=LawSelection(FixedSizeSampling(cohort=5)),
        )

    assert run(answer_with_update(ones(5))).strategy.rounds_completed == 20
    with pytest.raises(NobodyContributes, match="the first one, so the training ends here"):
        run(fails)


def test_where_clients_add_the_noise_the_count_is_exact(tmp_path: Path) -> None:
    plan = counting(5, client_scheme="gaussian", noise_multiplier=5.0)
    assert plan.bundle(5.0).count_noise_std is None
    with pytest.raises(NobodyContributes):
        train(tmp_path, plan, able(Ability.NOISE)(fails), model())


def test_half_of_them_failing_is_a_warning_with_the_noisy_estimate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    works = answer_with_update(ones(200))
    plan = counting(200, rounds=12)
    trained = train(tmp_path, plan, lambda m, p: fails(m, p) if p % 2 else works(m, p), model())
    assert trained.strategy.rounds_completed == 12
    said = [r.getMessage() for r in caplog.records if "seem to contribute" in r.getMessage()]
    assert len(said) == 1
    assert "noisy estimate" in said[0]
    assert 35 <= int(said[0].split()[1]) <= 65


# --- When the last round is over ------------------------------------------------------------------


def short(contributing: float, *, noise_std: float, rounds: int = 3) -> ContributionCheck:
    """Return the check after a short training of 10 clients with rate 1."""
    check = ContributionCheck(plan_of(10, rounds=rounds, contribution_check=True))
    for _ in range(rounds):
        check.observe(contributing, noise_std=noise_std, asked=10)
    return check


def test_a_short_training_to_which_nobody_contributed_ends_as_failed() -> None:
    check = short(0.0, noise_std=4.0)  # three rounds are too few to end it before
    with pytest.raises(NobodyContributes, match=r"the training failed.*stays spent.*Likely causes"):
        check.conclude()


@pytest.mark.parametrize("contributing", [10.0, 7.5])
def test_a_training_to_which_enough_contributed_does_not(contributing: float) -> None:
    short(contributing, noise_std=4.0).conclude()
    short(contributing, noise_std=400.0).conclude()  # of such noise nothing can be told


def test_exact_counts_tell_surely() -> None:
    plan = plan_of(2, rounds=1, contribution_check=True)
    nobody, one = ContributionCheck(plan), ContributionCheck(plan)
    nobody.observe(0.0, noise_std=0.0, asked=2)
    one.observe(1.0, noise_std=0.0, asked=2)
    one.conclude()
    with pytest.raises(NobodyContributes, match="almost nobody has contributed"):
        nobody.conclude()
    ContributionCheck(plan).conclude()  # no round, no failure


@pytest.mark.parametrize("plan", [None, plan_of(2, rounds=2, contribution_check=True)])
def test_a_training_in_which_nobody_was_drawn_failed(plan: Plan | None) -> None:
    check = ContributionCheck(plan)
    for _ in range(2):
        check.observe(0.0, noise_std=0.0, asked=0)
    check.conclude(earlier_rounds=1)  # which may have released a model
    with pytest.raises(NobodyContributes, match="nobody was drawn in any of the 2 rounds"):
        check.conclude()


def test_how_often_a_training_is_called_failed_in_which_three_quarters_contributed() -> None:
    rng = np.random.default_rng(5)
    failed = 0
    for _ in range(400):
        check = ContributionCheck(plan_of(10, rounds=3, contribution_check=True))
        for _ in range(3):
            check.observe(
                rng.binomial(10, 0.75) + 6.0 * rng.standard_normal(), noise_std=6.0, asked=10
            )
        try:
            check.conclude()
        except NobodyContributes:
            failed += 1
    assert failed <= 10  # at 1 in 100 it is above that once in 500 such tests


def test_three_real_nodes_that_never_work_end_as_failed(tmp_path: Path) -> None:
    plan = plan_of(
        3, rounds=2, noise_multiplier=5.0, client_scheme="gaussian", contribution_check=True
    )
    with pytest.raises(NobodyContributes, match="the training failed"):
        train(tmp_path, plan, able(Ability.NOISE)(fails), model())
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == 2


@pytest.mark.parametrize("count", [0.0, -1.0, math.nan, 1.0])
def test_a_count_that_would_cost_more_than_its_round_is_refused(count: float) -> None:
    with pytest.raises(ValueError, match="count_noise_std"):
        GaussianBundle(noise_multiplier=1.0, clipping_norms=(1.0,), count_noise_std=count)
