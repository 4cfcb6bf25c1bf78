"""What clients measure stays with them, unless the plan releases it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Message, MetricRecord
from local_grid import Answer, answer_with_app, arrays_of, reply
from played_rounds import HandOver, PaperLedger, play, reply_from
from scipy import stats
from trainings import SIX_SIGMA, FixedClient, client_fn, plan_of, record, train

from fl_dp import Plan
from fl_dp.clients import numpy_client_app, records
from fl_dp.mechanisms import AdaptiveClipping, ScalarMetric
from fl_dp.strategies import DPFedAvg

ALARM = 1e-6
N = 20
LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)
ACCURACY = ScalarMetric(name="accuracy", low=0.0, high=1.0)
MODEL = record(w=np.zeros(3))
DIGITS = "98765"


def reporting(values: list[Any], name: str = "loss") -> Answer:
    """Our own clients, each with a metric; those with None have none."""

    def client_of(node: int) -> FixedClient:
        value = values[node]
        return FixedClient(0.01, metrics={} if value is None else {name: value})

    return answer_with_app(numpy_client_app(client_fn(client_of)), len(values))


def releasing(*metrics: ScalarMetric, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(metrics=metrics, noise_multiplier=0.01, scalar_noise_std=0.02)
    return plan_of(N, **(fields | changes))


def numbers_in(metrics: MetricRecord | None) -> dict[str, float]:
    assert metrics is not None
    return {name: float(cast(float, value)) for name, value in metrics.items()}


NOISE = 4 * SIX_SIGMA * 0.02 / N  # of a released loss, six deviations


def released(folder: Path, plan: Plan, answer: Answer) -> dict[str, float]:
    trained = train(folder, plan, answer, MODEL)
    assert set(trained.result.train_metrics_clientapp) == {1}
    return numbers_in(trained.result.train_metrics_clientapp[1])


def test_no_metric_of_a_client_leaves_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = float(f"0.{DIGITS}")

    def answer(message: Message, _: int) -> Message:
        return reply(message, arrays_of(message), loss=secret, accuracy=secret, examples=98765)

    trained = train(tmp_path, plan_of(N, rounds=2), answer, MODEL)
    result = trained.result
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    assert not trained.strategy.released_metrics
    assert DIGITS not in caplog.text
    assert DIGITS not in str(result)


def test_nobody_is_asked_to_evaluate(tmp_path: Path) -> None:
    trained = train(tmp_path, plan_of(N), reporting([0.5] * N), MODEL)
    assert {message.metadata.message_type for message in trained.grid.sent} == {"train"}
    assert not list(trained.strategy.configure_evaluate(1, MODEL, None, trained.grid))  # type: ignore[arg-type]  # no config is read


def test_a_declared_metric_is_released_and_nothing_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def client_of(node: int) -> FixedClient:
        return FixedClient(0.0, metrics={"loss": node / 10, "accuracy": float(f"0.{DIGITS}")})

    answer = answer_with_app(numpy_client_app(client_fn(client_of)), N)
    got = released(tmp_path, releasing(LOSS), answer)
    assert got == {"loss": pytest.approx(0.95, abs=NOISE)}
    assert DIGITS not in caplog.text


@pytest.mark.parametrize(
    ("odd", "counts_as"),
    [
        (math.nan, 2.0),
        (None, 2.0),
        (math.inf, 4.0),
        (-7.0, 0.0),
        pytest.param(10**400, 2.0, id="400 digits"),
        ("many", 2.0),
    ],
)
def test_a_metric_is_clipped_to_its_range_and_no_number_is_its_middle(
    tmp_path: Path, odd: Any, counts_as: float
) -> None:
    # Every second client is odd: a tenth of the range more or less is 15 deviations.
    answer = reporting([odd if node % 2 else 1.0 for node in range(N)])
    got = released(tmp_path, releasing(LOSS), answer)["loss"]
    assert got == pytest.approx((1.0 + counts_as) / 2, abs=NOISE)


@pytest.mark.parametrize(
    "odd",
    [None, [0.0, 0.0], []],
)
def test_what_a_foreign_client_sends_instead_of_a_number_is_the_middle(
    tmp_path: Path, odd: Any
) -> None:
    def answer(message: Message, node: int) -> Message:
        odd_one = node % 2 and odd is not None
        metrics = {"loss": odd} if odd_one else {} if node % 2 else {"loss": 1.0}
        return reply(message, arrays_of(message), **metrics)

    got = released(tmp_path, releasing(LOSS), answer)["loss"]
    assert got == pytest.approx(1.5, abs=NOISE)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"loss": [0.5, 0.25]}, "metric 'loss' is a list and counts as missing"),
        ({"loss": [0.5]}, "metric 'loss' is a list and counts as missing"),
        ({"loss": "low"}, "metric 'loss' is a str and counts as missing"),
        ({"los": 0.5, "f1": 1.0}, "metric 'loss' is missing among the client's 2"),
        ({"loss": math.nan}, None),
        ({"loss": np.float32(0.5)}, None),
        ({"loss": 1}, None),
        ({}, None),
    ],
)
def test_a_node_says_which_metric_is_no_number_and_sends_what_it_would_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, returned: dict[str, Any], said: str | None
) -> None:
    records._say_once.cache_clear()
    sent: list[set[str]] = []
    app = numpy_client_app(client_fn(lambda _: FixedClient(0.01, metrics=returned)))
    answer = answer_with_app(app, N)

    def watched(message: Message, node: int) -> Message | None:
        answered = answer(message, node)
        assert answered is not None
        sent.append(set(answered.content["metrics"]))
        return answered

    released(tmp_path, releasing(LOSS), watched)
    assert caplog.text.count("(said once)") == (said is not None)
    if said is not None:
        assert said in caplog.text
        assert sent == [{"num-examples"}] * N


@pytest.mark.parametrize(("odd", "says"), [([0.0, 0.0], True), ([], True), ([1.0], False)])
def test_a_list_from_a_plain_client_is_told_at_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: list[float], says: bool
) -> None:
    def answer(message: Message, node: int) -> Message:
        return reply(message, arrays_of(message), loss=odd)

    released(tmp_path, releasing(LOSS), answer)
    assert ("metric 'loss' of a reply is a list" in caplog.text) == says


@pytest.mark.parametrize("silent", [0, N // 2, N])
def test_units_that_do_not_reply_count_as_the_middle(tmp_path: Path, silent: int) -> None:
    honest = reporting([0.0] * N)
    plan = releasing(LOSS)
    trained = train(
        tmp_path, plan, lambda m, n: None if n < silent else honest(m, n), MODEL, timeout=1.5
    )
    got = trained.result.train_metrics_clientapp[1]["loss"]
    assert got == pytest.approx(2.0 * silent / N, abs=NOISE)


def test_a_refused_update_reports_nothing(tmp_path: Path) -> None:
    def answer(message: Message, node: int) -> Message:
        return reply(message, {"w": np.full(3, np.nan)}, loss=0.0)

    got = released(tmp_path, releasing(LOSS), answer)["loss"]
    assert got == pytest.approx(2.0, abs=NOISE)


def test_one_client_moves_a_metric_by_at_most_half_its_range_over_the_cohort(
    tmp_path: Path,
) -> None:
    found = []
    for number, value in enumerate((None, 1e300, -1e300)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(
            released(folder, releasing(LOSS), reporting([1.0] * (N - 1) + [value]))["loss"]
        )
    without, most, least = found
    apart = 2 * NOISE
    assert most - without == pytest.approx(2.0 / N, abs=apart)
    assert without - least == pytest.approx(2.0 / N, abs=apart)


def released_over_rounds(
    plan: Plan, reports: list[dict[str, float]], rounds: int, size: int
) -> tuple[Any, Any]:
    """Released metrics of units that report these, by round, and the noise of the updates."""
    seen = []

    class Watched(DPFedAvg):
        def aggregate_train(self, *given: Any) -> Any:
            model, metrics = super().aggregate_train(*given)
            numbers = numbers_in(metrics)
            seen.append([numbers[m.name] for m in plan.release.metrics])
            return model, metrics

    strategy = Watched(HandOver(), plan=plan, ledger=PaperLedger(plan))  # type: ignore[arg-type]  # plays one
    replies = {n: reply_from(n, {"w": np.zeros(size)}, **each) for n, each in enumerate(reports)}
    models, _ = play(strategy, replies, nodes=plan.num_clients, rounds=rounds, size=size)
    return np.array(seen), models


def test_metrics_have_the_declared_noise_and_updates_as_much_more_as_they_cost() -> None:
    # 400 rounds: a metric's variance is known to 7 %, so a chi-square at 1e-6 sees a factor 1.5.
    # 25,600 draws of the updates' noise: a multiplier of z instead of 1.25 z is 50 deviations off.
    rounds, size, z, std = 400, 64, 1.0, 1.1785113
    plan = plan_of(N, metrics=(LOSS, ACCURACY), noise_multiplier=z, scalar_noise_std=std)
    reports = [{"loss": 1.0, "accuracy": 0.5}] * 2
    metrics, models = released_over_rounds(plan, reports, rounds, size)
    # Twenty declared, two replied: the middle, a little towards loss 1.
    noise = (metrics - [2.0 - 2 * 0.25 * 4 / N, 0.5]) / [4.0 / N, 1.0 / N] / std
    law = stats.chi2(noise.size)
    assert 2 * min(law.sf((noise**2).sum()), law.cdf((noise**2).sum())) > ALARM
    assert 2 * min(law.sf((noise**2).sum() * 2.25), law.cdf((noise**2).sum() / 2.25)) < ALARM
    of_updates = plan.bundle(z).updates.noise_multiplier
    assert of_updates == pytest.approx(1.25, abs=1e-6)
    assert models.std() * N == pytest.approx(of_updates, rel=SIX_SIGMA / math.sqrt(2 * models.size))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("metrics", [(), (LOSS,), (LOSS, ACCURACY)])
@pytest.mark.parametrize("std", [None, 3.0])
def test_inverse_squares_of_all_sums_add_up_to_what_is_charged(
    adaptive: bool, metrics: tuple[ScalarMetric, ...], std: float | None
) -> None:
    changes: dict[str, Any] = dict(clipping=AdaptiveClipping()) if adaptive else {}
    plan = plan_of(N, noise_multiplier=1.3, metrics=metrics, scalar_noise_std=std, **changes)
    bundle = plan.bundle(1.3)
    scalars = len(metrics) + adaptive
    assert bundle.scalars == scalars
    total = bundle.updates.noise_multiplier**-2
    if bundle.scalar_mechanisms:
        # Each centred scalar moves by half: its own multiplier is twice its noise.
        assert bundle.scalar_mechanisms[-1].clipping_norm == 0.5
        total += scalars * (bundle.scalar_mechanisms[-1].noise_std / 0.5) ** -2
    assert total == pytest.approx(1.3**-2, rel=1e-12)
    if std is None:  # the default costs the updates 5 % at most
        assert bundle.updates.noise_multiplier <= 1.05 * 1.3 * (1.0 + 1e-9)
    assert plan.event_of(1).noise_multiplier == 1.3  # type: ignore[union-attr]  # a Gaussian


def test_a_released_metric_never_leaves_its_range(tmp_path: Path) -> None:
    plan = releasing(LOSS, noise_multiplier=1.0, scalar_noise_std=1e4)
    assert 0.0 <= released(tmp_path, plan, reporting([0.0] * N))["loss"] <= 4.0
