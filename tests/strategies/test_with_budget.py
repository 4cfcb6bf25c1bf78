"""One line around a strategy: what may be left out, what a subclass adds, what is misspelt."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import calibrated_plan
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from local_grid import LocalGrid, answer_with_update
from scipy.special import ndtr

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NeighboringRelation, PoissonSampling
from fl_dp.mechanisms import AdaptiveClipping, ScalarMetric
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.strategies import DPFedAvg, LawSelection

ARGUMENTS: dict[str, Any] = {
    "epsilon": 4.0,
    "rounds": 3,
    "num_clients": 20,
    "sampling_rate": 0.5,
    "clipping_norm": 1.0,
}


def make(folder: Path, kind: type[DPFedAvg] = DPFedAvg, **changes: Any) -> DPFedAvg:
    arguments = ARGUMENTS | {"ledger": folder / "ledger.db"} | changes
    return kind.with_budget(FedAvg(), **arguments)


class Tagged(DPFedAvg):
    """A subclass with arguments of its own."""

    def __init__(self, *args: Any, tag: str = "none", **options: Any) -> None:
        super().__init__(*args, **options)
        self.tag = tag


def test_a_subclass_s_own_arguments_are_passed_on(tmp_path: Path) -> None:
    made = make(tmp_path, Tagged, tag="clinic", roster_timeout=5.0, units_per_node=1)
    assert isinstance(made, Tagged)
    assert made.tag == "clinic"


def test_an_argument_of_a_subclass_may_be_named_as_ours_that_catches_the_rest(
    tmp_path: Path,
) -> None:
    class WithOptions(DPFedAvg):
        def __init__(self, *args: Any, options: str, **others: Any) -> None:
            super().__init__(*args, **others)
            self.chosen = options

    made: Any = make(tmp_path, WithOptions, options="mine")
    assert made.chosen == "mine"


MISSPELT = {
    "samplig_rate": "did you mean 'sampling_rate'",
    "tagg": "did you mean 'tag'",
    "plan": "it takes after_round, ",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_typo_names_the_nearest_right_word_and_leaves_no_ledger(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=MISSPELT[name]) as refused:
        make(tmp_path, Tagged, **{name: 1})
    assert str(refused.value).startswith(f"Tagged.with_budget has no argument '{name}'")
    assert not list(tmp_path.iterdir())


WRONG = {
    "epsilon": ("4", "a number"),
    "rounds": (3.0, "an integer"),
    "ledger": (None, "a text or Path"),
    "neighboring_relation": ("zeroed", "one of .*'zero-out'"),
    "after_round": (3, "a function or None"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_the_wrong_type_is_one_line(name: str, tmp_path: Path) -> None:
    value, wanted = WRONG[name]
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(TypeError, match=f"^{name} must be .*{wanted}") as refused:
        make(tmp_path, **wrong)
    assert repr(value) in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"sampling_rate": None}, "neither"),
        ({"selection": LawSelection(PoissonSampling(sampling_rate=0.5))}, "both"),
    ],
)
def test_who_takes_part_is_said_once(changes: dict[str, Any], got: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"either sampling_rate or selection, got {got}"):
        make(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_a_strategy_that_can_t_be_used_leaves_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="can't be the server optimizer"):
        DPFedAvg.with_budget("fedavg", ledger=tmp_path / "ledger.db", **ARGUMENTS)  # type: ignore[arg-type]  # on purpose
    assert not list(tmp_path.iterdir())


def test_an_argument_that_both_the_plan_and_a_subclass_have_is_an_error(tmp_path: Path) -> None:
    class Scheduled(DPFedAvg):
        def __init__(self, *args: Any, unit: str = "day", **options: Any) -> None:
            super().__init__(*args, **options)

    with pytest.raises(TypeError, match="'unit' is an argument of the plan and of Scheduled"):
        make(tmp_path, Scheduled, unit="week")
    with pytest.raises(TypeError, match="'unit' is an argument of the plan and of Scheduled"):
        make(tmp_path, Scheduled)  # nobody could tell whose `unit` was left out
    assert not list(tmp_path.iterdir())


def test_what_only_a_plan_takes_is_sent_there(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'schedule': give it to a plan, and the plan to Tagged\("):
        make(tmp_path, Tagged, schedule=None)
    assert not list(tmp_path.iterdir())


def test_the_line_plans_as_a_plan_of_the_same_words(tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "neighboring_relation": NeighboringRelation.REPLACE_ONE,
        "unit": "record",
        "units_per_node": 1,
        "metrics": (ScalarMetric(name="loss", low=0.0, high=5.0),),
        "contribution_check": False,
    }
    size = {name: each for name, each in ARGUMENTS.items() if name != "epsilon"}
    budget = PrivacyBudget(epsilon=ARGUMENTS["epsilon"], delta=1e-3)
    made = make(tmp_path, delta=1e-3, **words)
    assert made.plan == calibrated_plan(budget, **size, **words)


# A clipping norm that was left out.


def test_a_clipping_norm_that_is_left_out_is_adapted_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flwr")
    made = make(tmp_path, clipping_norm=None, rounds=2)
    assert made.plan is not None
    assert made.plan.release.clipping == DEFAULT_CLIPPING
    assert caplog.text.count("clipping_norm was left out") == 1
    updates = [{"w": np.full(4, 5.0)}] * 20
    made.start(
        LocalGrid(answer_with_update(updates), 20),
        ArrayRecord({"w": Array(np.zeros(4))}),
        num_rounds=2,
    )
    assert made.clipping_norms is not None
    assert made.clipping_norms[0] > DEFAULT_CLIPPING.norm  # 10 is far above it
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.plan == made.plan


@pytest.mark.parametrize(("median", "rounds"), [(0.01, 10), (1.0, 10), (100.0, 30)])
def test_the_default_finds_norms_from_a_hundredth_to_a_hundred_in_a_short_training(
    median: float, rounds: int
) -> None:
    # Of log-normal norms of spread 0.4, without chance: the rule itself.
    norm = DEFAULT_CLIPPING.norm
    for _ in range(rounds):
        unclipped = float(ndtr(math.log(norm / median) / 0.4))
        norm = DEFAULT_CLIPPING.next_norm(
            norm, noisy_bit_sum=100.0 * (unclipped - 0.5), denominator=100.0
        )
    assert norm == pytest.approx(median, rel=0.25)


# A rule of one's own.


class Gentle(AdaptiveClipping):
    """A subclass, which the ledger would store as its parent."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (0.5, "write clipping_norm=0.5"),
        (Gentle(), r"itself, got Gentle: see docs/extending\.md#clipping"),
        (object(), r"itself, got object: see docs/extending\.md#clipping"),
    ],
)
def test_a_clipping_rule_of_one_s_own_is_refused_with_the_page(
    given: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=said):
        make(tmp_path, clipping_norm=None, clipping=given)
    assert not list(tmp_path.iterdir())
