"""What is released is what is trained, by names that the server fixes before the first charge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fl_dp.strategies.node_answers import RehearsalFailed
from fl_dp.strategies.unfit_model import UnfitModel, require_finite
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from kind_trainings import NODES, PLANS
from local_grid import LocalGrid, answer_with_app
from secure_nodes import SecureNodes
from torch import nn
from trainings import budgeted

from fl_dp import PrivacyLedger
from fl_dp.clients import numpy_client_app, trained_names
from fl_dp.model_arrays import get_arrays
from fl_dp.option_errors import OptionError
from fl_dp.plan import BufferedPlan
from fl_dp.strategies import DPFedAvg, DPFedBuff

KINDS = [kind for kind in PLANS if kind != "distributed_records"]
FROZEN = np.arange(4.0)
SCALE = np.array([3.0, 1e6])  # means and deviations in a buffer


class Adds(NumPyClient):
    """Moves every array, also those that it should leave alone."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return [array + 0.1 for array in parameters], 1, {}


def model() -> ArrayRecord:
    return ArrayRecord(
        {
            "frozen.weight": Array(FROZEN),
            "head.weight": Array(np.zeros(6)),
            "head.bias": Array(np.zeros(2)),
            "scale": Array(SCALE),
        }
    )


def released(kind: str, folder: Path, trained: tuple[str, ...] | None) -> ArrayRecord:
    """The model after a training of two rounds."""
    plan = replace(PLANS[kind](), trained=trained).calibrated()
    update = [np.full(array.shape, 0.1) for array in model().to_numpy_ndarrays()]
    answer: Any = answer_with_app(numpy_client_app(lambda context: Adds()), NODES)
    if plan.masked:
        answer = SecureNodes(folder, [[update]] * NODES)
    strategy_class = DPFedBuff if isinstance(plan, BufferedPlan) else DPFedAvg
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = strategy_class(plan=plan, ledger=ledger)
        result = strategy.start(LocalGrid(answer, NODES), model(), timeout=30.0)
        assert ledger.plan.trained == trained
    return result.arrays


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_trained_stays_to_the_bit_and_the_rest_moves(kind: str, tmp_path: Path) -> None:
    arrays = released(kind, tmp_path, ("head.*",))
    assert list(arrays) == list(model())
    np.testing.assert_array_equal(arrays["frozen.weight"].numpy(), FROZEN)
    np.testing.assert_array_equal(arrays["scale"].numpy(), SCALE)
    assert (arrays["head.weight"].numpy() != 0.0).all()
    assert (arrays["head.bias"].numpy() != 0.0).all()


def test_by_default_every_floating_point_array_is_released(tmp_path: Path) -> None:
    """The power of the test above: without names the frozen part gets noise."""
    arrays = released("central", tmp_path, None)
    assert (arrays["frozen.weight"].numpy() != FROZEN).all()


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    plan = replace(PLANS["central"](), trained=("haed.*",)).calibrated()
    answer = answer_with_app(numpy_client_app(lambda context: Adds()), NODES)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        with pytest.raises(ValueError, match=r"'haed\.\*' matches none .* frozen.weight, head"):
            DPFedAvg(plan=plan, ledger=ledger).start(LocalGrid(answer, NODES), model())
        assert ledger.rounds_spent == 0


def test_no_names_at_all_are_refused() -> None:
    with pytest.raises(OptionError, match="trained names no array"):
        replace(PLANS["central"](), trained=())


def test_running_statistics_that_are_not_trained_are_constants(tmp_path: Path) -> None:
    arrays = ArrayRecord(
        {
            "head.weight": Array(np.zeros(2)),
            "norm.running_mean": Array(np.zeros(2)),
            "norm.running_var": Array(np.ones(2)),
        }
    )
    strategy = DPFedAvg.with_budget(
        epsilon=8.0,
        rounds=1,
        num_clients=NODES,
        sampling_rate=1.0,
        clipping_norm=1.0,
        ledger=tmp_path / "ledger.db",
        trained=("head.weight",),
    )
    answer = answer_with_app(numpy_client_app(lambda context: Adds()), NODES)
    result = strategy.start(LocalGrid(answer, NODES), arrays)
    np.testing.assert_array_equal(result.arrays["norm.running_var"].numpy(), np.ones(2))


@pytest.mark.parametrize("number", [-np.inf, np.nan])
@pytest.mark.parametrize("weight_cap", [None, 10.0])
def test_what_is_not_trained_may_be_infinite_or_missing(
    number: float, weight_cap: float | None, tmp_path: Path
) -> None:
    """As masks of attention are, which a state_dict holds. Before, no training began."""
    arrays = ArrayRecord(
        {"head.weight": Array(np.zeros(2)), "mask": Array(np.array([0.0, number]))}
    )
    strategy = budgeted(tmp_path, trained=("head.weight",), weight_cap=weight_cap)
    answer = answer_with_app(numpy_client_app(lambda context: Adds()), 4)
    result = strategy.start(LocalGrid(answer, 4), arrays)
    np.testing.assert_array_equal(result.arrays["mask"].numpy(), arrays["mask"].numpy())
    assert (result.arrays["head.weight"].numpy() != 0.0).all()


def test_what_is_trained_may_not() -> None:
    with pytest.raises(UnfitModel, match=r"'head\.weight' of the first model holds a value that"):
        require_finite(ArrayRecord({"head.weight": Array(np.array([0.0, np.inf]))}))


def test_a_name_with_brackets_is_itself(tmp_path: Path) -> None:
    name = "['params']['Dense_0']['kernel']"  # as JAX writes it
    arrays = ArrayRecord({name: Array(np.zeros(3)), "scale": Array(SCALE)})
    strategy = budgeted(tmp_path, trained=(name,))
    answer = answer_with_app(numpy_client_app(lambda context: Adds()), 4)
    result = strategy.start(LocalGrid(answer, 4), arrays)
    assert (result.arrays[name].numpy() != 0.0).all()
    np.testing.assert_array_equal(result.arrays["scale"].numpy(), SCALE)


def tied(*, bias: float) -> ArrayRecord:
    """A `state_dict` of two layers of one weight, and of biases that begin alike."""
    weight = np.arange(6.0).reshape(2, 3)
    return ArrayRecord(
        {
            "encoder.weight": Array(weight),
            "encoder.bias": Array(np.full(2, bias)),
            "decoder.weight": Array(weight),
            "decoder.bias": Array(np.full(2, bias)),
        }
    )


def test_a_tied_tensor_s_other_name_would_undo_each_round(tmp_path: Path) -> None:
    """Before, a plain app that loads both began all rounds with the first weights."""
    strategy = budgeted(tmp_path, trained=("encoder.*",))
    answer = answer_with_app(numpy_client_app(lambda context: Adds()), 4)
    with pytest.raises(UnfitModel, match=r"'decoder.weight' .* numbers of 'encoder.weight'"):
        strategy.start(LocalGrid(answer, 4), tied(bias=0.0))
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_spent == 0


def test_equal_biases_and_both_names_are_no_tied_rest(tmp_path: Path) -> None:
    strategy = budgeted(tmp_path, trained=("*.weight", "encoder.bias"))
    answer = answer_with_app(numpy_client_app(lambda context: Adds()), 4)
    result = strategy.start(LocalGrid(answer, 4), tied(bias=1.0))
    np.testing.assert_array_equal(result.arrays["decoder.bias"].numpy(), np.ones(2))


# An app's own description of its module is compared before anything is charged.


def module() -> nn.Module:
    """A frozen part, a head, and a buffer, under the names of `model`."""
    made = nn.Module()
    made.frozen = nn.Linear(4, 1, bias=False).requires_grad_(False)
    made.head = nn.Linear(3, 2)
    made.register_buffer("scale", torch.tensor(SCALE))
    return made


def started(folder: Path, trained: tuple[str, ...] | None) -> PrivacyLedger:
    """A training whose app tells its module."""
    plan = replace(PLANS["central"](), trained=trained).calibrated()
    app = numpy_client_app(lambda context: Adds(), arrays_fn=lambda context, config: module())
    first = ArrayRecord({name: Array(values) for name, values in get_arrays(module()).items()})
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        strategy.start(LocalGrid(answer_with_app(app, NODES), NODES), first)
        return ledger


def test_a_module_names_what_it_trains() -> None:
    assert trained_names(module()) == ("head.weight", "head.bias")


def test_an_app_that_trains_what_is_released_trains(tmp_path: Path) -> None:
    assert started(tmp_path, trained_names(module())).rounds_committed == 2


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (None, "does not train 'frozen.weight', which would get noise"),
        (("head.weight",), "trains 'head.bias', which is not released"),
    ],
)
def test_an_app_that_trains_something_else_is_refused_uncharged(
    trained: tuple[str, ...] | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RehearsalFailed, match=words):
        started(tmp_path, trained)
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_spent == 0


def test_a_model_of_empty_arrays_alone_ends_in_a_line(tmp_path: Path) -> None:
    plan = PLANS["central"]().calibrated()
    empty = ArrayRecord({"w": Array(np.zeros((0, 3)))})
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        with pytest.raises(ValueError, match="are all empty"):
            strategy.start(LocalGrid(lambda message, node: None, NODES), empty)
        assert ledger.rounds_spent == 0
