"""Runs on the same people share an account: entered, capped, summed and listed by the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_trainings import grid_of
from command_line import call, changed, json_of, said_on_stderr, train_here, use
from postgres_server import PostgresServer
from postgres_server import postgres_server as postgres_server

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.app.compose import compose_settings
from fl_dp.app.overrides import quoted
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.statistics import answer_statistic
from fl_dp.ledger import AccountLedger
from fl_dp.option_errors import OptionError
from fl_dp.promise import brief_epsilon

CLIENTS = 20


@pytest.fixture
def people(tmp_path: Path) -> list[str]:
    """Overrides of a short training on a table of people, in a folder of runs."""
    data = tmp_path / "patients"
    data.mkdir()
    generator = np.random.Generator(np.random.PCG64(1))
    for split, rows in (("train", 60), ("test", 20)):
        numbers = generator.normal(size=(rows, 2)).round(3)
        lines = [f"{a},{b},{'ill' if a > b else 'well'}" for a, b in numbers]
        (data / f"{split}.csv").write_text("\n".join(["a,b,outcome", *lines]) + "\n")
    return [
        *("task=csv", f"task.data_dir={data}", "task.label_column=outcome"),
        *("task.classes=[well,ill]", f"task.num_clients={CLIENTS}", "rounds=2", "report=none"),
        "selection.sampling_rate=1",  # the search for noise has a closed form
        f"output_dir={tmp_path / 'runs'}",
    ]


@pytest.fixture(autouse=True)
def trained_here(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, train_here)


def accounts_in(runs: Path) -> dict[str, Any]:
    """What `fl-dp budgets` says of each account."""
    listed = json_of("budgets", str(runs), "--json")["accounts"]
    return {account["name"]: account for account in listed}


def entries_of(account: dict[str, Any]) -> dict[str, float | None]:
    """Budget of each entry."""
    return {entry["name"]: entry["budget"] for entry in account["trainings"]}


def test_runs_on_one_s_own_data_add_up_without_a_key(tmp_path: Path, people: list[str]) -> None:
    for name, epsilon in (("a", 2), ("b", 3)):
        result = call("run", *people, f"run_name={name}", f"privacy.epsilon={epsilon}")
        assert result.exit_code == 0, result.stderr
    assert "patients.account.db, a new one" not in said_on_stderr(result)
    assert f"fl-dp budgets {tmp_path / 'runs'} lists" in result.stdout
    assert "compare budgets" not in result.stdout  # each further run is charged to them
    account = accounts_in(tmp_path / "runs")["patients.account.db"]
    assert entries_of(account) == {"a": 2.0, "b": 3.0}
    totals = {total["unit"]: total["epsilon"] for total in account["totals"]}
    assert 3.0 < totals["client"] <= 5.0 < totals["record"]
    in_words = f"epsilon {brief_epsilon(totals['client'])}"
    assert f"all 2 runs: {in_words} at delta" in " ".join(result.stdout.split())
    folder = RunFolder(tmp_path / "runs" / "b")
    statement = folder.read_statement()
    assert statement["account"]["epsilon"] == totals["client"]
    assert statement["delta"] == pytest.approx(account["delta"] / 6)  # half of a third
    assert "Account:" in folder.log.read_text()
    shown = json_of("ledger", str(folder.path), "--json")
    assert "privacy.json" in shown["compared"] and shown["plan"]["budget"]["epsilon"] == 3.0
    text = call("budgets", str(tmp_path / "runs")).stdout
    assert in_words in text and "no cap on epsilon" in text


def test_another_seed_deals_other_clients_whose_records_are_counted(
    tmp_path: Path, people: list[str]
) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        result = call("run", *people, f"run_name={name}", "privacy.epsilon=2", f"seed={seed}")
        assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "all 2 runs: no number for one client (zero-out), epsilon" in said
    account = accounts_in(tmp_path / "runs")["patients.account.db"]
    totals = {
        (total["unit"], total["neighboring_relation"]): total["epsilon"]
        for total in account["totals"]
    }
    assert totals["client", "zero-out"] is None and totals["record", "replace-one"] > 4.0
    statement = RunFolder(tmp_path / "runs" / "b").read_statement()
    assert statement["account"]["epsilon"] is None and statement["epsilon"]


def test_a_copy_of_the_data_is_of_the_same_account_and_other_data_are_not(
    tmp_path: Path, people: list[str]
) -> None:
    capped = [*people, "privacy.epsilon=2", "privacy.account=ward"]
    first = call("run", *capped, "run_name=a", "privacy.account_cap=[9,1e-2]")
    assert first.exit_code == 0, first.stderr
    copy = Path(shutil.copytree(tmp_path / "patients", tmp_path / "copy"))
    assert call("run", *changed(capped, f"task.data_dir={copy}"), "run_name=b").exit_code == 0
    (copy / "train.csv").write_text("a,b,outcome\n" + "1,2,ill\n3,1,well\n" * 20)
    for overrides, words in (
        (changed(capped, f"task.data_dir={copy}"), "'c' is of other people than the account ward"),
        ([*capped, "seed=7"], "the clients of 'c' are not those whom the cap of the account"),
    ):
        refused = call("run", *overrides, "run_name=c")
        assert refused.exit_code == 2 and words in said_on_stderr(refused)
        assert not (tmp_path / "runs" / "c").exists()


def test_a_cap_refuses_before_anything_starts(tmp_path: Path, people: list[str]) -> None:
    capped = [*people, "privacy.account=hospitals"]
    first = call("run", *capped, "run_name=a", "privacy.epsilon=3", "privacy.account_cap=[4,1e-2]")
    assert first.exit_code == 0, first.stderr
    assert "left: epsilon 1 at delta 0.00249" in " ".join(first.stdout.split())
    for overrides, words in (
        (["privacy.epsilon=3.5"], "is left of the account hospitals.account.db"),
        (["privacy=none"], "'b' would have no promise"),
        (["privacy.epsilon=1", "privacy.account_cap=[9,1e-2]"], "leave cap out"),
        (["privacy=dp_sgd", "dp_sgd.epsilon=1"], "no bound is known on what this plan says"),
    ):
        refused = call("run", *capped, "run_name=b", *overrides)
        assert refused.exit_code == 2
        assert words in said_on_stderr(refused)
        assert not (tmp_path / "runs" / "b").exists()
    sweep = call("run", "-m", *capped, "run_name=b", "privacy.epsilon=3", "seed=0,1,2,3")
    assert sweep.exit_code == 2
    assert "'b' would spend epsilon" in said_on_stderr(sweep)
    assert not (tmp_path / "runs" / "b").exists()
    account = accounts_in(tmp_path / "runs")["hospitals.account.db"]
    assert account["left"] == {"epsilon": 1.0, "delta": pytest.approx(0.0025)}


def test_a_run_that_goes_on_is_the_same_entry(tmp_path: Path, people: list[str]) -> None:
    """Killed after its first round, its folder moved with the account."""
    assert call("run", *people, "run_name=a", "privacy.epsilon=2").exit_code == 0
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.checkpoint.unlink()
    folder.drop_metrics_after(0)
    folder.statement.unlink()
    moved = tmp_path / "elsewhere"
    (tmp_path / "runs").rename(moved)
    result = call("run", f"resume={moved / 'a'}")
    assert result.exit_code != 0  # the budget pays for no second time
    account = accounts_in(moved)["patients.account.db"]
    assert entries_of(account) == {"a": 2.0}
    with AccountLedger.read(moved / "patients.account.db") as ledger:
        assert [entry.kind for entry in ledger.entries].count("plan") == 1
        assert [entry.kind for entry in ledger.entries].count("run") == 2


def test_a_further_plan_goes_on_from_a_model_of_the_same_account(
    tmp_path: Path, people: list[str]
) -> None:
    runs = tmp_path / "runs"
    assert call("run", *people, "run_name=a", "privacy.epsilon=2").exit_code == 0
    initial = f"model.initial={runs / 'a' / 'model.safetensors'}"
    further = call("run", *people, "run_name=b", "privacy.epsilon=1", initial)
    assert further.exit_code == 0, further.stderr
    first, second = (RunFolder(runs / name) for name in "ab")
    assert second.read_metrics()[0]["test_loss"] == first.read_metrics()[-1]["test_loss"]
    statement = second.read_statement()
    assert statement["budget"]["epsilon"] == 1.0 and 2.0 < statement["account"]["epsilon"] <= 3.0
    assert "public_inputs" not in statement  # its total has what the first weights say
    other = call(
        "run", *people, "run_name=c", "privacy.epsilon=1", "privacy.account=others", initial
    )
    assert other.exit_code == 0, other.stderr
    inputs = RunFolder(runs / "c").read_statement()["public_inputs"]
    assert any("the first weights" in text for text in inputs)


def test_a_name_is_one_run(tmp_path: Path, people: list[str]) -> None:
    """Also where somebody has deleted the folder."""
    assert call("run", *people, "run_name=a", "privacy.epsilon=2").exit_code == 0
    (tmp_path / "runs" / "a").rename(tmp_path / "gone")
    result = call("run", *people, "run_name=a", "privacy.epsilon=2")
    assert result.exit_code == 2
    assert "has a run 'a' already: choose another run_name" in said_on_stderr(result)


def test_a_baseline_without_noise_leaves_no_total(tmp_path: Path, people: list[str]) -> None:
    assert call("run", *people, "run_name=a", "privacy.epsilon=2").exit_code == 0
    insecure = ["privacy.insecure_seed=3", "privacy.epsilon=1"]
    for without in (["privacy=none"], insecure, ["-m", "privacy=none", "seed=0,1"]):
        refused = call("run", *people, "run_name=b", *without)
        assert refused.exit_code == 2
        assert "without a total for good: to have it so write" in said_on_stderr(refused)
        assert "privacy.account=patients, or" in said_on_stderr(refused)
    asked = ["privacy=none", "privacy.account=patients"]
    result = call("run", *people, "run_name=b", *asked)
    assert result.exit_code == 0, result.stderr
    assert "has no total any more, for good" in said_on_stderr(result)
    assert "all 2 runs: no privacy: something has no promise" in " ".join(result.stdout.split())
    account = accounts_in(tmp_path / "runs")["patients.account.db"]
    assert entries_of(account) == {"a": 2.0, "b": None}
    assert {total["epsilon"] for total in account["totals"]} == {None}


def test_dp_sgd_and_a_question_are_entries(tmp_path: Path, people: list[str]) -> None:
    # At a quarter of the clients and one round nobody minds that none contributes here.
    options = ["dp_sgd.epsilon=2", "rounds=1", "dp_sgd.steps=2", "selection.sampling_rate=0.25"]
    people = changed(people, *options[1::2])
    result = call("run", *people, "run_name=records", "privacy=dp_sgd", *options[::2])
    assert result.exit_code == 0, result.stderr
    asked = [text for text in people if not text.startswith("report=")]
    settings = compose_settings(
        [*asked, "statistic.query=count", "privacy.epsilon=1", "run_name=question"]
    )
    answer_statistic(grid_of(settings), settings, run_id="1")
    account = accounts_in(tmp_path / "runs")["patients.account.db"]
    assert entries_of(account) == {"records": 2.0, "question": pytest.approx(1.0, rel=1e-4)}
    totals = {(t["unit"], t["neighboring_relation"]): t["epsilon"] for t in account["totals"]}
    assert totals["record", "zero-out"] > 3.0 and totals["client", "zero-out"] is None


def test_a_sweep_is_one_entry_and_ends_with_its_total(tmp_path: Path, people: list[str]) -> None:
    result = call("run", "-m", *people, "run_name=s", "privacy.epsilon=1,2", "seed=0,1")
    assert result.exit_code == 0, result.stderr
    account = accounts_in(tmp_path / "runs")["patients.account.db"]
    ((name, epsilon),) = entries_of(account).items()
    assert name == "s" and epsilon is not None and 2.0 < epsilon < 5.0 < 6.0  # the sum
    text = " ".join(result.stdout.split())
    assert f"Together, the 4 trainings spend epsilon {epsilon:.3f}"[:-1] in text
    assert "if all had the same clients; but seed or split dealt rows anew" in text
    assert account["trainings"][0]["rounds_spent"] == 8
    for number in range(4):
        folder = RunFolder(tmp_path / "runs" / "s" / f"run-{number}")
        assert folder.read_statement()["account"]["training"] == f"s/run-{number}"
        assert call("ledger", str(folder.path)).exit_code == 0


def test_a_sweep_of_public_data_ends_with_its_total_too(tmp_path: Path) -> None:
    quick = ["task.num_clients=200", "rounds=2", "report=none", f"output_dir={tmp_path}"]
    result = call("run", "-m", *quick, "run_name=s", "privacy.epsilon=2", "seed=0,1")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "Together, the 2 trainings spend epsilon 2." in text or "epsilon 3." in text
    assert "Account: none, as its data are public" in text
    assert json_of("budgets", str(tmp_path), "--json") == {"accounts": []}


def test_an_older_copy_of_an_account_is_known_to_its_runs(
    tmp_path: Path, people: list[str]
) -> None:
    file = tmp_path / "runs" / "patients.account.db"
    assert call("run", *people, "run_name=a", "privacy.epsilon=2").exit_code == 0
    copy = file.read_bytes()
    assert call("run", *people, "run_name=b", "privacy.epsilon=2").exit_code == 0
    file.write_bytes(copy)
    for command in (["run", *people, "run_name=c"], ["budgets", str(tmp_path / "runs")]):
        result = call(*command)
        assert result.exit_code == 1
        assert "a run beside it knows of" in said_on_stderr(result)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("privacy.account=a/b", "privacy.account must be a plain name"),
        ("privacy.account_cap=[8]", "privacy.account_cap must be an epsilon and a delta"),
        ("privacy.account_cap=[8,2]", "privacy.account_cap must be an epsilon and a delta"),
    ],
)
def test_keys_of_an_account_are_checked(people: list[str], override: str, words: str) -> None:
    result = call("run", *people, override)
    assert result.exit_code == 2
    assert words in said_on_stderr(result)


def test_a_client_is_not_told_of_the_account(people: list[str]) -> None:
    settings = compose_settings([*people, "privacy.account=mine", "privacy.account_cap=[8,1e-3]"])
    told = json.loads(settings.for_clients().to_json())["privacy"]
    assert (told["account"], told["account_cap"]) == (None, None)


@pytest.mark.parametrize("epsilons", ["1,2", "1,2,3"])
def test_a_stopped_sweep_goes_on_where_its_folder_is_with_what_is_missing(
    tmp_path: Path, people: list[str], monkeypatch: pytest.MonkeyPatch, epsilons: str
) -> None:
    """One cell is done, others have no folder; the sweep and its account move."""
    runs, moved, started = tmp_path / "runs", tmp_path / "elsewhere", [0]

    def first_alone(overrides: Any, on_progress: Any) -> Any:
        started[0] += 1
        if started[0] == 1:
            return train_here(overrides, on_progress)
        raise KeyboardInterrupt

    use(monkeypatch, first_alone)
    one_by_one = ["sweep.side_by_side=1", "run_name=s", f"privacy.epsilon={epsilons}"]
    assert call("run", "-m", *people, *one_by_one).exit_code != 0
    before = accounts_in(runs)["patients.account.db"]
    assert [path.name for path in sorted((runs / "s").glob("run-*"))] == ["run-0"]
    runs.rename(moved)
    use(monkeypatch, train_here)
    result = call("run", f"resume={moved / 's'}")
    assert result.exit_code == 0, result.stderr
    account = accounts_in(moved)["patients.account.db"]
    assert entries_of(account) == entries_of(before) and list(entries_of(account)) == ["s"]
    (entry,) = account["trainings"]
    assert entry["rounds_spent"] == 2 * len(epsilons.split(","))
    assert account["totals"] == before["totals"] and not runs.exists()


def test_an_account_may_be_a_database(
    tmp_path: Path, people: list[str], postgres_server: PostgresServer
) -> None:
    url = postgres_server.url(postgres_server.new_database())
    runs = tmp_path / "runs"
    capped = [*people, f"privacy.account={quoted(url)}"]
    first = call("run", *capped, "run_name=a", "privacy.epsilon=3", "privacy.account_cap=[4,1e-2]")
    assert first.exit_code == 0, first.stderr
    refused = call("run", *capped, "run_name=b", "privacy.epsilon=3.5")
    assert refused.exit_code == 2 and "is left of the account" in said_on_stderr(refused)
    second = call("run", "-m", *capped, "run_name=s", "privacy.epsilon=0.2", "seed=0")
    assert second.exit_code == 0, second.stderr
    for folder in (runs / "a", runs / "s" / "run-0"):
        claims = RunFolder(folder).read_statement()["account"]
        assert claims["trainings"] in (1, 2) and claims["cap"] == 4.0
        assert call("ledger", str(folder)).exit_code == 0
    RunFolder(runs / "a").checkpoint.unlink()
    RunFolder(runs / "a").drop_metrics_after(0)
    assert call("run", f"resume={runs / 'a'}").exit_code != 0  # its budget is spent
    with AccountLedger.read(url) as ledger:
        assert [*ledger.account.entered] == [str(runs / "a"), str(runs / "s" / "run-0")]
        assert ledger.account.total(ledger.account.neighbours) <= 4.0


def test_a_choice_by_random_stopping_stays_spent_when_it_is_stopped(
    tmp_path: Path, people: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are in no account: one entry covers them, however many there were."""
    people = changed(people, "rounds=1", "privacy.epsilon=6")
    choice = ["client.learning_rate=0.5,1", "tune.by=stopping", "tune.mean_runs=2"]

    def stopped(overrides: Any, on_progress: Any) -> Any:
        train_here(overrides, on_progress)
        raise KeyboardInterrupt

    use(monkeypatch, stopped)
    ended = call("tune", *people, *choice, "run_name=a")
    assert ended.exit_code == 130, ended.stderr
    runs = tmp_path / "runs"
    account = accounts_in(runs)["patients.account.db"]
    assert entries_of(account) == {"a": 6.0} and not (runs / "a" / "tune").exists()
    assert [path.name for path in runs.glob("**/*.db")] == ["patients.account.db"]
    assert 4.0 < RunFolder(runs / "a").read_statement()["account"]["epsilon"] <= 6.0
    use(monkeypatch, train_here)
    assert call("run", f"resume={runs / 'a'}").exit_code == 2
    done = call("tune", *people, *choice, "run_name=b")
    assert done.exit_code == 0, done.stderr
    account = accounts_in(runs)["patients.account.db"]
    assert entries_of(account) == {"a": 6.0, "b": 6.0}


def test_runs_by_flwr_run_share_the_account_that_they_name(
    tmp_path: Path, people: list[str]
) -> None:
    """The ServerApp by itself: no command resolved account or names before."""
    named = [*people, "privacy.account=hospitals"]

    def run_by_flwr(number: str, *overrides: str) -> None:
        settings = compose_settings([*named, *overrides])
        train(grid_of(settings), settings, run_id=number)

    run_by_flwr("17", "privacy.epsilon=2", "privacy.account_cap=[3,1e-2]")
    run_by_flwr("18", "privacy.epsilon=0.5")
    with pytest.raises(PrivacyBudgetExhausted, match="is left of the account hospitals"):
        run_by_flwr("19", "privacy.epsilon=2.5")
    with pytest.raises(OptionError, match="'flwr-20' would have no promise"):
        run_by_flwr("20", "privacy=none")
    account = accounts_in(tmp_path / "runs")["hospitals.account.db"]
    assert entries_of(account) == {"flwr-17": 2.0, "flwr-18": 0.5}
    assert RunFolder(tmp_path / "runs" / "flwr-18").read_statement()["account"]["trainings"] == 2
