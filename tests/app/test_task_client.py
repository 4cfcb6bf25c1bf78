"""The task's own client: which part of the data each unit holds, and what it tells of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asked_node import Node, arrays_in, metrics_in, record_of
from flwr.app import ConfigRecord, Context, RecordDict

from fl_dp.app.settings import (
    SETTINGS_KEY,
    TASK,
    Settings,
    SimulationSettings,
)
from fl_dp.app.settings.released import MetricsSettings
from fl_dp.app.task_client import TaskClient, app
from fl_dp.app.workload import dataset_of, model_of, training_rows
from fl_dp.codec import encode_text
from fl_dp.mechanisms import GaussianBundle, ScalarMetric
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import (
    CONTRIBUTION_METRIC,
    SCALARS_METRIC,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
    UTILITY_METRIC,
)
from fl_dp.statistics import Count, Frequencies, Mean
from fl_dp.tasks.training import evaluate
from fl_dp.updates import clipped_sum

CLIENTS = 10
METRICS = (
    ScalarMetric(name="loss", low=0.0, high=4.0),
    ScalarMetric(name="accuracy", low=0.0, high=1.0),
)


def settings_of(units_per_node: int = 1) -> Settings:
    return Settings(
        task=TASK(name="digits", num_clients=CLIENTS),
        simulation=SimulationSettings(units_per_node=units_per_node),
    )


SETTINGS = settings_of()
MODEL = get_arrays(model_of(SETTINGS))


def bundle(*metrics: Any) -> GaussianBundle:
    return GaussianBundle(
        noise_multiplier=1.0, clipping_norms=(0.5,), metrics=metrics, scalar_noise_std=10.0
    )


def part(index: int) -> tuple[np.ndarray, np.ndarray]:
    dataset, rows = dataset_of(SETTINGS), training_rows(SETTINGS)[index]
    return dataset.features(rows), dataset.labels(rows)


def measured(index: int) -> tuple[float, float]:
    model = model_of(SETTINGS)
    set_arrays(model, list(MODEL.values()))
    return evaluate(model, *part(index))


@pytest.fixture
def train() -> Callable[..., Any]:
    """Return arrays and metrics of one node's reply to a train message."""

    def ask(partition: int, asked: Any = None, *, units_per_node: int = 1) -> Any:
        config = {SETTINGS_KEY: settings_of(units_per_node).to_json(), "server-round": 1}
        reply = Node(app, {"partition-id": partition}).train(MODEL, asked, **config)
        return arrays_in(reply), metrics_in(reply)

    return ask


def instruction(**fields: Any) -> RoundInstruction:
    return RoundInstruction(server_round=1, **fields)


# One unit a node.


def test_a_plain_reply_says_nothing_but_the_model(train: Callable[..., Any]) -> None:
    arrays, metrics = train(3)
    assert metrics == {"num-examples": 1}
    assert list(arrays) == list(MODEL)
    assert any((arrays[name] != values).any() for name, values in MODEL.items())


def test_an_instruction_does_not_change_the_training(train: Callable[..., Any]) -> None:
    plain, _ = train(3)
    told, metrics = train(3, instruction(bundle=bundle(*METRICS), utility="loss"))
    for name in MODEL:
        np.testing.assert_array_equal(told[name], plain[name])
    loss, accuracy = measured(3)
    assert metrics == {
        "num-examples": 1,
        "loss": loss,
        "accuracy": accuracy,
        UTILITY_METRIC: loss,
    }


def test_the_true_number_of_records_is_known_on_the_node_alone(train: Callable[..., Any]) -> None:
    _, metrics = train(3, instruction(utility="records"))
    assert metrics == {"num-examples": 1, UTILITY_METRIC: float(len(part(3)[1]))}


def test_a_weight_scales_the_update(train: Callable[..., Any]) -> None:
    records = len(part(3)[1])
    plain, _ = train(3)
    weighted, _ = train(3, instruction(weight_cap=4.0 * records))
    for name, values in MODEL.items():
        expected = values + 0.25 * (plain[name].astype(np.float64) - values)
        np.testing.assert_allclose(weighted[name], expected, atol=1e-7)


def test_a_node_beyond_the_roster_returns_the_model_it_got(train: Callable[..., Any]) -> None:
    arrays, metrics = train(CLIENTS, instruction(utility="loss"))
    for name, values in MODEL.items():
        np.testing.assert_array_equal(arrays[name], values)
    assert metrics == {"num-examples": 1}


def test_a_plain_evaluation_says_the_loss_and_not_the_number_of_records() -> None:
    config = ConfigRecord({SETTINGS_KEY: SETTINGS.to_json()})
    content = {"arrays": record_of(MODEL), "config": config}
    metrics = metrics_in(Node(app, {"partition-id": 3}).ask("evaluate", content))
    assert metrics == {"num-examples": 1, "loss": measured(3)[0]}


def test_private_metrics_are_of_the_rows_that_are_held_out() -> None:
    settings = replace(SETTINGS, metrics=MetricsSettings(private_epsilon=1.0))
    config: dict[str, Any] = {SETTINGS_KEY: settings.to_json(), STATISTIC_QUERY_KEY: "any"}
    client = TaskClient(Context(1, 1, {"partition-id": 3}, RecordDict(), {}))
    loss, count, _ = client.evaluate(list(MODEL.values()), config)
    features, labels = part(3)
    assert count == len(labels) // 5
    model = model_of(settings)
    set_arrays(model, list(MODEL.values()))
    assert loss == evaluate(model, features[4::5], labels[4::5])[0]


def test_a_node_without_a_partition_is_an_error() -> None:
    reply = Node(app, {}).train(MODEL, None, **{SETTINGS_KEY: SETTINGS.to_json()})
    assert reply.error.reason == "ValueError"


# Several units a node.


@pytest.mark.parametrize("weight_cap", [None, 400.0])
@pytest.mark.parametrize("units", [(0, 3), (0, 1, 2, 3)])
def test_a_unit_of_a_node_trains_as_the_client_of_its_part_would(
    train: Callable[..., Any], units: tuple[int, ...], weight_cap: float | None
) -> None:
    asked = instruction(
        bundle=bundle(*METRICS), max_units=4, weight_cap=weight_cap, utility="records"
    )
    together = RoundInstruction(**vars(asked) | {"units": units})
    node_sum, metrics = train(1, together, units_per_node=4)
    alone = RoundInstruction(**vars(asked) | {"units": (0,)})
    parts = [train(4 + unit, alone) for unit in units]
    assert asked.bundle is not None
    grid = asked.bundle.updates.grid
    for name in MODEL:  # together rounds otherwise
        expected = sum(arrays[name] for arrays, _ in parts)
        np.testing.assert_allclose(grid * node_sum[name], grid * expected, rtol=0, atol=1e-6)
    for name in (SCALARS_METRIC, UTILITY_METRIC):
        lists = [metrics[name] for _, metrics in parts]
        expected = np.sum(lists, axis=0) if name == SCALARS_METRIC else np.concatenate(lists)
        np.testing.assert_array_equal(metrics[name], expected)


def test_a_node_of_several_units_trains_them_together(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskClient, "fit", None)
    asked = instruction(bundle=bundle(*METRICS), max_units=4, units=(0, 1, 2, 3))
    arrays, _ = train(1, asked, units_per_node=4)
    assert all(values.any() for values in arrays.values())


def test_rows_trained_together_are_summed_where_they_are(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = instruction(bundle=bundle(*METRICS), max_units=4, units=(0, 1, 2, 3))
    on_the_host, _ = train(1, asked, units_per_node=4)
    left: list[int] = []

    def stays(rows: Any) -> bool:
        left.append(len(rows))
        return True

    monkeypatch.setattr(clipped_sum, "_stays_there", stays)
    arrays, _ = train(1, asked, units_per_node=4)
    assert sum(left) == 4
    for name in MODEL:  # a device adds up squares in another order
        np.testing.assert_allclose(arrays[name], on_the_host[name], rtol=0, atol=4)


def test_the_last_node_hosts_what_is_left_of_the_roster(train: Callable[..., Any]) -> None:
    asked = instruction(bundle=bundle(), max_units=4, units=(0, 1, 2, 3), utility="records")
    _, metrics = train(2, asked, units_per_node=4)
    expected = [len(part(8)[1]), len(part(9)[1]), np.nan, np.nan]
    np.testing.assert_array_equal(metrics[UTILITY_METRIC], expected)
    _, metrics = train(3, asked, units_per_node=4)
    assert np.isnan(metrics[UTILITY_METRIC]).all()


def test_without_named_units_a_node_of_several_is_its_first(train: Callable[..., Any]) -> None:
    first, _ = train(1, units_per_node=4)
    alone, _ = train(4)
    for name in MODEL:
        np.testing.assert_array_equal(first[name], alone[name])


# Queries.


@pytest.fixture
def contribution() -> Callable[..., Any]:
    """Return one node's contribution to a statistic."""

    def ask(query: Any, name: str, partition: int, *, units_per_node: int = 1) -> Any:
        config: dict[str, Any] = {
            STATISTIC_QUERY_KEY: encode_text(query),
            STATISTIC_VALUES_KEY: name,
            SETTINGS_KEY: settings_of(units_per_node).to_json(),
        }
        content = {"config": ConfigRecord(config)}
        here = Node(app, {"partition-id": partition})
        return metrics_in(here.ask(f"query.{STATISTIC_ACTION}", content))[CONTRIBUTION_METRIC]

    return ask


def test_labels_and_records_can_be_asked_about(contribution: Callable[..., Any]) -> None:
    features, labels = part(3)
    frequencies = Frequencies(categories=tuple(range(10)), max_records=10_000)
    expected = np.bincount(labels, minlength=10)
    np.testing.assert_array_equal(contribution(frequencies, "labels", 3), expected)
    assert contribution(Count(max_records=10_000), "records", 3) == [len(labels)]
    size = features[0].size
    mean = Mean(lows=(0.0,) * size, highs=(1.0,) * size)
    assert len(contribution(mean, "records", 3)) == mean.dimension


def test_each_hosted_unit_contributes_on_its_own(contribution: Callable[..., Any]) -> None:
    query = Count(max_records=10_000)
    expected = [len(part(index)[1]) for index in (8, 9)]
    assert contribution(query, "records", 2, units_per_node=4) == expected
    assert contribution(query, "records", 3, units_per_node=4) == []
