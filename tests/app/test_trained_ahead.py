"""Clients of a round that are trained in one go answer each with its own model, as one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.app import private_module, train_private, trained_ahead
from fl_dp.app.in_process import InProcessGrid, configs_of_nodes
from fl_dp.app.trained_ahead import TrainedAhead
from fl_dp.clients import numpy_client_app
from fl_dp.clients.cohort import train_units
from fl_dp.codec import encode_text
from fl_dp.mechanisms import GaussianBundle
from fl_dp.model_arrays import get_arrays
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import COINS_SEED_KEY, INSTRUCTION_KEY
from fl_dp.tasks.training import plain_sgd

COUNTS = (5, 8, 0, 3, 8, 1)
TRAINING = plain_sgd(learning_rate=0.5, epochs=3, batch_size=8)  # no order of records: no coins


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def part(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    records = torch.randn(count, 4, generator=draws, dtype=torch.float64)
    return records, torch.randint(3, (count,), generator=draws)


PARTS = [part(count, seed) for seed, count in enumerate(COUNTS)]


class Round:
    """A grid of clients, and the groups that were trained ahead."""

    def __init__(
        self, parts: Sequence[tuple[Tensor, Tensor]] = PARTS, model: nn.Module | None = None
    ) -> None:
        self.model = module() if model is None else model
        self.ahead = TrainedAhead(self.model, parts, TRAINING)
        fit = private_module._fit(TRAINING)
        client = numpy_client_app(
            lambda context: private_module._Client(self.model, parts, fit, self.ahead, context)
        )
        self.grid = InProcessGrid(client, configs_of_nodes(len(parts)), before=self.ahead.train)

    def replies(
        self, asked: Iterable[int], *, add: float = 0.0, kind: str = "train", **config: Any
    ) -> list[Message]:
        """Ask clients, of a model moved by a number."""
        arrays = {name: Array(value + add) for name, value in get_arrays(self.model).items()}
        content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord(config)})
        messages = [Message(content, message_type=kind, dst_node_id=number + 1) for number in asked]
        return list(self.grid.send_and_receive(messages))


def vector(reply: Message) -> NDArray[np.float64]:
    arrays = reply.content.array_records["arrays"]
    return np.concatenate([value.numpy().ravel() for value in arrays.values()])


def alone(number: int, **options: Any) -> NDArray[np.float64]:
    (reply,) = Round().replies([number], **options)
    return vector(reply)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of clients that were trained in one go."""
    sizes: list[int] = []

    def noted(model: nn.Module, units: Any, *rest: Any, **options: Any) -> Any:
        sizes.append(len(units))
        return train_units(model, units, *rest, **options)

    monkeypatch.setattr(trained_ahead, "train_units", noted)
    return sizes


def test_each_client_answers_as_alone_up_to_rounding(
    groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [alone(number) for number in range(len(COUNTS))]
    assert groups == []  # a client alone is trained by its own message
    monkeypatch.setattr(private_module, "train_alone", None)
    replies = Round().replies(range(len(COUNTS)))
    assert groups == [len(COUNTS)]
    for number, reply in enumerate(replies):
        assert reply.metadata.src_node_id == number + 1
        metrics = reply.content.metric_records["metrics"]
        assert metrics["num-examples"] == COUNTS[number]
        np.testing.assert_allclose(vector(reply), expected[number], rtol=0, atol=1e-14)
    start = np.concatenate([value.ravel() for value in get_arrays(module()).values()])
    moved = [np.abs(values - start).max() for values in expected]
    assert [value > 0.01 for value in moved] == [count > 0 for count in COUNTS]


def test_a_client_that_fails_costs_itself_alone() -> None:
    spoilt = list(PARTS)
    spoilt[1] = (PARTS[1][0], PARTS[1][1][:-1])
    usual, replies = Round().replies(range(len(COUNTS))), Round(spoilt).replies(range(len(COUNTS)))
    assert [reply.has_error() for reply in replies] == [number == 1 for number in range(6)]
    for number in (0, 2, 3, 4, 5):
        assert (vector(replies[number]) == vector(usual[number])).all()  # to the bit


def test_a_message_that_brings_another_model_is_answered_for_that_one(groups: list[int]) -> None:
    played = Round()
    for add in (0.0, 1.0):
        for number, reply in zip((4, 0), played.replies((4, 0), add=add), strict=True):
            expected = alone(number, add=add)
            np.testing.assert_allclose(vector(reply), expected, rtol=0, atol=1e-14)
    assert groups == [2, 2]


def test_what_was_trained_from_other_arrays_is_not_used() -> None:
    played = Round()
    played.ahead.train(waiting(played, (0, 1)))
    sent = list(get_arrays(played.model).values())
    assert played.ahead.arrays_of(0, [values + 1.0 for values in sent]) is None
    assert played.ahead.arrays_of(1, sent) is not None
    assert played.ahead.arrays_of(1, sent) is None  # once


def waiting(played: Round, asked: Iterable[int]) -> Any:
    arrays = ArrayRecord({name: Array(value) for name, value in get_arrays(played.model).items()})
    for number in asked:
        content = RecordDict({"arrays": arrays})
        message = Message(content, message_type="train", dst_node_id=number + 1)
        yield message, played.grid._contexts[number + 1]


def test_memory_bounds_a_group(groups: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = sum(value.nbytes for value in get_arrays(module()).values())
    largest = 8 * (4 * 8 + 8)
    monkeypatch.setattr(trained_ahead, "_MOST_BYTES", 2 * (parameters + largest))
    replies = Round().replies(range(len(COUNTS)))
    assert groups == [2, 2, 2]
    assert not any(reply.has_error() for reply in replies)
    monkeypatch.setattr(trained_ahead, "_MOST_BYTES", 1)  # one by one
    Round().replies(range(len(COUNTS)))
    assert len(groups) == 3


def test_where_a_node_draws_who_takes_part_nobody_is_trained_ahead(groups: list[int]) -> None:
    bundle = GaussianBundle(noise_multiplier=1.0, clipping_norms=(1.0,))
    drawn = RoundInstruction(server_round=1, bundle=bundle, sampling_rate=0.5)
    config: dict[str, Any] = {INSTRUCTION_KEY: encode_text(drawn)}
    Round().replies(range(3), **config)
    Round().replies(range(3), kind="evaluate")
    assert groups == []


def test_coins_are_each_client_s_and_the_process_keeps_its_own() -> None:
    dropping = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)).double()
    played = Round([PARTS[1]] * 3, dropping)
    torch.manual_seed(3)
    torch_state, (_, numpy_state, *_) = torch.get_rng_state(), np.random.get_state()
    first, second, third = map(vector, played.replies(range(3)))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # type: ignore[index]  # no dict
    assert (first != second).any() and (second != third).any() and (first != third).any()


def test_with_a_seed_a_client_has_the_same_coins_together_and_alone(groups: list[int]) -> None:
    dropping = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)).double()
    seeded: dict[str, Any] = {COINS_SEED_KEY: 7, "server-round": 2}
    together = [vector(reply) for reply in Round(PARTS, dropping).replies(range(2), **seeded)]
    for number, values in enumerate(together):
        (reply,) = Round(PARTS, dropping).replies([number], **seeded)
        np.testing.assert_allclose(vector(reply), values, rtol=0, atol=1e-14)
    assert groups == [2]


def test_train_private_trains_a_round_in_one_go_unless_its_user_trains(groups: list[int]) -> None:
    clients = [part(6, seed) for seed in range(12)]
    budget: dict[str, Any] = {"epsilon": 8.0, "rounds": 3, "clipping_norm": 1.0}
    budget |= {"sampling_rate": 1.0, "progress": False}
    trained = train_private(module(), clients, **budget)
    assert groups == [12, 12, 12]
    assert not torch.equal(next(trained.model.parameters()), next(module().parameters()))

    def fit(model: nn.Module, records: Tensor, labels: Tensor) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(1.0)

    train_private(module(), clients, fit=fit, **budget)
    assert len(groups) == 3
