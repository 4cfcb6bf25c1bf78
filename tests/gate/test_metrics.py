"""Numbers of an app's replies: none leaves that the owner does not name; the others are noised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import secure_trainings
from fl_dp.strategies.node_answers import Answers, RehearsalFailed
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from gated_site import App, Arrived, Gates, Site, replying
from local_grid import LocalGrid

from fl_dp import PrivacyLedger
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms import GaussianMechanism, ScalarMetric
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.secagg import SecureSumFailed
from fl_dp.statistics import Evaluation, NoiseChoice
from fl_dp.strategies import DPFedAvg, evaluate_federation

MODEL = {"w": np.zeros(3, np.float32)}
NODES = 3
LITTLE = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}  # which can be read through
LOSS = {"loss": [0.0, 5.0]}


def telling(**numbers: Any) -> App:
    """Return an app that answers with the model as it came, and tells these."""

    def content(message: Message) -> dict[str, Any]:
        told = {"metrics": MetricRecord({"num-examples": 4711} | numbers)}
        if message.metadata.message_type == "evaluate":
            return told
        return {"arrays": message.content["arrays"]} | told

    return replying(content)


def numbers_of(arrived: Arrived) -> dict[str, Any]:
    assert not arrived.message.has_error(), arrived.message.error
    return dict(arrived.message.content["metrics"])


def evaluated(here: Site) -> Arrived:
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    here.server.ask("evaluate", {"arrays": arrays, "config": ConfigRecord({"batch": 8})})
    here.step()
    here.step()  # which ends what the app has left open
    return here.server.arrived[-1]


# Training.


def test_numbers_that_are_not_named_do_not_leave(site: Any) -> None:
    here = site(telling(loss=1.0, age=47.11), **LITTLE, **{"dp-gate-metrics": LOSS})
    [arrived] = here.answers(MODEL)
    assert set(numbers_of(arrived)) == {"num-examples", "loss"}
    assert numbers_of(arrived)["num-examples"] == 1


VALUES = {
    "inside": (0.5, 0.5),
    "above": (1e9, 5.0),
    "below": (-1e9, 0.0),
    "infinite": (float("inf"), 5.0),
    "NaN": (float("nan"), 2.5),
    "many": ([1.0, 2.0], 2.5),
}


@pytest.mark.parametrize(("value", "left"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_number_is_within_its_range_whatever_the_app_says(
    site: Any, value: Any, left: float, kind: str
) -> None:
    named = {"dp-gate-metrics": LOSS, "dp-gate-evaluation": {"loss": [0, 5]}}
    here = site(telling(loss=value), **LITTLE, **named)
    arrived = here.answers(MODEL)[0] if kind == "train" else evaluated(here)
    # Six standard deviations: the noise of a number is a twentieth of its range at least.
    noise = 6 * 0.05 * 5.0 if kind == "train" else 0.01
    assert numbers_of(arrived)["loss"] == pytest.approx(left, abs=noise)


def test_an_update_and_its_numbers_are_one_gaussian_of_the_owner_s_multiplier(site: Any) -> None:
    size, many, multiplier, norm = 20_000, 2_000, 2.0, 1.0
    named = {f"m{place}": [0.0, 1.0] for place in range(many)}
    here = site(telling(), **{"dp-gate-metrics": named})
    [arrived] = here.answers({"w": np.zeros(size)})
    of_update = arrived.arrays["w"].std() / norm
    told = numbers_of(arrived)
    of_numbers = np.std([told[name] - 0.5 for name in named])
    # Zero-out moves the update by its norm, and each number by a half.
    together = (of_update**-2 + many * (0.5 / of_numbers) ** 2) ** -0.5
    # Six standard deviations of the estimate, most of it from the update.
    assert together == pytest.approx(multiplier, rel=6 / np.sqrt(2 * size))
    # Power: with the update's noise alone, 5 % less, the test above would fail.
    assert of_update == pytest.approx(1.05 * multiplier, rel=6 / np.sqrt(2 * size))
    with NodeLedger.read(here.ledger) as ledger:
        [spending] = ledger.spendings
    assert dict(spending.releases) == {GaussianEvent(noise_multiplier=multiplier): 1}


def test_of_an_app_that_fails_the_middle_is_noised(site: Any) -> None:
    here = site(lambda message: [], **LITTLE, **{"dp-gate-metrics": LOSS})
    [arrived] = here.answers(MODEL)
    # Both ends of the range are ten standard deviations off.
    assert numbers_of(arrived)["loss"] == pytest.approx(2.5, abs=6 * 0.05 * 5.0)


# Evaluation.


def test_an_evaluation_is_charged_before_the_app_is_asked(site: Any) -> None:
    charges: list[int] = []

    answer = telling(accuracy=0.75, loss=1.0)

    def app(message: Message) -> Any:
        charges.append(here.charges())
        return answer(message)

    here = site(app, **LITTLE, **{"dp-gate-evaluation": {"accuracy": [0, 1]}})
    arrived = evaluated(here)
    assert charges == [1]
    told = numbers_of(arrived)
    assert set(arrived.message.content) == {"metrics"}
    assert set(told) == {"num-examples", "accuracy"}
    assert told["num-examples"] == 1
    assert told["accuracy"] == pytest.approx(0.75, abs=0.01)
    with NodeLedger.read(here.ledger) as ledger:
        [use] = ledger.uses
        assert use.use is not None
        assert use.use.purpose == "evaluate"
        assert dict(use.releases) == {GaussianEvent(noise_multiplier=1e-4): 1}


@pytest.mark.parametrize("many", [25, 400])
def test_the_noise_of_an_evaluation_is_that_which_is_charged(site: Any, many: int) -> None:
    named = {f"m{place}": [0.0, 10.0] for place in range(many)}
    here = site(telling(), **{"dp-gate-evaluation": named})
    answers = [numbers_of(evaluated(here)) for _ in range(400 // many)]
    draws = np.array([[numbers[name] - 5.0 for name in named] for numbers in answers])
    # The site moves `many` numbers, of width 10, by a half each.
    deviation = 2.0 * 10.0 * 0.5 * np.sqrt(many)
    # Six standard deviations of the estimate; half of the noise is 14 off.
    assert draws.std() == pytest.approx(deviation, rel=6 / np.sqrt(2 * draws.size))


HOSTILE: dict[str, App] = {
    "an error": lambda message: [Message(Error(4711, "patient 4711"), reply_to=message)],
    "no answer": lambda message: [],
    "no numbers": replying(lambda message: {}),
    "two records": replying(
        lambda message: {
            "a": MetricRecord({"accuracy": 1.0}),
            "patient 4711": MetricRecord({"accuracy": 1.0}),
        }
    ),
    "arrays": replying(lambda message: {"arrays": message.content["arrays"]}),
}


@pytest.mark.parametrize("app", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_to_an_evaluation_is_noise_around_the_middle(
    site: Callable[..., Site], app: App
) -> None:
    here = site(app, **LITTLE, **{"dp-gate-evaluation": {"accuracy": [0, 1]}})
    arrived = evaluated(here)
    assert set(arrived.message.content) == {"metrics"}
    assert numbers_of(arrived) == {
        "num-examples": 1,
        "accuracy": pytest.approx(0.5, abs=0.01),
    }
    assert here.charges() == 1


def test_once_the_budget_is_spent_the_app_is_asked_for_no_evaluation(site: Any) -> None:
    here = site(
        telling(accuracy=1.0),
        **{"dp-max-epsilon": 1e-3, "dp-gate-evaluation": {"accuracy": [0, 1]}},
    )
    assert set(numbers_of(evaluated(here))) == {"num-examples", "accuracy"}
    assert not here.seen
    assert here.charges() == 0


def test_evaluations_and_trainings_of_a_site_spend_one_budget(site: Any) -> None:
    here = site(telling(accuracy=1.0), **{"dp-gate-evaluation": {"accuracy": [0, 1]}})
    here.answers(MODEL)
    evaluated(here)
    with NodeLedger.read(here.ledger) as ledger:
        [spending] = ledger.spendings
    assert spending.releases.total() == 2


def test_with_clip_no_number_leaves(site: Any) -> None:
    clip = {"dp-gate-promise": "clip", "dp-gate-noise-multiplier": None, "dp-max-epsilon": None}
    here = site(telling(accuracy=1.0), **clip)
    assert evaluated(here).message.error.reason == "PolicyRefusal"
    assert not here.seen


def test_a_plain_server_averages_what_sites_measure(tmp_path: Path) -> None:
    gates = Gates(tmp_path, NODES, **LITTLE, **{"dp-gate-evaluation": {"accuracy": [0, 1]}})
    for here, accuracy in zip(gates.sites, (0.2, 0.5, 0.8), strict=True):
        here.app = telling(accuracy=accuracy)
    initial = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    result = FedAvg(min_available_nodes=NODES).start(LocalGrid(gates, NODES), initial, num_rounds=1)
    told = result.evaluate_metrics_clientapp[1]
    assert dict(told) == {"accuracy": pytest.approx(0.5, abs=0.01)}


# In a secure sum.

SUMS = {
    "dp-gate-promise": "distributed",
    "dp-gate-noise-multiplier": None,
    "dp-max-epsilon": 1e9,
}
plan_of = partial(
    secure_trainings.plan_of,
    NODES,
    rounds=1,
    noise_multiplier=0.01,
    secure_sum=SecureSum(max_parameters=1000),
)


def trained_in_sums(folder: Path, gates: Gates, plan: DistributedPlan) -> dict[str, float]:
    initial = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        strategy.start(LocalGrid(gates, NODES), initial, num_rounds=1)
        return strategy.released_metrics


def test_a_mean_of_metrics_leaves_in_the_sum_of_updates(tmp_path: Path) -> None:
    gates = Gates(tmp_path, NODES, **SUMS, **{"dp-gate-metrics": LOSS})
    for here, loss in zip(gates.sites, (1.0, 2.0, 1e9), strict=True):
        here.app = telling(loss=loss)
    plan = plan_of(metrics=(ScalarMetric(name="loss", low=0.0, high=5.0),))
    released = trained_in_sums(tmp_path, gates, plan)
    assert released["loss"] == pytest.approx((1.0 + 2.0 + 5.0) / 3, abs=0.6)


@pytest.mark.parametrize("named", [None, {"accuracy": [0, 1]}, {"loss": [0.0, 4.0]}])
def test_a_metric_that_the_owner_does_not_name_so_is_refused(tmp_path: Path, named: Any) -> None:
    gates = Gates(tmp_path, NODES, **SUMS, **{"dp-gate-metrics": named})
    plan = plan_of(metrics=(ScalarMetric(name="loss", low=0.0, high=5.0),))
    require_ended_by_the_rehearsal(tmp_path, gates, plan)


def test_a_norm_that_is_larger_than_the_owner_s_is_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    gates = Gates(tmp_path, NODES, **SUMS, **{"dp-gate-clipping-norm": 0.9})
    require_ended_by_the_rehearsal(tmp_path, gates, plan_of())


def require_ended_by_the_rehearsal(folder: Path, gates: Gates, plan: DistributedPlan) -> None:
    with pytest.raises(RehearsalFailed, match="owner does not allow this training"):
        trained_in_sums(folder, gates, plan)
    with PrivacyLedger.read(folder / "server.db") as ledger:
        assert ledger.rounds_spent == 0
    for here in gates.sites:
        assert not here.seen
        assert here.charges() == 0


QUERY = Evaluation(names=("loss", "accuracy"), lows=(0.0, 0.0), highs=(5.0, 1.0))
CHOICE = NoiseChoice(
    query=QUERY,
    mechanisms=(GaussianMechanism(noise_multiplier=0.01, clipping_norm=QUERY.l2_sensitivity),),
)


def evaluated_in_sum(folder: Path, gates: Gates) -> Any:
    plan = plan_of(rounds=0, other_releases=[(event, 1) for event in CHOICE.events])
    initial = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        return evaluate_federation(LocalGrid(gates, NODES), ledger, "model", CHOICE, arrays=initial)


def test_means_of_evaluations_leave_in_a_secure_sum(tmp_path: Path) -> None:
    named = {"loss": [0, 5], "accuracy": [0, 1]}
    gates = Gates(tmp_path, NODES, **SUMS, **{"dp-gate-evaluation": named})
    gates.sites[0].app = telling(loss=1.0, accuracy=0.4)
    gates.sites[1].app = telling(loss=3.0, accuracy=0.6)
    gates.sites[2].app = HOSTILE["an error"]
    answer = evaluated_in_sum(tmp_path, gates)
    assert float(answer["loss"].value) == pytest.approx(2.0, abs=0.5)
    assert float(answer["accuracy"].value) == pytest.approx(0.5, abs=0.1)
    assert float(answer["count"].value) == pytest.approx(2.0, abs=0.3)
    for here in gates.sites:
        [seen] = here.seen
        configs = seen.content.config_records.values()
        assert all(dict(config) == {"server-round": 0} for config in configs)
        assert here.charges() == 1


@pytest.mark.parametrize("named", [None, {"loss": [0, 5]}, {"loss": [0, 5], "accuracy": [0, 2]}])
def test_an_evaluation_in_a_sum_that_the_owner_does_not_allow_is_refused_before_it_is_charged(
    tmp_path: Path, named: Any
) -> None:
    gates = Gates(tmp_path, NODES, **SUMS, **{"dp-gate-evaluation": named})
    with pytest.raises(RehearsalFailed, match="owner does not allow"):
        evaluated_in_sum(tmp_path, gates)
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert not ledger.history
    assert all(not here.seen and here.charges() == 0 for here in gates.sites)


def test_a_server_that_rehearses_nothing_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fl_dp.strategies.question.Question.rehearse", lambda *args, **options: Answers()
    )
    gates = Gates(tmp_path, NODES, **SUMS)
    with pytest.raises(SecureSumFailed, match="0 of 3 clients replied"):
        evaluated_in_sum(tmp_path, gates)
    assert all(not here.seen and here.charges() == 0 for here in gates.sites)
