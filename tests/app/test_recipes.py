"""A task with a model, and a promise, bring settings that fit; what somebody wrote wins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fl_dp.app import task_client
from fl_dp.app.cells import expand
from fl_dp.app.compose import compose_settings
from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.planning import make_plan
from fl_dp.app.recipes import entries, recipe_of, with_recipe
from fl_dp.app.server import train

FASHION = ["task=fashion_mnist"]


def brought(*overrides: str) -> list[str]:
    return [each.partition("=")[0] for each in recipe_of(overrides).overrides]


def test_a_task_does_not_keep_the_steps_of_digits() -> None:
    digits, fashion = compose_settings([]), compose_settings(FASHION)
    assert digits.client.learning_rate == 2.0
    assert fashion.client.learning_rate == 0.1
    assert (fashion.rounds, fashion.selection.sampling_rate) == (60, 0.1)


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("client.learning_rate=2.0", "client.learning_rate"),
        ("selection=fixed", "selection.sampling_rate"),
    ],
)
def test_what_somebody_wrote_wins_even_where_it_is_the_default(written: str, left: str) -> None:
    assert left in brought(*FASHION)
    assert left not in brought(*FASHION, written)
    assert len(brought(*FASHION, written)) == len(brought(*FASHION)) - 1


def test_what_an_experiment_says_wins() -> None:
    assert brought("experiment=privacy_levels") == []
    assert "rounds" not in brought("experiment=privacy_levels", *FASHION)
    assert compose_settings(["experiment=records"]).client.learning_rate == 0.25


@pytest.mark.slow
def test_what_was_measured_before_there_were_recipes_keeps_its_settings() -> None:
    _, cells = expand(["experiment=privacy_levels", "seed=0"])
    assert cells
    for cell in cells:
        assert recipe_of(cell.overrides).overrides == (), cell.curve


def test_a_run_that_continues_is_brought_nothing() -> None:
    assert recipe_of([*FASHION, "resume=/runs/one"]).notes == ()


@pytest.mark.parametrize("promise", ["local", "distributed"])
def test_a_promise_can_be_planned_as_it_stands(promise: str) -> None:
    settings = compose_settings([f"privacy={promise}"])
    assert make_plan(settings).sampling.visible
    [line] = recipe_of([f"privacy={promise}"]).notes
    assert "selection.sampling_rate=1 rounds=10" in line and "what you write wins" in line


@pytest.mark.parametrize("written", ["selection=public", "selection.coins_at_nodes=true"])
def test_a_selection_of_one_s_own_is_not_mixed_with_that_of_a_promise(written: str) -> None:
    assert "selection.sampling_rate" not in brought("privacy=distributed", written)


def test_a_pair_that_nobody_tuned_says_so_in_one_line() -> None:
    [line] = recipe_of(["task=shakespeare", "model=gru"]).notes
    assert line.startswith("task=shakespeare with model=gru has no tuned settings: client.learning")
    assert "fl-dp tune" in line
    assert recipe_of(["task=shakespeare", "model=gru", "client.learning_rate=1"]).notes == ()


def test_overrides_that_are_sent_say_nothing_a_second_time() -> None:
    sent = with_recipe(["task=shakespeare", "model=gru"])
    assert recipe_of(sent).notes == ()
    assert with_recipe(sent) == sent


def test_what_was_tuned_for_a_curator_is_not_brought_under_another_promise() -> None:
    steps = ["client.learning_rate", "client.epochs"]
    everybody = [*steps, "selection.sampling_rate", "rounds"]
    assert brought(*FASHION, "privacy=none") == brought(*FASHION) == everybody
    assert brought(*FASHION, "privacy=distributed") == everybody  # the last two are its own
    settings = compose_settings([*FASHION, "privacy=distributed"])
    assert (settings.selection.sampling_rate, settings.rounds) == (1.0, 10)
    assert brought(*FASHION, "privacy=local", "selection=public", "rounds=9") == [
        *steps,
        "server_optimizer.learning_rate",
    ]
    assert brought(*FASHION, "privacy=dp_sgd") == []
    assert brought(*FASHION, OF_RECORDS) == []


def test_only_who_uses_a_client_step_is_told_that_it_was_not_tuned() -> None:
    [line] = recipe_of([*FASHION, "privacy=dp_sgd"]).notes
    assert "under privacy=dp_sgd has no tuned settings: client.learning_rate=2.0" in line
    untuned = ["task=shakespeare", "model=gru"]
    assert recipe_of([*untuned, "statistic.query=count", "privacy=distributed"]).notes == ()
    assert brought("statistic.query=count", "privacy=distributed") == []


@pytest.mark.parametrize("privacy", ["central", "none", "distributed_records", "local"])
def test_texts_bring_their_encoder_to_a_model_of_numbers_unless_one_is_written(
    privacy: str,
) -> None:
    task = ["task=movies", f"privacy={privacy}"]
    assert compose_settings([*with_recipe(task)]).features.name == "words"
    for written in ("features=none", "features.width=9", "model=gru"):
        assert "features" not in brought(*task, written)
    rates = {
        features: compose_settings([*with_recipe([*task, features])]).server_optimizer.learning_rate
        for features in ("features=words", "features=sentences")
    }
    of_records = {"features=words": 5.0, "features=sentences": 2.0}
    assert (rates == of_records) == (privacy == "distributed_records")


SCHEMA = """
label_column: outcome
classes: [yes, no]
columns: {age: {kind: number, range: [0, 110]}}
"""
OF_RECORDS = "privacy=distributed_records"
STEPS = ["clipping.norm", "selection.sampling_rate", "server_optimizer.learning_rate", "rounds"]


@pytest.mark.parametrize("task", ["csv", "parquet", "adult", "breast_cancer", "lending"])
def test_a_table_brings_steps_of_records_together_or_not_at_all(task: str) -> None:
    table = [f"task={task}", OF_RECORDS]
    assert brought(*table) == [*STEPS, "privacy.secure_sum.reply_after"]
    assert brought(*table, "privacy.secure_sum.reply_after=5") == STEPS
    assert brought(*table, "rounds=9") == [*STEPS[:-1], "privacy.secure_sum.reply_after"]
    for written in ("clipping.norm=2", "selection=poisson", "server_optimizer=fedadam"):
        assert brought(*table, written) == []
    assert recipe_of(with_recipe(table)).notes == ()
    settings = compose_settings([*table, *(["task.data_dir=/data"] if task == "csv" else [])])
    assert settings.selection.sampling_rate == settings.clipping.norm == 1.0
    assert settings.privacy.option == "distributed_records"
    assert settings.privacy.secure_sum.reply_after is None


def test_a_table_in_the_unit_ball_takes_larger_steps_than_one_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    beside = ["task=csv", f"task.data_dir={tmp_path}", OF_RECORDS]
    assert recipe_of(beside).overrides == recipe_of(["task=adult", OF_RECORDS]).overrides
    plain = [*beside, "task.columns=[age]"]  # which are then used as they are
    assert recipe_of(plain).overrides == recipe_of(["task=csv", OF_RECORDS]).overrides
    assert recipe_of(plain).overrides != recipe_of(beside).overrides
    assert brought(*beside[:2]) == ["client.learning_rate"]
    shared = recipe_of([*beside[:2], "privacy=distributed"]).overrides
    assert {"client.learning_rate=3.0", "server_optimizer.learning_rate=2.0"} < set(shared)
    assert "has no tuned settings" in recipe_of(["task=csv"]).notes[0]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["task=csv", "model=mlp"],
        ["task=csv", "task.label_range=[0,5]"],
        ["task=csv", "clipping.norm=2"],
        ["task=shakespeare", "model=gru"],
    ],
)
def test_steps_of_records_that_nobody_tuned_say_so_in_one_line(overrides: list[str]) -> None:
    [line] = recipe_of([*overrides, OF_RECORDS]).notes
    assert "under privacy=distributed_records has no tuned settings: server_opt" in line
    assert recipe_of([*overrides, OF_RECORDS, "server_optimizer.learning_rate=2"]).notes == ()
    assert recipe_of(with_recipe([*overrides, OF_RECORDS])).notes == ()
    assert recipe_of([*overrides, OF_RECORDS, "statistic.query=count"]).notes == ()


# On the public test part, at epsilon 8 and the default delta: a tenth or less below what was
# measured on the validation part (docs/configuration.md).
REACHED = {
    ("digits", "logistic"): 0.88,
    ("digits", "mlp"): 0.86,
    ("digits", "cnn"): 0.83,
    ("breast_cancer", "logistic"): 0.90,
    ("breast_cancer", "mlp"): 0.88,
    ("adult", "logistic"): 0.81,
    ("adult", "mlp"): 0.81,
    ("fashion_mnist", "logistic"): 0.78,
    ("fashion_mnist", "mlp"): 0.78,
    ("fashion_mnist", "cnn"): 0.67,
    ("mnist", "logistic"): 0.87,
    ("mnist", "mlp"): 0.88,
}


def trained(folder: Path, *overrides: str) -> float:
    """Train in this process, in four nodes, and return the last model's accuracy."""
    settings = compose_settings([*overrides, f"output_dir={folder}", "run_name=run"])
    settings = settings.hosting(-(-settings.task.num_clients // 4))
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    configs: list[dict[str, Any]] = [{"partition-id": node} for node in range(nodes)]
    train(InProcessGrid(task_client.app, configs), settings, run_id="run")
    last = (folder / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["test_accuracy"])


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "model"), REACHED)
def test_a_recipe_reaches_its_accuracy(task: str, model: str, tmp_path: Path) -> None:
    try:
        reached = trained(tmp_path, f"task={task}", f"model={model}")
    except FileNotFoundError:
        pytest.skip(f"`fl-dp data {task}` brings the data")
    assert reached >= REACHED[task, model]


def test_every_recipe_has_its_test_and_its_row_in_the_guide() -> None:
    tuned = dict(entries("recipes"))
    pairs = [
        (key.removeprefix("tuned."), model)
        for key, models in tuned.items()
        if key.startswith("tuned.") and key != "tuned.schema"  # which is no task
        for model in models
    ]
    assert set(pairs) == set(REACHED)
    guide = Path(__file__).resolve().parents[2].joinpath("docs/configuration.md").read_text()
    row = r"^\| `task=(\w+) model=(\w+)` \| .* \| (\.\d+)(?: .*)? \|$"
    rows = re.findall(row, guide, re.MULTILINE)
    assert [(task, model) for task, model, _ in rows] == pairs
    for task, model, measured in rows:
        assert 0.0 < float(measured) - REACHED[task, model] <= 0.11


def test_what_was_tuned_for_pixels_is_not_brought_to_features() -> None:
    pixels = recipe_of(["task=fashion_mnist"])
    vectors = recipe_of(["task=fashion_mnist", "features=scattering"])
    assert "client.learning_rate=0.1" in pixels.overrides
    assert vectors.overrides == ()
    assert "has no tuned settings" in vectors.notes[0]
