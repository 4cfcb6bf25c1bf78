"""The evaluation that a Flower app has: bounded and noised at a trusted server, else refused.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.node_answers import RehearsalFailed
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from laws import ALARM
from local_grid import FIRST_NODE, LocalGrid, answer_with_app, introducing
from record_plans import record_plan
from scipy import stats
from trainings import budgeted, plan_of, record

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import freeze
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.app import simulate
from fl_dp.clients import NodeUnits, noised_client_app, numpy_client_app
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import GaussianMechanism
from fl_dp.option_errors import IncompatibleOptions, OptionError
from fl_dp.plan import SecureSum
from fl_dp.statistics import (
    Answer as PrivateAnswer,
)
from fl_dp.statistics import (
    Count,
    Evaluation,
    NoiseChoice,
    Query,
    ScoreHistograms,
    choose_noise,
)
from fl_dp.strategies import AskOptions, DPFedAvg, ask_federation, evaluate_federation

N = 40
DIGITS = "61803398"  # of a number that only one client knows
MODEL = record(w=np.zeros(3, np.float32))
QUALITY = Evaluation(names=("eval_loss", "eval_acc"), lows=(0.0, 0.0), highs=(4.0, 1.0))


def sure(query: Query = QUALITY) -> NoiseChoice:
    """A choice whose noise is a thousandth of one client."""
    assert isinstance(query, Evaluation)
    mechanism = GaussianMechanism(noise_multiplier=1e-3, clipping_norm=query.l2_sensitivity)
    return NoiseChoice(query=query, mechanisms=(mechanism,))


def paying_for(choice: NoiseChoice, times: int, *, clients: int = N, **changes: Any) -> Plan:
    releases = freeze([(event, times) for event in choice.events])
    return plan_of(clients, **{"other_releases": releases} | changes)


Evaluate = Callable[[int], dict[str, Any]]


def honest(partition: int) -> dict[str, Any]:
    return {"eval_loss": 1.0, "eval_acc": 0.75, "num-examples": 10}


def quickstart(evaluate: Evaluate | None = honest) -> ClientApp:
    """An app as Flower's quickstarts have it, which knows nothing of fl-dp."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (key, arrays), *_ = message.content.array_records.items()
        moved = ArrayRecord({name: Array(array.numpy() + 1) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
        return Message(RecordDict({key: moved, "metrics": metrics}), reply_to=message)

    if evaluate is not None:

        @app.evaluate()
        def measure(message: Message, context: Context) -> Message:
            assert isinstance(message.content["arrays"], ArrayRecord)
            config = message.content["config"]
            assert isinstance(config, ConfigRecord)
            assert isinstance(config["server-round"], int)  # as of Flower's strategies
            numbers = evaluate(int(str(context.node_config["partition-id"])))
            return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)

    return app


def grid_of(app: ClientApp, num_nodes: int = N) -> LocalGrid:
    return LocalGrid(answer_with_app(app, num_nodes), num_nodes)


def evaluated(
    folder: Path, grid: LocalGrid, choice: NoiseChoice, plan: Plan | None = None, **more: Any
) -> PrivateAnswer:
    """One evaluation alone; the ledger is closed after it."""
    plan = paying_for(choice, 1) if plan is None else plan
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        options = AskOptions(**{"timeout": 60.0} | more)
        return evaluate_federation(grid, ledger, "last model", choice, options, arrays=MODEL)


def counted(folder: Path, grid: LocalGrid, choice: NoiseChoice) -> PrivateAnswer:
    with PrivacyLedger.open(folder / "ledger.db", paying_for(choice, 1)) as ledger:
        return ask_federation(grid, ledger, "count", choice, values="age")


def spent(folder: Path) -> int:
    with PrivacyLedger.read(folder / "ledger.db") as ledger:
        return ledger.other_releases_spent + ledger.rounds_spent


def trained(
    folder: Path,
    grid: LocalGrid,
    choice: NoiseChoice | None,
    *,
    inner: Strategy | None = None,
    kind: type[DPFedAvg] = DPFedAvg,
    rounds: int = 3,
    plan: Plan | None = None,
    **start: Any,
) -> Result:
    """Train a few rounds, by default with noise that hides nothing."""
    if plan is None:
        assert choice is not None
        plan = paying_for(choice, rounds, rounds=rounds)
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = kind(inner, plan=plan, ledger=ledger, evaluation=choice)
        return strategy.start(grid, MODEL, **start)


# --- Alone ----------------------------------------------------------------------------------------


def test_a_quickstart_s_evaluation_is_measured_as_it_is(tmp_path: Path) -> None:
    """Before, this charged the ledger and answered with noise around nothing ("count -0.1")."""
    choice, answers = sure(), []

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        with PrivacyLedger.open(tmp_path / "ledger.db", paying_for(choice, 1)) as ledger:
            answers.append(evaluate_federation(grid, ledger, "it", choice, arrays=MODEL))

    numbers = {"eval_loss": 1.0, "num-examples": 10}
    simulate(server, quickstart(lambda p: numbers | {"eval_acc": p / N}), num_nodes=N)
    (answer,) = answers
    assert float(answer["eval_loss"].value) == pytest.approx(1.0, abs=0.01)
    assert float(answer["eval_acc"].value) == pytest.approx((N - 1) / 2 / N, abs=0.01)
    assert float(answer["count"].value) == pytest.approx(N, abs=0.1)
    assert spent(tmp_path) == 1


def test_clients_weigh_their_records_up_to_the_largest_number(tmp_path: Path) -> None:
    query = Evaluation(names=("eval_loss",), lows=(0.0,), highs=(4.0,), max_records=30)

    def evaluate(partition: int) -> dict[str, Any]:
        loss, examples = [(1.0, 10), (3.0, 1000)][partition % 2]
        return {"eval_loss": loss, "num-examples": examples, "unasked": 7.0}

    answer = evaluated(tmp_path, grid_of(quickstart(evaluate)), sure(query))
    assert float(answer["eval_loss"].value) == pytest.approx((1.0 + 3 * 3.0) / 4, abs=0.01)
    assert float(answer["count"].value) == pytest.approx(N / 2 * (10 + 30), abs=2.0)


def test_the_noise_of_a_plain_evaluation_is_the_choice_s(tmp_path: Path) -> None:
    """1,000 noisy counts of two clients; two thirds and three halves of the scale are rejected."""
    query = Evaluation(names=("eval_loss",), lows=(0.0,), highs=(4.0,))
    mechanism = GaussianMechanism(noise_multiplier=5.0, clipping_norm=query.l2_sensitivity)
    choice = NoiseChoice(query=query, mechanisms=(mechanism,))
    plan, grid = paying_for(choice, 1000, clients=2), grid_of(quickstart(), 2)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        answers = [
            evaluate_federation(grid, ledger, "it", choice, arrays=MODEL) for _ in range(1000)
        ]
    noise = np.array([float(answer["count"].value) for answer in answers]) - 2.0
    assert stats.kstest(noise / mechanism.noise_std, "norm").pvalue > ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / mechanism.noise_std * wrong, "norm").pvalue < ALARM


def test_apps_that_know_fl_dp_and_apps_that_do_not_are_measured_together(tmp_path: Path) -> None:
    class Client(NumPyClient):
        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 0.0, 10, {"eval_loss": 3.0, "eval_acc": 0.25}

    plain = answer_with_app(quickstart(), N)
    ours = answer_with_app(numpy_client_app(lambda _: Client()), N)
    grid = LocalGrid(introducing(lambda m, p: (plain if p % 2 else ours)(m, p)), N)
    answer = evaluated(tmp_path, grid, sure())
    assert float(answer["eval_loss"].value) == pytest.approx(2.0, abs=0.01)
    assert float(answer["eval_acc"].value) == pytest.approx(0.5, abs=0.01)


def test_an_app_without_an_evaluation_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluated(tmp_path, grid_of(quickstart(None)), sure())
    lines = [each.getMessage() for each in caplog.records]
    assert sum("its client app has no @app.evaluate()" in line for line in lines) == 1


def test_a_metric_under_another_name_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = quickstart(lambda _: {"loss": 1.0, "eval_acc": 0.5, "num-examples": 3})
    answer = evaluated(tmp_path, grid_of(app), sure())
    assert float(answer["count"].value) == pytest.approx(0.0, abs=0.1)
    lines = [each.getMessage() for each in caplog.records]
    assert lines.count("an evaluation has no 'eval_loss' and weighs zero (said once)") == 1


# --- Refused, and not charged ---------------------------------------------------------------------


def test_a_statistic_of_a_plain_app_is_refused_with_what_to_write(tmp_path: Path) -> None:
    """Before, this charged the ledger and answered about 0."""
    choice = choose_noise(Count(), epsilon=1.0, delta=1e-5)
    grid = grid_of(quickstart())
    with pytest.raises(RehearsalFailed, match=r"write numpy_client_app\(client_fn, stati"):
        counted(tmp_path, grid, choice)
    assert spent(tmp_path) == 0
    assert not grid.sent


@pytest.mark.parametrize(
    "app",
    [
        quickstart(),
        noised_client_app(),
        numpy_client_app(lambda _: NumPyClient()),
        numpy_client_app(units=NodeUnits(client_fn=lambda *_: NumPyClient(), count=lambda *_: 1)),
    ],
    ids=["plain", "noised", "client", "units"],
)
def test_an_app_without_values_answers_no_statistic(tmp_path: Path, app: ClientApp) -> None:
    choice = choose_noise(Count(), epsilon=1.0, delta=1e-5)
    grid = grid_of(app)
    with pytest.raises(RehearsalFailed, match=r"statistics_fn=values_of.*nothing was charged"):
        counted(tmp_path, grid, choice)
    assert spent(tmp_path) == 0
    assert not grid.sent


def test_scores_need_an_app_that_knows_fl_dp(tmp_path: Path) -> None:
    choice = choose_noise(ScoreHistograms(), epsilon=1.0, delta=1e-5)
    grid = grid_of(quickstart())
    with pytest.raises(RehearsalFailed, match=r"write numpy_client_app\(client_fn\)"):
        evaluated(tmp_path, grid, choice)
    assert spent(tmp_path) == 0
    assert not grid.sent


def test_records_alone_measure_no_model(tmp_path: Path) -> None:
    grid = grid_of(numpy_client_app(records=lambda *_: pytest.fail("not asked")))
    with pytest.raises(RehearsalFailed, match=r"write numpy_client_app\(client_fn\)"):
        evaluated(tmp_path, grid, sure())
    assert spent(tmp_path) == 0


UNTRUSTING: dict[str, dict[str, Any]] = {
    "distributed": {"secure_sum": SecureSum(max_parameters=1000)},
    "local": {"client_scheme": "gaussian"},
}


@pytest.mark.parametrize(("kind", "instead"), [("distributed", "CentralPlan"), ("local", "Cen")])
def test_no_plain_evaluation_is_read_where_the_server_is_not_trusted(
    tmp_path: Path, kind: str, instead: str
) -> None:
    choice, grid = sure(), grid_of(quickstart())
    plan = paying_for(choice, 1, **UNTRUSTING[kind])
    with pytest.raises((RehearsalFailed, ValueError), match=f"{instead}.*nothing was charged"):
        evaluated(tmp_path, grid, choice, plan, roster_timeout=1.0)
    assert spent(tmp_path) == 0
    assert not [each for each in grid.sent if each.metadata.message_type == "evaluate"]


@pytest.mark.parametrize("kind", UNTRUSTING)
def test_rounds_have_no_evaluation_where_the_server_is_not_trusted(
    tmp_path: Path, kind: str
) -> None:
    choice, grid = sure(), grid_of(quickstart())
    plan = paying_for(choice, 1, **UNTRUSTING[kind])
    with pytest.raises(IncompatibleOptions, match="leave evaluation out, or make a CentralPlan"):
        trained(tmp_path, grid, choice, plan=plan)
    assert spent(tmp_path) == 0
    assert not grid.sent


def test_clients_that_protect_their_records_tell_the_server_nothing_of_them(
    tmp_path: Path,
) -> None:
    promise = record_plan(epsilon=8.0, noise_multiplier=2.0, sampling_rate=0.1, steps=2)
    choice = choose_noise(QUALITY, epsilon=0.1, delta=1e-5)
    with pytest.raises(IncompatibleOptions, match="leave evaluation out"):
        budgeted(tmp_path, epsilon=8.0, record_plan=promise, evaluation=choice)
    assert not (tmp_path / "ledger.db").exists()


def test_a_buffer_s_clients_are_not_asked_while_they_train(tmp_path: Path) -> None:
    choice = sure()
    plan = paying_for(choice, 1, sampling=BufferedSampling(cohort=N))
    with pytest.raises(IncompatibleOptions, match=r"write evaluate_federation\(\.\.\.\) after"):
        from fl_dp.strategies.round_evaluation import RoundEvaluation

        RoundEvaluation(choice=choice, plan=plan)


@pytest.mark.parametrize("declared", [0, 2])
def test_what_the_plan_does_not_pay_for_is_refused_with_the_line_to_add(
    tmp_path: Path, declared: int
) -> None:
    choice, grid = sure(), grid_of(quickstart())
    plan = paying_for(choice, declared, rounds=3) if declared else plan_of(N, rounds=3)
    with pytest.raises(OptionError, match=r"other_releases=freeze\(\[\(event, 3\) for event in"):
        trained(tmp_path, grid, choice, plan=plan)
    assert spent(tmp_path) == 0
    assert not grid.sent


def test_another_query_is_refused_before_there_is_a_ledger(tmp_path: Path) -> None:
    count = choose_noise(Count(), epsilon=1.0, delta=1e-5)
    with pytest.raises(OptionError, match=r"evaluation=choose_noise\(Evaluation\("):
        budgeted(tmp_path, evaluation=count)
    assert not (tmp_path / "ledger.db").exists()


def test_owners_who_allow_no_question_are_heard_before_the_charge(tmp_path: Path) -> None:
    """Before, the server was charged, and every node answered with an error."""
    app = numpy_client_app(lambda _: NumPyClient())
    owned: dict[str, Any] = {
        "dp-max-epsilon": 4.0,
        "dp-ledger-path": str(tmp_path / "node.db"),
        "dp-allow-unverified-apps": True,
    }

    def answer(message: Message, partition: int) -> Message:
        node = FIRST_NODE + partition
        return app(message, Context(1, node, dict(owned), RecordDict(), {}))

    grid = LocalGrid(introducing(answer), N)
    with pytest.raises(RehearsalFailed, match="owner does not allow"):
        evaluated(tmp_path, grid, sure())
    assert spent(tmp_path) == 0
    assert not grid.sent


# --- What a hostile node can do -------------------------------------------------------------------


def replying(*records: Any) -> Callable[[Message], Message]:
    content = {f"record {index}": each for index, each in enumerate(records)}
    return lambda message: Message(RecordDict(content), reply_to=message)


def metrics(**changes: Any) -> MetricRecord:
    numbers = honest(0) | {key.replace("_examples", "-examples"): v for key, v in changes.items()}
    return MetricRecord({key: value for key, value in numbers.items() if value is not None})


WEIGHS_ZERO: dict[str, Callable[[Message], Message]] = {
    "a NaN": replying(metrics(eval_loss=math.nan)),
    "a NaN as its number of records": replying(metrics(num_examples=math.nan)),
    "no records": replying(metrics(num_examples=0)),
    "a negative number of records": replying(metrics(num_examples=-5)),
    "minus infinitely many": replying(metrics(num_examples=-math.inf)),
    "no number of records": replying(metrics(num_examples=None)),
    "a missing metric": replying(metrics(eval_acc=None)),
    "a list": replying(metrics(eval_acc=[0.5, 0.5])),
    "an empty list": replying(metrics(eval_acc=[])),
    "two MetricRecords": replying(metrics(), metrics()),
    "no record": replying(),
    "texts": replying(ConfigRecord({"eval_loss": "1", "eval_acc": "1", "num-examples": "1"})),
    "arrays": replying(MODEL),
    "an error": lambda message: Message(Error(code=2, reason="loss 3"), reply_to=message),
}
IS_CLAMPED: dict[str, tuple[Callable[[Message], Message], float, float]] = {
    "an infinite loss": (replying(metrics(eval_loss=math.inf)), 4.0, 0.75),
    "a huge loss": (replying(metrics(eval_loss=1e308)), 4.0, 0.75),
    "a loss below": (replying(metrics(eval_loss=-math.inf)), 0.0, 0.75),
    "an accuracy above": (replying(metrics(eval_acc=2**62)), 1.0, 1.0),
    "huge numbers of records": (replying(metrics(num_examples=2**62)), 1.0, 0.75),
    "infinitely many records": (replying(metrics(num_examples=math.inf)), 1.0, 0.75),
}


def among_honest(hostile: Callable[[Message], Message]) -> LocalGrid:
    honestly = answer_with_app(quickstart(), N)

    def answer(message: Message, partition: int) -> Message | None:
        if partition == 3 and message.metadata.message_type == "evaluate":
            return hostile(message)
        return honestly(message, partition)

    return LocalGrid(introducing(answer), N)


@pytest.mark.parametrize("name", WEIGHS_ZERO)
def test_what_is_malformed_or_missing_weighs_zero_in_sum_and_count(
    tmp_path: Path, name: str
) -> None:
    answer = evaluated(tmp_path, among_honest(WEIGHS_ZERO[name]), sure())
    assert float(answer["count"].value) == pytest.approx(N - 1, abs=0.02)
    assert float(answer["eval_loss"].value) == pytest.approx(1.0, abs=0.002)
    assert float(answer["eval_acc"].value) == pytest.approx(0.75, abs=0.002)


@pytest.mark.parametrize("name", IS_CLAMPED)
def test_what_is_out_of_range_counts_as_the_range_s_end_and_once(tmp_path: Path, name: str) -> None:
    hostile, loss, accuracy = IS_CLAMPED[name]
    answer = evaluated(tmp_path, among_honest(hostile), sure())
    assert float(answer["count"].value) == pytest.approx(N, abs=0.02)
    expected = ((N - 1) * 1.0 + loss) / N
    assert float(answer["eval_loss"].value) == pytest.approx(expected, abs=0.002)
    expected = ((N - 1) * 0.75 + accuracy) / N
    assert float(answer["eval_acc"].value) == pytest.approx(expected, abs=0.002)


def test_a_reply_moves_the_sum_by_the_declared_sensitivities_at_most() -> None:
    rng = np.random.default_rng(5)
    odd = [math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0, 2**62, [1.0], None, "4", True]
    query = Evaluation(names=QUALITY.names, lows=QUALITY.lows, highs=QUALITY.highs, max_records=7)
    longest = 0.0
    for _ in range(3000):
        values = [odd[rng.integers(len(odd))] for _ in range(3)]
        for index in range(3):
            if rng.random() < 0.6:
                values[index] = float(rng.normal(0.0, 10.0))
        loss, accuracy, examples = values
        vector = query.measured({"eval_loss": loss, "eval_acc": accuracy}, examples=examples)
        assert np.linalg.norm(vector, 1) <= query.l1_sensitivity * (1 + 1e-12)
        assert np.linalg.norm(vector) <= query.l2_sensitivity * (1 + 1e-12)
        longest = max(longest, float(np.linalg.norm(vector)))
    assert longest == pytest.approx(query.l2_sensitivity)  # the bound is reached


# --- In rounds ------------------------------------------------------------------------------------


def test_a_quickstart_gets_its_evaluation_back_in_every_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, no argument of a strategy brought it back."""
    caplog.set_level(logging.INFO, logger="flwr")
    server, results = ServerApp(), []
    choice = choose_noise(QUALITY, epsilon=2.0, delta=1e-5, law="gaussian")

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = budgeted(
            tmp_path, FedAvg(), epsilon=16.0, rounds=3, num_clients=400, evaluation=choice
        )
        results.append(strategy.start(grid, MODEL, num_rounds=3))

    simulate(server, quickstart())
    (result,) = results
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    for released in result.evaluate_metrics_clientapp.values():
        # 400 clients: 7 deviations of the noise on the ratio.
        assert set(released) == {"eval_loss", "eval_acc"}
        assert released["eval_loss"] == pytest.approx(1.0, abs=0.2)
        assert released["eval_acc"] == pytest.approx(0.75, abs=0.05)
        assert released["eval_acc"] != 0.75  # there is noise
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert (ledger.rounds_committed, ledger.other_releases_spent) == (3, 3)
        assert ledger.epsilon().best <= 16.0
        assert ledger.epsilon().best == pytest.approx(16.0, rel=0.02)
    (price,) = [line for line in caplog.messages if "Evaluation: after each round" in line]
    assert "eval_loss in [0, 4] with noise" in price
    alone = ledger.plan.epsilon(freeze([(choice.events[0], 3)])).best
    assert price.endswith(f"alone {Guarantee.of(ledger.plan, alone)}")


def test_every_charge_is_on_disk_before_anybody_is_asked_to_evaluate(tmp_path: Path) -> None:
    charged: list[tuple[int, int]] = []
    inner = answer_with_app(quickstart(), N)

    def answer(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type == "evaluate":
            with PrivacyLedger.read(tmp_path / "ledger.db") as there:
                assert there.entries[-1].kind == "reserve"
                charged.append((there.rounds_committed, there.other_releases_spent))
        return inner(message, partition)

    trained(tmp_path, LocalGrid(introducing(answer), N), sure(), rounds=2)
    assert charged == [(1, 1)] * N + [(2, 2)] * N


def test_no_hook_of_a_user_meets_a_raw_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = float(f"0.{DIGITS}")
    met: list[dict[str, Any]] = []

    def note(replies: Any) -> None:
        (reply,) = replies
        (numbers,) = reply.content.metric_records.values()
        met.append(dict(numbers))

    class Inner(FedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> MetricRecord | None:
            note(replies)
            return super().aggregate_evaluate(server_round, replies)

    class Outer(DPFedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> MetricRecord | None:
            note(replies)
            metrics = super().aggregate_evaluate(server_round, replies)
            assert metrics is not None
            return MetricRecord({"of the outer": metrics["eval_acc"]})

    def evaluate(partition: int) -> dict[str, Any]:
        return honest(partition) | ({"eval_acc": secret} if partition == 7 else {})

    result = trained(
        tmp_path, grid_of(quickstart(evaluate)), sure(), inner=Inner(), kind=Outer, rounds=1
    )
    expected = (39 * 0.75 + secret) / 40
    assert len(met) == 4  # of the trial, and of the round
    for numbers in met[2:]:
        assert set(numbers) == {"eval_loss", "eval_acc", "num-examples"}
        assert numbers["num-examples"] == 1
        assert numbers["eval_acc"] == pytest.approx(expected, abs=0.01)
    assert set(result.evaluate_metrics_clientapp[1]) == {"of the outer"}
    assert DIGITS not in caplog.text
    assert DIGITS not in str(result)


def test_hooks_take_no_other_replies_and_no_grid_that_sends(tmp_path: Path) -> None:
    choice, grid = sure(), grid_of(quickstart())
    with PrivacyLedger.open(tmp_path / "ledger.db", paying_for(choice, 1)) as ledger:
        strategy = DPFedAvg(plan=ledger.plan, ledger=ledger, evaluation=choice)
        with pytest.raises(RuntimeError, match="not for a grid that sends"):
            strategy.configure_evaluate(1, MODEL, ConfigRecord(), grid)
        asked = Message(RecordDict({"metrics": metrics()}), dst_node_id=1, message_type="evaluate")
        with pytest.raises(RuntimeError, match="takes the one reply that a round released"):
            strategy.aggregate_evaluate(1, [Message(asked.content, reply_to=asked)])


class EverySecond(FedAvg):
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        if server_round % 2:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)


@pytest.mark.parametrize(
    ("inner", "rounds"),
    [(EverySecond(), {2, 4}), (FedAvg(fraction_evaluate=0.1), {1, 2, 3, 4})],
)
def test_the_strategy_says_which_rounds_are_evaluated_and_the_others_cost_nothing(
    tmp_path: Path, inner: Strategy, rounds: set[int]
) -> None:
    grid = grid_of(quickstart())
    result = trained(tmp_path, grid, sure(), inner=inner, rounds=4)
    assert set(result.evaluate_metrics_clientapp) == rounds
    asked = [each for each in grid.sent if each.metadata.message_type == "evaluate"]
    assert len(asked) == N * len(rounds)  # everybody, whatever fraction the strategy has
    assert spent(tmp_path) == 4 + len(rounds)


def test_a_strategy_that_asks_nobody_is_refused_before_there_is_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"FedAvg\(fraction_evaluate=0.0\) asks nobody: leave"):
        choice = choose_noise(QUALITY, epsilon=0.1, delta=1e-5)
        budgeted(tmp_path, FedAvg(fraction_evaluate=0.0), evaluation=choice)
    assert not (tmp_path / "ledger.db").exists()


def test_a_config_and_the_strategy_s_own_names_travel(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    app = quickstart(None)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        seen.append(dict(message.content.config_records["settings"]))
        assert set(message.content.array_records) == {"net"}
        numbers = MetricRecord({"eval_loss": 2.0, "eval_acc": 0.5, "size": 3})
        return Message(RecordDict({"m": numbers}), reply_to=message)

    inner = FedAvg(weighted_by_key="size", arrayrecord_key="net", configrecord_key="settings")
    result = trained(
        tmp_path,
        grid_of(app),
        sure(),
        inner=inner,
        rounds=1,
        evaluate_config=ConfigRecord({"batch": 8}),
    )
    assert [(each["batch"], each["server-round"]) for each in seen] == [(8, 1)] * N
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(2.0, abs=0.01)


def test_an_average_of_one_s_own_that_lacks_a_metric_is_found_before_the_first_charge(
    tmp_path: Path,
) -> None:
    def average(contents: Any, weight: str) -> MetricRecord:
        return MetricRecord({"f1": contents[0]["metrics"]["f1"]})

    grid = grid_of(quickstart())
    inner = FedAvg(evaluate_metrics_aggr_fn=average)
    with pytest.raises(RehearsalFailed, match=r"an evaluation's are \['eval_loss', 'eval_acc'"):
        trained(tmp_path, grid, sure(), inner=inner)
    assert spent(tmp_path) == 0
    assert not grid.sent


def test_a_node_of_several_units_evaluates_each(tmp_path: Path) -> None:
    class Client(NumPyClient):
        def __init__(self, unit: int) -> None:
            self.unit = unit

        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 1, {}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 0.0, 1, {"eval_loss": 1.0 + self.unit, "eval_acc": 0.5}

    units = NodeUnits(client_fn=lambda _, unit: Client(unit), count=lambda *_: 2)
    choice = sure()
    plan = paying_for(choice, 1, units_per_node=2)
    grid = grid_of(numpy_client_app(units=units), N // 2)
    result = trained(tmp_path, grid, choice, plan=plan)
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(1.5, abs=0.01)


def test_evaluations_that_are_used_up_leave_the_training_its_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choice, grid = sure(), grid_of(quickstart())
    plan = paying_for(choice, 3, rounds=3)
    evaluated(tmp_path, grid, choice, plan)
    result = trained(tmp_path, grid, choice, plan=plan)
    assert set(result.evaluate_metrics_clientapp) == {1, 2}
    assert sum("a model is not evaluated by clients" in line for line in caplog.messages) == 1
    assert spent(tmp_path) == 3 + 3


def test_an_evaluation_that_its_noise_hides_is_left_out_and_no_hook_gets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody replies: a count is below its own deviation with probability 0.84."""
    met: list[int] = []

    class Counting(FedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> MetricRecord | None:
            met.append(len(list(replies)))
            return None

    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=QUALITY.l2_sensitivity)
    choice = NoiseChoice(query=QUALITY, mechanisms=(mechanism,))
    rounds = 12
    grid = grid_of(quickstart(None))
    result = trained(tmp_path, grid, choice, inner=Counting(), rounds=rounds)
    assert not result.evaluate_metrics_clientapp
    assert met[0] == 1  # the trial
    assert met[1:].count(0) >= 1  # fails with probability 0.16^12
    assert "an evaluation is hidden by its noise" in caplog.text


def test_nobody_evaluates_without_it_and_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(quickstart())
    trained(tmp_path, grid, None, inner=FedAvg(fraction_evaluate=0.5), plan=plan_of(N))
    assert {each.metadata.message_type for each in grid.sent} == {"train"}
    assert "fraction_evaluate=0.5 is not used" in caplog.text
    assert "use evaluation=" in caplog.text


def test_what_evaluation_brings_into_use_is_not_named_as_unused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(DPFedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> MetricRecord | None:
            return super().aggregate_evaluate(server_round, replies)

    def average(contents: list[RecordDict], weight: str) -> MetricRecord:
        return contents[0].metric_records["metrics"]

    inner = EverySecond(fraction_evaluate=0.5, evaluate_metrics_aggr_fn=average)
    trained(tmp_path, grid_of(quickstart()), sure(), inner=inner, kind=Own)
    assert "will not be called" not in caplog.text
    assert "evaluate_metrics_aggr_fn" not in caplog.text
    assert "fraction_evaluate=0.5 is not used: every client evaluates each model" in caplog.text
