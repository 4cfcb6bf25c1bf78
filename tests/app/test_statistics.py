"""`fl-dp stats`: what is asked, what it costs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_trainings import grid_of, real_nodes
from click.testing import Result
from typer.testing import CliRunner

from fl_dp.app.compose import compose_settings
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.statistics import answer_statistic, statistic_plan
from fl_dp.app.workload import dataset_of, training_rows
from fl_dp.codec import encode
from fl_dp.commands.app import app
from fl_dp.commands.stats import _show
from fl_dp.guarantee import Against, Guarantee
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import OptionError
from fl_dp.statistics import Answer, Count

CLIENTS = 6
SURE = ["privacy.epsilon=500", f"task.num_clients={CLIENTS}"]
PIXEL = ["statistic.values=records.20", "statistic.low=-2", "statistic.high=2"]


def answered(folder: Path, *overrides: str) -> tuple[Answer, dict[str, Any]]:
    settings = compose_settings([*SURE, *overrides, f"output_dir={folder}", "run_name=run"])
    if settings.privacy.mode == "distributed":
        grid = real_nodes(folder, CLIENTS, dp_unit_name=[f"site-{n}" for n in range(CLIENTS)])
    else:
        grid = grid_of(settings)
    answer = answer_statistic(grid, settings, run_id="1")
    return answer, json.loads(RunFolder(folder / "run").statistic.read_text())


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["stats", *arguments])


def pixels() -> list[Any]:
    """One pixel of each client's records."""
    settings = compose_settings(SURE)
    dataset = dataset_of(settings)
    return [
        dataset.features(rows).reshape(len(rows), -1)[:, 20] for rows in training_rows(settings)
    ]


def shares_of_labels() -> Any:
    """Share of each label on each client, summed over clients."""
    settings = compose_settings(SURE)
    labels = [dataset_of(settings).labels(rows) for rows in training_rows(settings)]
    return sum(np.bincount(mine, minlength=10) / len(mine) for mine in labels)


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_a_histogram_of_labels_is_of_the_average_client(tmp_path: Path, mode: str) -> None:
    answer, document = answered(tmp_path, "statistic.query=histogram", f"privacy={mode}")
    np.testing.assert_allclose(answer.value, shares_of_labels(), atol=0.5)
    assert [name for name, _, _ in document["rows"]] == [str(label) for label in range(10)]
    assert 0 < document["epsilon"] <= 500 * (1 + 1e-9)
    statement = RunFolder(tmp_path / "run").read_statement()
    assert min(statement["epsilon"].values()) == pytest.approx(document["epsilon"], rel=1e-6)
    if mode == "central":
        return
    # Each node charges itself what the plan says.
    asked = ["statistic.query=histogram", "privacy=distributed"]
    _, plan = statistic_plan(compose_settings([*SURE, *asked]))
    ((planned, _),) = plan.other_releases
    assert isinstance(planned, GaussianEvent)
    for node in range(CLIENTS):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as ledger:
            ((event, count),) = ledger.spendings[0].history
        assert isinstance(event, GaussianEvent) and count == 1
        assert event.noise_multiplier == pytest.approx(planned.noise_multiplier, rel=1e-9)


def test_a_mean_of_a_feature_comes_with_its_deviation(tmp_path: Path) -> None:
    answer, document = answered(tmp_path, "statistic.query=mean", *PIXEL)
    means = [np.mean(np.clip(mine, -2, 2)) for mine in pixels()]
    assert float(answer["mean"].value[0]) == pytest.approx(np.mean(means), abs=0.2)
    assert [name for name, _, _ in document["rows"]] == ["mean", "std", "count"]


def test_quantiles_of_a_feature(tmp_path: Path) -> None:
    answer, _ = answered(tmp_path, "statistic.query=quantiles", *PIXEL, "statistic.bins=8")
    expected = np.quantile(np.concatenate(pixels()), (0.25, 0.5, 0.75))
    np.testing.assert_allclose(answer.value, np.clip(expected, -2, 2), atol=1.0)


def test_a_count_is_of_records_up_to_the_cap(tmp_path: Path) -> None:
    answer, _ = answered(tmp_path, "statistic.query=count", "statistic.max_records=100")
    assert float(answer.value) == pytest.approx(100 * CLIENTS, abs=10)


def test_the_most_frequent_labels_are_named(tmp_path: Path) -> None:
    answer, document = answered(tmp_path, "statistic.query=top", "statistic.top=2")
    np.testing.assert_allclose(answer.value, shares_of_labels(), atol=0.5)
    largest = np.argsort(-answer.value)[:2]
    assert [(int(name), value) for name, value, _ in document["rows"]] == [
        (label, answer.value[label]) for label in largest
    ]


DRAFT = """\
label_column: outcome
classes: [ill, well]
client_column: clinic
columns:
  age: {kind: integer, range: [0, 100], missing: [-999]}
  sex: {kind: category, categories: [f, m], missing: ['*']}
  weight: {kind: number, range: , missing: []}
  note: {kind: words}
"""


@pytest.fixture
def hospitals(tmp_path: Path) -> list[str]:
    """Settings of a table of six clinics, with gaps and a schema that has a blank."""
    cells = ["20,f,well", "-999,m,ill", "60,,well", "40,unknown,well"]
    lines = [f"{clinic},{cell},70,calm" for clinic in range(CLIENTS) for cell in cells]
    for split in ("train", "test"):
        text = "\n".join(["clinic,age,sex,outcome,weight,note", *lines]) + "\n"
        (tmp_path / f"{split}.csv").write_text(text)
    (tmp_path / "schema.yaml").write_text(DRAFT)
    return ["task=csv", f"task.data_dir={tmp_path}", "task.partition=natural"]


@pytest.mark.parametrize(
    ("values", "query", "expected"),
    [
        ("records.sex", "histogram", {"f": 1.5, "m": 1.5, "(missing)": 3.0}),
        ("records.sex", "top", {"(missing)": 3.0}),
        ("records.age", "mean", {"mean": 40.0}),
        ("records.age", "histogram", {"0 to 10": 0.0, "20 to 30": 2.0, "60 to 70": 2.0}),
        ("missing", "mean", {"mean of age": 0.25, "mean of sex": 0.5}),
    ],
)
def test_columns_of_a_schema_are_asked_by_name_with_their_gaps_beside_blanks(
    tmp_path: Path, hospitals: list[str], values: str, query: str, expected: dict[str, float]
) -> None:
    asked = [f"statistic.query={query}", f"statistic.values={values}", "statistic.top=1"]
    _, document = answered(tmp_path / "out", *hospitals, *asked)
    rows = {name: (value, error) for name, value, error in document["rows"]}
    for name, wanted in expected.items():
        value, error = rows[name]
        assert value == pytest.approx(wanted, abs=8.0 * error)
        assert 8.0 * error < 0.2 * max(expected.values())  # so the answer says something


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["histogram", "records.weight"], "'weight', or its facts are blank: write public"),
        (["mean", "records.sex"], "records.sex is a category"),
        (["histogram", "records.note"], "records.note is free text"),
        (["top", "records.age"], "categories of a schema"),
        (["histogram", "missing"], "statistic.query=mean"),
        (["mean", "records.sex", "task=digits"], "a schema describes, and none describes"),
        (["mean", "outcome"], "a column of the schema such as records.age, or missing"),
    ],
)
def test_what_a_column_can_not_be_asked_is_one_line(
    hospitals: list[str], arguments: list[str], says: str
) -> None:
    of_table = [] if "task=digits" in arguments else [*hospitals, f"task.num_clients={CLIENTS}"]
    result = call(*arguments, *of_table, "--price")
    assert result.exit_code == 2, result.stdout
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert says in error


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_it_costs_no_more_than_was_asked_for(mode: str) -> None:
    asked = ["privacy.epsilon=1", "privacy.delta=1e-5", f"privacy={mode}", "task.num_clients=30"]
    settings = compose_settings(["statistic.query=mean", *PIXEL, *asked])
    _, plan = statistic_plan(settings)
    assert 0.9 < plan.epsilon().best <= 1.0 * (1 + 1e-9)
    assert plan.budget.epsilon <= 1.0 * (1 + 1e-8)


def test_the_price_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("histogram", "labels", "privacy.epsilon=1", "privacy=distributed", "--price")
    assert result.exit_code == 0, result.stderr
    assert "It would cost epsilon 1 at delta" in result.stdout
    assert "by a secure sum" in result.stdout
    assert not list(tmp_path.iterdir())
    document = json.loads(call("count", "--price", "--json").stdout)
    assert document["epsilon"] <= 8.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mean", "records"], "write statistic.low and statistic.high"),
        (["count", "labels", "records"], "one statistic is of one kind of values"),
        (["count", "resume=runs/x"], "leave resume out"),
        (["top", "records"], "write statistic.values=labels"),
        (["quantiles", "records", "statistic.low=0", "statistic.high=1"], "records.0"),
        (
            ["mean", "records.64", "statistic.low=0", "statistic.high=1"],
            "records.63 or a smaller one",
        ),
        (["count", "privacy=local"], "another promise has it: privacy=central or distributed"),
        (["count", "privacy=distributed", "task.num_clients=2"], "at least 3 nodes"),
    ],
)
def test_what_can_not_be_asked_is_one_line(arguments: list[str], says: str) -> None:
    result = call(*arguments, "--price")
    assert result.exit_code == 2, result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert says in errors[0]


def test_settings_of_a_statistic_that_nobody_asks_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"write statistic\.query too"):
        compose_settings(["statistic.low=0", "statistic.high=1"])


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_training_is_not_started_by_a_statistic(command: str) -> None:
    result = CliRunner().invoke(app, [command, "statistic.query=count"])
    assert result.exit_code == 2
    assert "`fl-dp stats count`" in result.stderr


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
def test_a_statistic_by_a_secure_sum_through_flowers_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app,
        [
            "stats",
            "histogram",
            "labels",
            "--json",
            "simulation.engine=flower",
            "simulation.workers=1",
            "privacy=distributed",
            "privacy.epsilon=500",
            "task.num_clients=6",
            "run_name=s",
        ],
    )
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    found = [value for _, value, _ in document["rows"]]
    np.testing.assert_allclose(found, shares_of_labels(), atol=0.5)
    folder = tmp_path / "runs" / "s"
    assert Path(document["path"]) == folder
    assert len(list((folder / "nodes").glob("node-*.db"))) == 6


def test_an_answer_is_shown_as_a_table_with_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = encode(Count())
    answer = {"estimates": {"count": {"error_is": "a standard deviation"}}, "explanation": "one"}
    document = {"query": query, "values": "labels", "rows": [["", 41.5, 2.0]], "answer": answer}
    guarantee = Guarantee(
        epsilon=1.0, delta=1e-5, unit="client", neighbours="zero-out", against=Against.MODELS
    )
    document |= {"mode": "central", "guarantee": guarantee.to_dict(), "unit": "one client"}
    _show(document, tmp_path)
    shown = capsys.readouterr().out
    assert f"Cost: {guarantee}, for one client" in " ".join(shown.split())
    assert "count of labels" in shown
    assert "41.5" in shown


@pytest.mark.parametrize(
    ("query", "wrong", "text"),
    [
        ("histogram", "statistic.edges=[1,0]", "must be strictly increasing, got 1.0 before 0.0"),
        ("quantiles", "statistic.probabilities=[2]", "must lie between 0 and 1, ends excluded"),
        ("quantiles", "statistic.probabilities=[]", "is empty: give at least one number"),
        ("count", "statistic.max_records=99999999999999999", "must be at most 9007199254740992"),
    ],
)
def test_an_error_of_a_query_names_its_key(query: str, wrong: str, text: str) -> None:
    key = wrong.partition("=")[0]
    ends = [] if key == "statistic.edges" else ["statistic.low=0", "statistic.high=1"]
    with pytest.raises(OptionError, match=f"^{key} {text}") as refused:
        statistic_plan(compose_settings([f"statistic.query={query}", wrong, *ends]))
    assert refused.value.option == key
