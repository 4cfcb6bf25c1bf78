"""Clients that answer in other dtypes than the model's: read by value, or zero for one client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.client import NumPyClient
from local_grid import answer_with_app, reply
from numpy.typing import NDArray
from trainings import client_fn, plan_of, record, train

from fl_dp.clients import numpy_client_app

N = 4
UPDATE = np.array([0.5, -0.25], np.float32)
PLAN: dict[str, Any] = {"noise_multiplier": 1e-5, "contribution_check": True}


def bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bfloat16 of numbers that it holds exactly."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def named_bfloat16(items: NDArray[Any]) -> Array:
    array = Array(items)
    array.dtype = "bfloat16"
    return array


FLOATING: dict[str, Callable[[NDArray[np.float32]], Array]] = {
    "float16": lambda values: Array(values.astype(np.float16)),
    "bfloat16 of ml_dtypes": lambda values: named_bfloat16(bits(values).view("V2")),
    "bfloat16 as integers": lambda values: named_bfloat16(bits(values)),
    "float64": lambda values: Array(values.astype(np.float64)),
    "long double": lambda values: Array(values.astype(np.longdouble)),
    "big-endian float32": lambda values: Array(values.astype(">f4")),
    "big-endian float64": lambda values: Array(values.astype(">f8")),
}
OTHER = [*"?bhilqBHILQFDG", "S4", "U4", "V1", "V4", "M8[s]", "m8[s]", "f4,f4", ">i4", "<c8"]


@pytest.mark.parametrize("kind", FLOATING)
def test_a_float32_model_is_trained_by_clients_of_every_floating_point_dtype(
    kind: str, tmp_path: Path
) -> None:
    def answer(message: Message, partition: int) -> Message:
        arrays = ArrayRecord({"w": FLOATING[kind](UPDATE)})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    training = train(tmp_path, plan_of(N, **PLAN), answer, record(w=np.zeros(2, np.float32)))
    np.testing.assert_allclose(training.move, UPDATE, atol=1e-3)
    assert training.models[-1]["w"].dtype == np.float32


@pytest.mark.parametrize("dtype", OTHER)
def test_any_other_dtype_is_a_zero_of_its_client_alone(dtype: str, tmp_path: Path) -> None:
    def answer(message: Message, partition: int) -> Message:
        if partition:
            return reply(message, {"w": UPDATE})
        arrays = ArrayRecord({"w": Array(np.zeros(2, dtype))})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    training = train(tmp_path, plan_of(N, **PLAN), answer, record(w=np.zeros(2, np.float32)))
    np.testing.assert_allclose(training.move, 0.75 * UPDATE, atol=1e-3)


class Narrow(NumPyClient):
    """Answers in a dtype of its own."""

    def __init__(self, cast: Callable[[NDArray[Any]], Any]) -> None:
        self.cast = cast

    def fit(self, parameters: Any, config: Any) -> Any:
        return [self.cast(parameters[0] + UPDATE)], 10, {}


@pytest.mark.parametrize(
    "cast",
    [
        lambda values: values.astype(np.float16),
        lambda values: values.astype(">f4"),
        lambda values: torch.from_numpy(values).to(torch.bfloat16),
        lambda values: torch.from_numpy(values).half(),
    ],
    ids=["float16", "big-endian", "torch.bfloat16", "torch.float16"],
)
def test_a_numpy_client_may_answer_in_them(
    cast: Callable[[NDArray[Any]], Any], tmp_path: Path
) -> None:
    app = numpy_client_app(client_fn(lambda _: Narrow(cast)))  # type: ignore[arg-type, return-value]  # no FixedClient
    plan = plan_of(N, **PLAN)
    training = train(tmp_path, plan, answer_with_app(app, N), record(w=np.zeros(2, np.float32)))
    np.testing.assert_allclose(training.move, UPDATE, atol=1e-3)
