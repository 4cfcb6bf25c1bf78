"""The price of privacy, taken apart: steps that each add one thing, and prices that add up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.settings import Settings
from fl_dp.lab.price_steps import points, prices, steps_to


def steps_of(*asked: str) -> list[Settings]:
    steps = steps_to(compose_settings(asked))
    return [compose_settings([*step.overrides(asked), "seed=3"]) for step in steps]


def test_each_step_adds_one_thing() -> None:
    everybody, sampled, clipped, asked = steps_of(
        "clipping.norm=0.2", "privacy.epsilon=2", "rounds=2"
    )
    assert not everybody.protects_clients and not sampled.protects_clients
    assert everybody.selection.sampling_rate == 1.0
    assert sampled.selection.sampling_rate == clipped.selection.sampling_rate == 0.25
    assert make_plan(clipped).clipping_norm == make_plan(asked).clipping_norm == 0.2
    assert make_plan(asked).budget.epsilon == 2.0


def test_noise_of_the_clipped_step_moves_nothing() -> None:
    _, _, clipped, asked = steps_of("rounds=2")
    assert make_plan(clipped).noise_multiplier < 1e-3 * make_plan(asked).noise_multiplier


def test_nothing_else_differs_between_the_steps() -> None:
    every = steps_of("task.num_clients=50", "client.epochs=2", "server_optimizer=fedadam")
    for key in ("task", "model", "client", "server_optimizer", "rounds", "seed"):
        assert len({str(getattr(settings, key)) for settings in every}) == 1, key


@pytest.mark.parametrize(
    "asked",
    [
        ["clipping=per_layer", "clipping.norms=[0.3,0.1]", "metrics.loss=[0,3]"],
        ["selection=public", "selection.participation_cap=2", "clipping=adaptive"],
        ["selection=exponential", "schedule=plateau"],
        ["schedule=custom", "schedule.weights=[1,2]", "rounds=2", "selection.coins=nodes"],
        ["weights.cap=5", "weights.capped_denominator=true", "simulation.units_per_node=1"],
        ["privacy=local"],
        ["privacy=distributed", "privacy.secure_sum.bits=20"],
        ["noise=spaced", "selection=public", "noise.separation=3", "rounds=6"],
        ["noise=cyclic", "noise.groups=2", "noise.bands=2", "rounds=6"],
        ["rounds=6", "privacy.witness_dir=/elsewhere"],
        ["selection=own_budgets", "selection.budgets=[1,8]", "selection.shares=[0.5,0.5]"],
    ],
    ids=" ".join,
)
def test_steps_to_every_kind_of_training_can_be_composed(asked: Sequence[str]) -> None:
    everybody, sampled, clipped, last = steps_of(*asked)
    assert (everybody.privacy.mode, sampled.privacy.mode) == ("none", "none")
    assert clipped.privacy.mode == "central"
    assert last.privacy.mode == compose_settings(asked).privacy.mode


@pytest.mark.parametrize("num_clients", [2, 5000])
def test_the_least_noise_fits_the_grid_of_any_roster(num_clients: int) -> None:
    *_, clipped, _ = steps_of(f"task.num_clients={num_clients}", "rounds=2", "privacy.delta=1e-5")
    make_plan(clipped)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["privacy=none"], "privacy=none costs nothing: write what is to be priced"),
        (["privacy=dp_sgd"], "the price of DP-SGD inside clients is not taken apart"),
        (["dp_sgd=on"], "the price of DP-SGD inside clients is not taken apart"),
        (["privacy=local", "privacy.scheme=laplace"], "privacy.scheme=laplace bounds another norm"),
        (["privacy=distributed_records"], "prices are those of a promise to clients"),
    ],
)
def test_what_has_no_price_is_refused(asked: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steps_of(*asked)


def test_prices_are_differences_seed_by_seed_and_add_up() -> None:
    found = prices({"all": [0.9, 0.8], "+ cohorts": [0.85, 0.78], "+ noise": [0.7, 0.6]})
    assert [each.cost for each in found] == [None, pytest.approx(0.035), pytest.approx(0.165)]
    assert list(found[1].costs) == pytest.approx([0.05, 0.02])
    whole = sum(each.cost for each in found if each.cost is not None)
    assert whole == pytest.approx(found[0].accuracy - found[-1].accuracy)
    assert [each.is_asked for each in found] == [False, False, True]


def test_a_price_over_other_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="the same seeds"):
        prices({"all": [0.9, 0.8], "+ noise": [0.7]})


def test_a_price_is_told_in_points() -> None:
    assert points(0.0345, 0.002) == "+3.5 ± 0.2"
    assert points(-0.01) == "-1.0"  # less noise can also cost: then it is a gain
    assert points(None) == ""


def test_one_seed_has_no_spread() -> None:
    (first, last) = prices({"all": [0.9], "+ noise": [0.7]})
    assert (first.to_dict()["accuracy_std"], last.to_dict()["cost_std"]) == (None, None)
