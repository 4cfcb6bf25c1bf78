"""A node's sum of clipped gradients: what one record can do to it, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from numpy.typing import NDArray
from owned_clock import OwnedClock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fl_dp.clients import DPSGD, NodeRecords, exchanged_arrays, numpy_client_app
from fl_dp.clients.record_sums import inner_norm, sum_of_records
from fl_dp.mechanisms import GaussianBundle
from fl_dp.model_arrays import get_arrays
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import SCALARS_METRIC

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

NORM, FEATURES, CLASSES = 0.7, 5, 3
BUNDLE = GaussianBundle(noise_multiplier=1.0, clipping_norms=(NORM,), count_noise_std=5.0)
ALL = RoundInstruction(
    server_round=1, sampling_rate=1.0, max_units=50, of_records=True, bundle=BUNDLE
)

CONTEXT = Context(1, 1, {}, RecordDict(), {})
Record = tuple[Tensor, Tensor]


class OneByOne(Dataset[Record]):
    """Records of which some can't even be read."""

    def __init__(self, records: list[Record | None]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, row: int) -> Record:
        found = self.records[row]
        if found is None:
            raise OSError("a record that can't be read")
        return found


def usual(count: int, *, seed: int = 0) -> list[Record | None]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return list(zip(features, labels, strict=True))


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def found_of(
    records: list[Record | None], model_fn: Callable[[], nn.Module] = model_of, **options: Any
) -> NodeRecords:
    return NodeRecords(
        model_fn=lambda context, config: model_fn(),
        loader_fn=lambda context, config: DataLoader(OneByOne(records)),
        **options,
    )


def answer(
    records: list[Record | None],
    *,
    instruction: RoundInstruction = ALL,
    **how: Any,
) -> tuple[NDArray[np.float64], list[float]]:
    """The sum in the units of gradients, and its scalars in theirs."""
    found = found_of(records, dp_sgd=DPSGD(**how))
    arrays, metrics = sum_of_records(instruction, exchanged_arrays(model_of()), {}, CONTEXT, found)
    total = np.concatenate([each.ravel() for each in arrays.to_numpy_ndarrays()])
    assert instruction.bundle is not None
    scalars = zip(metrics[SCALARS_METRIC], instruction.bundle.scalar_mechanisms, strict=True)
    return total * instruction.bundle.updates.grid, [n * each.grid for n, each in scalars]


def of(values: float, label: int = 0) -> Record:
    return torch.full((FEATURES,), values), torch.tensor(label)


HOSTILE: dict[str, Record | None] = {
    "zero": of(0.0),
    "huge": of(1e30),
    "beyond float32's squares": of(3e38),
    "tiny": of(1e-30),
    "nan": of(float("nan")),
    "infinite": of(float("inf")),
    "no such class": of(1.0, CLASSES + 4),
    "another shape": (torch.ones(FEATURES + 1), torch.tensor(0)),
    "unreadable": None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_moves_the_sum_by_its_clipping_norm_at_most(name: str) -> None:
    others = usual(6)
    without, count_without = answer(others)
    with_it, count = answer([*others[:3], HOSTILE[name], *others[3:]])
    assert np.linalg.norm(with_it - without) <= NORM
    assert abs(count[0] - count_without[0]) <= 1.0
    assert count_without[0] == pytest.approx(6.0, rel=1e-6)


def test_a_record_can_move_the_sum_by_all_but_the_margin_of_that() -> None:
    """The bound above is not loose: a sum that was clipped to more would have shown."""
    others = usual(6)
    moved = answer([*others, of(50.0, 1)])[0] - answer(others)[0]
    assert np.linalg.norm(moved) > NORM * (1.0 - 2e-5)


def test_no_record_is_a_sum_of_the_same_form() -> None:
    none, counted_none = answer([])
    full, _ = answer(usual(9))
    assert none.shape == full.shape
    assert not none.any()
    assert counted_none == [0.0]


def test_records_beyond_the_public_bound_take_no_part() -> None:
    few = replace(ALL, max_units=4)
    records = usual(9)
    assert np.array_equal(answer(records, instruction=few)[0], answer(records[:4])[0])


@pytest.mark.parametrize(("timeout", "summed"), [(0, 3), (0.5, 2)])
def test_a_record_that_is_slower_than_its_loader_waits_is_not_in_the_sum(
    clock: OwnedClock, timeout: float, summed: int
) -> None:
    """A `DataLoader` would give up the whole sum, so that one record decided about all others."""

    class Slow(OneByOne):
        def __getitem__(self, row: int) -> Record:
            clock.sleep(1.5 * (row == 0))
            return super().__getitem__(row)

    loader = DataLoader(Slow(usual(3)), num_workers=1, timeout=timeout)
    found = replace(found_of([]), loader_fn=lambda context, config: loader)
    _, metrics = sum_of_records(ALL, exchanged_arrays(model_of()), {}, CONTEXT, found)
    assert metrics[SCALARS_METRIC] == summed * BUNDLE.scalar_steps([1.0])


def test_memory_for_a_few_records_gives_the_same_sum() -> None:
    whole, part = answer(usual(11)), answer(usual(11), physical_batch_size=2)
    assert np.allclose(whole[0], part[0], atol=1e-6)
    assert whole[1] == part[1]


def test_records_can_not_meet_in_a_model_s_buffers() -> None:
    class Remembers(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = model_of()
            self.register_buffer("seen", torch.zeros(FEATURES))

        def forward(self, features: Tensor) -> Any:
            self.seen += features.sum(0).detach()
            return self.inner(features + self.seen)

    sent = exchanged_arrays(Remembers())
    sums = []
    for records in (usual(5), usual(5)[1:]):
        found = found_of(records, Remembers)
        arrays, _ = sum_of_records(ALL, sent, {}, CONTEXT, found)
        sums.append(np.concatenate([each.ravel() for each in arrays.to_numpy_ndarrays()]))
    assert np.linalg.norm(sums[0] - sums[1]) * BUNDLE.updates.grid <= NORM


def test_frozen_layers_are_left_at_home() -> None:
    def frozen() -> nn.Module:
        model = model_of()
        model[0].requires_grad_(False)  # type: ignore[index]  # a Sequential
        return model

    found = found_of(usual(3), frozen)
    sent = exchanged_arrays(frozen())
    arrays, _ = sum_of_records(ALL, sent, {}, CONTEXT, found)
    assert list(arrays) == list(sent) == ["2.weight", "2.bias"]
    everything = ArrayRecord({name: Array(values) for name, values in get_arrays(frozen()).items()})
    with pytest.raises(ValueError, match=r"no gradient of array '0\.weight'"):
        sum_of_records(ALL, everything, {}, CONTEXT, found)
    named = replace(ALL, trained=("2.*",))
    arrays, _ = sum_of_records(named, everything, {}, CONTEXT, found)
    assert list(arrays) == ["2.weight", "2.bias"]


@pytest.mark.parametrize(
    "changes",
    [
        {"bundle": None},
        {"sampling_rate": None},
        {"units": (0,)},
        {"weight_cap": 3.0},
        {"utility": "loss"},
        {"max_units": 1 << 40},
        {"bundle": replace(BUNDLE, clipping_norms=(1.0, 2.0))},
    ],
    ids=str,
)
def test_an_instruction_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        answer(usual(2), instruction=replace(ALL, **changes))


def test_rounding_to_the_grid_is_part_of_the_charged_norm() -> None:
    size = 10_000_000
    rounding = BUNDLE.updates.grid * size**0.5
    assert inner_norm(BUNDLE, size) + rounding < NORM * (1.0 - 1e-6)
    assert inner_norm(BUNDLE, size) > NORM * (1.0 - 2e-5)
    with pytest.raises(ValueError, match="too many for a grid"):
        inner_norm(BUNDLE, 1 << 60)


def test_an_app_needs_something_to_answer_with() -> None:
    with pytest.raises(ValueError, match="client_fn, units or records"):
        numpy_client_app()
    with pytest.raises(ValueError, match="leave expected_batch_size"):
        found_of([], dp_sgd=DPSGD(expected_batch_size=3.0))
