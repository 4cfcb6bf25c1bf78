"""Partial sharing: what stays on a node is never sent, and moves nothing of what is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar

from fl_dp.clients import (
    NodeConfig,
    NodeConfigError,
    NodeUnits,
    PersonalClient,
    numpy_client_app,
)
from fl_dp.clients.units import sum_of_units
from fl_dp.mechanisms import GaussianBundle
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.updates import BundleSum, SharedPart, VectorLayout

NORM = 0.5
FIRST: dict[str, np.ndarray] = {
    "head.weight": np.full(2, 3.0),  # before the body: order must be kept
    "body.weight": np.array([1.0, -2.0, 4.0]),
    "head.bias": np.array(0.5),
}
PART = SharedPart.of(list(FIRST), ["body.*"])
BUNDLE = GaussianBundle(noise_multiplier=1.0, clipping_norms=(NORM,), unclipped_bit=False)


class Whole(NumPyClient):
    """Moves its body by `body` and its head by `head`, and remembers what it got."""

    def __init__(self, body: float, head: float) -> None:
        self.body, self.head, self.got = body, head, []  # type: ignore[var-annotated]

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        self.got.append([each.copy() for each in parameters])
        moves = (self.head, self.body, self.head)
        trained = [np.asarray(p + m) for p, m in zip(parameters, moves, strict=True)]
        return trained, 7, {}

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        return float(parameters[0][0]), 7, {}


def a_context(**config: Any) -> Context:
    return Context(1, 77, config, RecordDict(), {})


def record(values: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(each) for name, each in values.items()})


def summed(clients: list[Whole], context: Context, model: ArrayRecord | None = None) -> np.ndarray:
    """Return the sum in grid steps that leaves a node of these units."""
    units = NodeUnits(
        client_fn=lambda context, unit: PersonalClient(
            clients[unit], context, part=PART, first=FIRST, unit=unit
        ),
        count=lambda context, config: len(clients),
    )
    asked = RoundInstruction(
        server_round=1, units=tuple(range(len(clients))), max_units=8, bundle=BUNDLE
    )
    model = PART.of_model(record(FIRST)) if model is None else model
    arrays, _ = sum_of_units(asked, model, {}, context, units)
    return np.concatenate([each.numpy().reshape(-1) for each in arrays.values()])


def sent_alone(body: float) -> np.ndarray:
    """Return the sum of one unit without anything personal."""
    model = PART.of_model(record(FIRST))
    layout = VectorLayout.of(model)
    whole = BundleSum(BUNDLE, layout, layout.flatten(model))
    whole.add(record({"body.weight": FIRST["body.weight"] + body}), {})
    return np.concatenate([each.numpy().reshape(-1) for each in whole.updates.steps().values()])


# What is sent.


@pytest.mark.parametrize("head", [0.0, 1.0, 1e300, float("nan"), float("inf")])
def test_a_personal_part_of_any_size_moves_nothing_that_is_sent(head: float) -> None:
    # A clip over both parts would scale the body by 1 / |head|.
    np.testing.assert_array_equal(summed([Whole(0.1, head)], a_context()), sent_alone(0.1))


@pytest.mark.parametrize("head", [0.0, 1e6])
def test_one_unit_moves_the_sum_by_the_clipping_norm_at_most(head: float) -> None:
    steps = summed([Whole(1e9, head)], a_context())
    length = np.linalg.norm(steps) * BUNDLE.updates.grid
    assert 0.99 * NORM < length <= NORM


def test_a_reply_names_the_shared_parameters_alone(node: Any, read: Any) -> None:
    client = Whole(0.25, 5.0)
    app = numpy_client_app(lambda c: PersonalClient(client, c, part=PART, first=FIRST))
    arrays, metrics = read(node(app).train({"body.weight": FIRST["body.weight"]}, None))
    assert list(arrays) == ["body.weight"]
    assert metrics == {"num-examples": 7}


# What stays.


def test_each_unit_finds_its_own_part_again_in_the_next_round() -> None:
    clients, context = [Whole(0.1, 1.0), Whole(0.1, 10.0)], a_context()
    summed(clients, context)
    summed(clients, context)
    assert [client.got[1][0].tolist() for client in clients] == [[4.0, 4.0], [13.0, 13.0]]
    assert [float(client.got[1][2]) for client in clients] == [1.5, 10.5]
    again = PersonalClient(clients[1], context, part=PART, first=FIRST, unit=1)
    assert again.evaluate([FIRST["body.weight"]], {})[0] == 23.0
    elsewhere = PersonalClient(clients[1], a_context(), part=PART, first=FIRST, unit=1)
    assert elsewhere.evaluate([FIRST["body.weight"]], {})[0] == 3.0


def test_a_part_that_is_not_finite_does_not_spoil_the_next_round() -> None:
    clients, context = [Whole(0.1, 1.0)], a_context()
    summed(clients, context)
    clients[0].head = float("nan")
    summed(clients, context)
    summed(clients, context)
    assert clients[0].got[2][0].tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    "kept",
    [
        {"head.weight": np.ones(5), "head.bias": np.array(0.5)},
        {"head.weight": np.ones(2)},
        {"head.weight": np.ones(2), "head.bias": np.array(0.5), "body.weight": np.ones(3)},
    ],
)
def test_a_kept_part_of_another_form_gives_way_to_the_first(kept: dict[str, np.ndarray]) -> None:
    client, context = Whole(0.1, 1.0), a_context()
    context.state["fl-dp-personal-0"] = record(kept)
    np.testing.assert_array_equal(summed([client], context), sent_alone(0.1))
    assert client.got[0][0].tolist() == FIRST["head.weight"].tolist()
    assert client.got[0][1].tolist() == FIRST["body.weight"].tolist()


# Who decides.


@pytest.mark.parametrize(
    "asked",
    [
        {"body.weight": FIRST["body.weight"], "head.weight": FIRST["head.weight"]},
        FIRST,
        {"head.weight": FIRST["body.weight"]},  # another name, the same shape
    ],
)
def test_a_message_that_asks_for_other_parameters_gets_zero(asked: dict[str, np.ndarray]) -> None:
    client = Whole(0.1, 1.0)
    assert not summed([client], a_context(), record(asked)).any()
    assert not client.got


def test_the_owner_s_list_rules_over_the_app_s_and_the_message_s() -> None:
    context = a_context(**{"dp-shared-parameters": "norm.*"})
    assert not summed([Whole(0.1, 1.0)], context).any()
    assert summed([Whole(0.1, 1.0)], a_context(**{"dp-shared-parameters": "norm.*, body.*"})).any()


def test_no_client_of_the_node_trains_what_the_owner_does_not_share(node: Any, told: Any) -> None:
    client = told(1.0)  # it knows nothing of parts
    here = node(numpy_client_app(lambda context: client), {"dp-shared-parameters": "norm.*"})
    assert here.train({"norm.w": np.zeros(2), "body.w": np.zeros(2)}, None).has_error()
    assert not client.calls
    assert not here.train({"norm.w": np.zeros(2)}, None).has_error()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dp-shared-parameters", "body.*,", "at least 1 character"),
        ("dp-shared-parameters", True, "must be a text with commas"),
    ],
)
def test_an_owner_s_list_that_can_not_be_meant_is_an_error(key: str, value: Any, said: str) -> None:
    with pytest.raises(NodeConfigError, match=said):
        NodeConfig.of({key: value})


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([], "write for example"),
        ("body.*", "must be a list"),
        (["body.*", "tail.*"], "'tail.*' matches none of the parameters that are trained: head.w"),
        (["body.*", "head.*"], "match every parameter"),
    ],
)
def test_patterns_that_share_nothing_or_everything_are_refused(patterns: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("*", r"\*")):
        SharedPart.of(list(FIRST), patterns)


def test_frozen_parameters_are_neither_shared_nor_personal() -> None:
    part = SharedPart.of(list(FIRST), None, frozen=["head.bias"])
    assert part == SharedPart(shared=("head.weight", "body.weight"), frozen=("head.bias",))
    with pytest.raises(ValueError, match=r"'head\.bias' matches none"):
        SharedPart.of(list(FIRST), ["head.bias"], frozen=["head.bias"])
