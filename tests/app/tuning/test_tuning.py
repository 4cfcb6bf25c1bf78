"""`fl-dp tune`: what is chosen, what it costs, and which line of the statement it takes away."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from app_trainings import grid_of
from command_line import call, changed, said_on_stderr
from fl_dp.strategies.server_optimizer import ServerOptimizer
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.supercore.task_identity import TaskIdentity

from fl_dp.accounting.events import RandomStoppingEvent
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import OPTIONS, Settings
from fl_dp.app.settings.optimizers import SERVER_OPTIMIZERS
from fl_dp.app.settings.tune import TuneSettings
from fl_dp.app.tuning import choice, trial
from fl_dp.app.tuning.candidates import with_candidate
from fl_dp.app.tuning.stopping import Stopped, stopping_plans
from fl_dp.app.tuning.trial import ServerStep, TrialRounds
from fl_dp.commands import queue, tune
from fl_dp.commands.console import out
from fl_dp.commands.jobs import Job, Jobs
from fl_dp.commands.tune import with_candidates
from fl_dp.ledger import PrivacyLedger, SpentLedger
from fl_dp.mechanisms.mechanism_events import ExponentialEvent
from fl_dp.statement.check import statement_differences, statement_page
from fl_dp.tasks.models import build_model
from fl_dp.tasks.public_scores import Score

SMALL = ["task.num_clients=8", "rounds=2", "client.epochs=1", "privacy.epsilon=4"]
GRID = ["client.learning_rate=0.0001,1", "clipping.norm=0.2,0.5"]
TRIAL = "tune.rounds=2"
LINE = "the choice of hyper-parameters, if it was made on the clients' data"


def settings_for(folder: Path, *overrides: str) -> Settings:
    asked = with_candidates([*SMALL, *GRID, f"output_dir={folder}", "run_name=run", *overrides])
    return compose_settings(asked)


def tuned(folder: Path, *overrides: str) -> RunFolder:
    settings = settings_for(folder, *overrides)
    train(grid_of(settings), settings, run_id="1")
    return RunFolder(folder / "run")


@pytest.fixture(scope="module")
def voted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose clients voted, and that trained with what won."""
    return tuned(tmp_path_factory.mktemp("voted"), TRIAL)


def test_one_statement_has_the_vote_and_the_training(voted: RunFolder) -> None:
    statement = voted.read_statement()
    kinds = {each["event"]: each["count"] for each in statement["releases"]}
    assert kinds["exponential"] == 1
    assert sum(kinds.values()) == 3
    assert 3.9 < min(statement["epsilon"].values()) <= 4.0 * (1 + 1e-6)
    assert LINE not in statement["not_covered"]
    assert "by a vote of the clients" in statement["hyper_parameters"]
    assert "| hyper-parameters |" in statement_page(statement)
    with SpentLedger.read(voted.ledger) as ledger:
        assert statement_differences(ledger, statement) == []


def test_the_charge_is_on_disk_before_the_choice_and_the_choice_before_the_first_round(
    voted: RunFolder,
) -> None:
    with SpentLedger.read(voted.ledger) as ledger:
        kinds = [entry.kind for entry in ledger.entries]
    assert kinds[:6] == ["plan", "run", "reserve", "commit", "chosen", "run"]
    assert kinds[6:] == ["reserve", "commit"] * 2


def test_the_run_trains_with_what_its_ledger_says_was_chosen(voted: RunFolder) -> None:
    settings = voted.read_settings()
    with SpentLedger.read(voted.ledger) as ledger:
        assert ledger.choice is not None
        chosen = ledger.choice.chosen
        assert ledger.plan.clipping_norm == settings.clipping.norm
    assert settings.tune.chosen == chosen
    again = with_candidate(settings, chosen)
    assert again == settings
    assert voted.read_statement()["clipping_norm"] == settings.clipping.norm


def test_the_vote_costs_its_share_and_the_rounds_get_the_rest(tmp_path: Path) -> None:
    """A tenth of epsilon costs the rounds less than a tenth: they compose."""
    plan = make_plan(settings_for(tmp_path, TRIAL))
    assert plan.other_releases == ((ExponentialEvent(epsilon=0.4), 1),)
    alone = make_plan(compose_settings(SMALL))
    assert 1.0 < plan.noise_multiplier / alone.noise_multiplier < 1.1
    assert plan.epsilon().best <= 4.0 * (1 + 1e-6)


def test_the_price_does_not_depend_on_the_number_of_candidates(tmp_path: Path) -> None:
    few = make_plan(settings_for(tmp_path))
    many = make_plan(settings_for(tmp_path, "client.batch_size=1,2,3,4,5,6"))
    assert few == many


def test_without_a_choice_the_line_stays(tmp_path: Path) -> None:
    settings = compose_settings([*SMALL, f"output_dir={tmp_path}", "run_name=run"])
    train(grid_of(settings), settings, run_id="1")
    statement = RunFolder(tmp_path / "run").read_statement()
    assert LINE in statement["not_covered"]
    assert "hyper_parameters" not in statement


class _Crash(Exception):
    """The power fails."""


def interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> RunFolder:
    """A tuned run that dies at a function."""

    def fail(*_: object, **__: object) -> None:
        raise _Crash

    with monkeypatch.context() as patched:
        patched.setattr(where, name, fail)
        with pytest.raises(_Crash):
            tuned(folder, TRIAL)
    return RunFolder(folder / "run")


def resumed(folder: RunFolder) -> None:
    settings = compose_settings([f"resume={folder.path}"])
    train(grid_of(folder.read_settings()), settings, run_id="2")


def test_a_choice_that_was_charged_and_lost_stays_charged_and_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(tmp_path, monkeypatch, choice, "_write_down")
    assert [e["event"] for e in folder.read_statement()["releases"]] == ["exponential"]
    assert LINE in folder.read_statement()["not_covered"]
    with pytest.raises(ValueError, match="charged, and what came of it was lost"):
        resumed(folder)
    with SpentLedger.read(folder.ledger) as ledger:
        assert ledger.other_releases_spent == 1
        assert ledger.rounds_spent == 0


def test_a_choice_that_was_written_down_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(tmp_path, monkeypatch, choice, "_record")
    assert folder.read_settings().tune.chosen is None
    resumed(folder)
    statement = folder.read_statement()
    assert sum(each["count"] for each in statement["releases"]) == 3
    assert LINE not in statement["not_covered"]
    assert folder.read_settings().tune.chosen is not None


def test_a_change_by_hand_brings_the_line_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(tmp_path, monkeypatch, SERVER_OPTIMIZERS["fedavgm"], "make")
    settings = folder.read_settings()
    assert LINE not in folder.read_statement()["not_covered"]
    folder.write_settings(replace(settings, client=settings.client.with_values(learning_rate=0.25)))
    resumed(folder)
    statement = folder.read_statement()
    assert LINE in statement["not_covered"]
    assert "hyper_parameters" not in statement
    assert sum(each["count"] for each in statement["releases"]) == 3  # and stays paid for


def test_public_data_chooses_for_nothing_and_says_so(tmp_path: Path) -> None:
    statement = tuned(tmp_path, TRIAL, "tune.by=public").read_statement()
    assert {each["event"] for each in statement["releases"]} == {"poisson-gaussian"}
    assert LINE not in statement["not_covered"]
    assert "public test part" in statement["hyper_parameters"]
    assert statement["hyper_parameters"].endswith("at no charge")


def test_clients_that_answer_nonsense_have_no_part_in_the_choice(tmp_path: Path) -> None:
    """All but one reply with NaN; at this epsilon the one decides."""
    from fl_dp.app.tuning import trial_scores

    settings = settings_for(tmp_path, "privacy.epsilon=1000", "simulation.units_per_node=1")
    real = trial_scores.scores_of_unit

    def hostile(place: int, node: Any, config: Any) -> np.ndarray:
        found = real(place, node, config)
        return np.array([0.0, 0.0, 1.0, 0.0]) if place == 3 else np.full(found.shape, np.nan)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trial_scores, "scores_of_unit", hostile)
        train(grid_of(settings), settings, run_id="1")
    chosen = RunFolder(tmp_path / "run").read_settings().tune.chosen
    assert chosen == "client.learning_rate=1 clipping.norm=0.2"


def stopped(folder: Path, *more: str) -> tuple[Stopped, RunFolder]:
    by_stopping = ("tune.by=stopping", "tune.mean_runs=2", "privacy.delta=1e-3")
    settings = settings_for(folder, *by_stopping, *more)
    run = RunFolder(folder / "run")
    return Stopped.begun(run, settings), run


def test_random_stopping_is_one_event_that_fits_the_budget(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "tune.by=stopping", "tune.mean_runs=3", "tune.shape=0.5")
    one, whole = stopping_plans(settings)
    ((event, count),) = whole.other_releases
    assert isinstance(event, RandomStoppingEvent)
    assert (count, event.mean_runs, event.shape) == (1, 3.0, 0.5)
    assert event.releases == one.history
    assert 3.9 < whole.epsilon().best <= 4.0
    assert one.epsilon().best < 3.0


def test_the_best_training_is_kept_under_the_price_of_all(tmp_path: Path) -> None:
    begun, run = stopped(tmp_path)
    with SpentLedger.read(run.ledger) as ledger:
        assert ledger.other_releases_spent == 1  # before the first training
    folders, scores = [], []
    for number, (_, settings) in enumerate(begun.runs):
        place = replace(settings, output_dir=str(tmp_path / "trials"), run_name=str(number))
        train(grid_of(place), place, run_id="1")
        folders.append(RunFolder(tmp_path / "trials" / str(number)))
        scores.append(folders[-1].read_metrics()[-1]["test_accuracy"])
    for each in folders:
        os.utime(each.model, (0, 0))
    begun.keep(folders, scores)
    begun.close()
    best = int(np.argmax(scores))
    assert run.model.read_bytes() == folders[best].model.read_bytes()
    assert run.read_settings().tune.chosen == begun.candidates[best]
    statement = run.read_statement()
    assert [each["event"] for each in statement["releases"]] == ["random-stopping"]
    assert min(statement["epsilon"].values()) <= 4.0
    assert statement["quoted"] == "rdp" and "Renyi DP" in statement["rule"]
    assert LINE not in statement["not_covered"]
    assert any("not kept" in each for each in statement["not_covered"])
    page = statement_page(statement)
    assert "secret random number of trainings" in page
    assert "| rounds | inside what was released, below" in page
    assert run.read_metrics()[-1]["epsilon"] == 4.0
    with SpentLedger.read(run.ledger) as ledger:
        assert statement_differences(ledger, statement) == []
        # Two times, or the date of the best training, would tell how many trainings there were.
        assert sum("time" in entry.fields for entry in ledger.entries) == 1
    assert run.model.stat().st_mtime > 1e9


@pytest.mark.parametrize("failed", [-np.inf, np.nan])
def test_a_training_that_failed_has_the_last_place(tmp_path: Path, failed: float) -> None:
    begun, run = stopped(tmp_path)
    begun = replace(begun, candidates=begun.candidates[:1] * 3)
    folders = [RunFolder(tmp_path / f"{number}") for number in range(3)]
    folders[1].path.mkdir()  # of those that failed there is none
    folders[1].model.write_bytes(b"model")
    folders[1].metrics.write_text(json.dumps({"round": 1, "test_accuracy": -3.0}) + "\n")
    with pytest.raises(ValueError, match="every training of the choice failed"):
        begun.keep(folders, [failed, failed, failed])
    begun.keep(folders, [failed, -3.0, failed])
    begun.close()
    assert run.model.read_bytes() == b"model"


def test_a_training_that_fails_is_counted_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    class Failing:
        """A queue whose first training fails, whose second is stopped by hand."""

        def __init__(self, jobs: Jobs, console: Any) -> None:
            [self.job] = jobs.trainings

        def work_off(self) -> list[Any]:
            begun.append(self.job.path.name)
            if len(begun) <= 2:
                raise typer.Exit(len(begun) if len(begun) == 1 else 130)
            return [SimpleNamespace(score=Score(value=0.5))]

    monkeypatch.setattr(queue, "Queue", Failing)
    job = Job(variant="", overrides=(), settings=settings_for(tmp_path), path=tmp_path / "0")
    assert tune._score(job, out) == -np.inf
    with pytest.raises(typer.Exit):
        tune._score(job, out)
    assert tune._score(job, out) == 0.5
    assert len(begun) == 3


def test_no_witness_remembers_the_trainings_of_random_stopping(tmp_path: Path) -> None:
    witnesses = tmp_path / "witnesses"
    witnesses.mkdir()
    begun, _ = stopped(tmp_path, f"privacy.witness_dir={witnesses}")
    begun.close()
    assert [each.name for each in witnesses.iterdir()] == ["run.heads"]
    for overrides, one in begun.runs:
        assert one.privacy.witness_dir is None
        assert "privacy.witness_dir=null" in overrides


def test_random_stopping_that_was_interrupted_stays_charged_and_is_not_continued(
    tmp_path: Path,
) -> None:
    begun, run = stopped(tmp_path)
    begun.close()
    (run.path / "trials").mkdir()
    assert 3.9 < min(run.read_statement()["epsilon"].values()) <= 4.0
    assert LINE in run.read_statement()["not_covered"]
    with pytest.raises(ValueError, match=r"stays charged; delete .*trials, which shows"):
        resumed(run)


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (["client.learning_rate=1"], "nothing is to be tuned"),
        (["rounds=2,3"], "rounds can't be chosen among candidates"),
        (["selection.sampling_rate=0.1,0.2"], "selection.sampling_rate can't be chosen"),
        ([*GRID, "privacy=none"], "is a key of privacy=central"),
        ([*GRID, "privacy=distributed"], "write privacy=central"),
        ([*GRID, "dp_sgd=on"], "write privacy=central without dp_sgd=on"),
        ([*GRID, "privacy.noise_multiplier=1"], "leave privacy.noise_multiplier out"),
        ([*GRID, "tune.mean_runs=3"], "tune.mean_runs has no part in tune.by=vote"),
        ([*GRID, "tune.by=stopping", "tracking=tensorboard"], "leave tracking and"),
        (["resume=runs/a"], "write `fl-dp run resume=FOLDER`"),
    ],
)
def test_what_can_t_be_is_refused_in_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("tune", *changed(SMALL, *overrides))
    assert result.exit_code == 2
    assert cause in said_on_stderr(result)
    assert not (tmp_path / "runs").exists()


def test_a_choice_can_t_be_claimed_by_hand(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    name = (settings.tune.candidates or [""])[0]
    claimed = replace(settings, tune=replace(settings.tune, chosen=name))
    train(grid_of(claimed), claimed, run_id="1")
    assert LINE in RunFolder(tmp_path / "run").read_statement()["not_covered"]


def test_a_choice_never_changes_what_is_charged(tmp_path: Path) -> None:
    plan = make_plan(settings_for(tmp_path))
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        with pytest.raises(ValueError, match="more of the plan"):
            ledger.choose(
                "a", how="b", settings="c", plan=replace(plan, rounds=plan.rounds + 1), paid=None
            )
        ledger.choose("a", how="b", settings="c", plan=plan, paid=None)
        with pytest.raises(ValueError, match="once, before the first round"):
            ledger.choose("a", how="b", settings="c", plan=plan, paid=None)


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_a_trial_steps_as_the_run_s_server_optimizer_does(name: str) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    settings = OPTIONS["server_optimizer"][name]
    if name != "fedavg":
        settings = replace(settings, linear_decay=True)
    theirs, ours = ServerOptimizer(settings.make(rounds=4)), ServerStep(settings, 4)
    rng, model = np.random.default_rng(0), np.zeros(5)
    for number in range(1, 5):
        update = rng.normal(size=5)
        arrays = ArrayRecord({"w": Array(model)})
        asked = theirs.instruct(number, arrays, ConfigRecord(), [1])
        stepped, _ = theirs.step(number, ArrayRecord({"w": Array(model + update)}), asked)
        assert stepped is not None
        model = model + ours.of(update)
        np.testing.assert_allclose(model, stepped["w"].numpy(), rtol=1e-9, atol=1e-12)


def test_settings_of_a_choice_are_checked_where_they_are_written() -> None:
    with pytest.raises(ValueError, match=r"none of tune\.candidates"):
        TuneSettings(candidates=["client.epochs=1", "client.epochs=2"], chosen="client.epochs=3")


@pytest.mark.parametrize("rounds", [3, 100])
def test_as_much_noise_adds_up_in_a_trial_as_in_the_run(rounds: int) -> None:
    given = "rounds=100 client.learning_rate=1e-12 clipping.norm=0.5 server_optimizer.momentum=0"
    settings = compose_settings([*SMALL, "seed=3", *given.split()])
    model = torch.nn.Linear(64, 200)
    before = model.weight.detach().clone()
    rows = (np.zeros((2, 64), dtype=np.float32), np.array([0, 1]))
    of_trial = TrialRounds(most=rounds, multiplier=2.0, denominator=50.0)
    trial._train(model, settings, [rows], rounds=of_trial, seed=5)
    # 12,800 draws: a tenth more or less is 16 standard errors.
    moved = float((model.weight - before).std())
    step = settings.server_optimizer.learning_rate
    assert moved == pytest.approx(step * 0.02 * 10, rel=0.03)


def test_a_trial_of_numbers_scores_by_how_close_predictions_are() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(90, 2)).astype(np.float32)
    labels = np.tanh(features[:, 0] - features[:, 1]).astype(np.float32)
    rounds = TrialRounds(most=5, multiplier=0.0, denominator=10.0)
    scores = []
    for rate in ("1e-9", "0.5"):
        settings = compose_settings([f"client.learning_rate={rate}", "clipping.norm=5"])
        score = trial.trial_score(
            settings,
            features,
            labels,
            rounds=rounds,
            seed=1,
            build=lambda: build_model("logistic", input_shape=(2,), num_classes=1, seed=0),
        )
        scores.append(score)
    untrained, trained = scores
    # Untrained it says 0, the middle of [-1, 1].
    assert untrained == pytest.approx(1.0 - np.abs(labels).mean() / 2.0, abs=0.05)
    assert untrained + 0.1 < trained <= 1.0
