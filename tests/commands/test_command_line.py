"""`fl-dp plan`, `run` and `ledger`: the numbers, the refusals and the exit statuses."""

from __future__ import annotations

import csv
import io
import json
import pkgutil
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import dp_accounting
import pytest
from command_line import ENGINES, call, changed, json_of, said_on_stderr, train_here, use
from dp_accounting.pld import PLDAccountant
from flat_plans import noised_plan
from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text
from sweep_results import RESULT

from fl_dp import __version__
from fl_dp.app.cautions import cautions
from fl_dp.app.compose import compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.app.local.flower_runs import RunStatus
from fl_dp.app.run_folder import RunFolder
from fl_dp.guarantee import ENDED_EARLY, Against, Guarantee
from fl_dp.ledger import PrivacyLedger
from fl_dp.promise import rounded_up
from fl_dp.terminal.progress import TimeLeft, describe_round, progress_line
from fl_dp.terminal.summary import epsilon_jump, summary_tables

ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
DISCRETISATION = 1e-4


def independent_epsilon(
    releases: dict[tuple[float, float], int] | Counter[tuple[float, float]], delta: Any
) -> Any:
    """PLD epsilon of {(noise multiplier, sampling rate): count}, straight from dp-accounting."""
    accountant = PLDAccountant(ZERO_OUT, DISCRETISATION)
    for (noise_multiplier, sampling_rate), count in releases.items():
        event = dp_accounting.GaussianDpEvent(noise_multiplier)
        if sampling_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(sampling_rate, event)
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def test_the_version_is_printed() -> None:
    assert call("--version").stdout.strip() == __version__


def test_the_command_line_imports_nothing_heavy_until_it_is_needed() -> None:
    """Neither for help nor for a list of keys: each of these takes a second or more."""
    heavy = {"torch", "scipy", "ray", "flwr", "hydra", "omegaconf", "dp_accounting", "sqlalchemy"}
    code = """
import json, sys
from typer.testing import CliRunner
from fl_dp.commands.entry import app
for line in (["--version"], ["run", "--help"], ["config"], ["rnu"], ["run", "rouds=3"]):
    CliRunner().invoke(app, line)
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy & set(json.loads(done.stdout)) == set()


def test_every_name_of_a_package_is_imported_when_it_is_asked_for() -> None:
    """No name is that of a module, which would take the name's place once it is imported."""
    rooms = ("accounting", "plan", "ledger", "statement", "statistics", "tasks.datasets", "updates")
    for package in ("fl_dp", "fl_dp.tasks.training", *(f"fl_dp.{room}" for room in rooms)):
        module = import_module(package)
        lazily = set(module.__all__) - {"__version__"}
        assert [name for name in lazily if isinstance(getattr(module, name), ModuleType)] == []
        assert lazily & {part.name for part in pkgutil.iter_modules(module.__path__)} == set()


def test_a_misspelt_command_is_said_once_with_the_nearest() -> None:
    result = call("rnu")
    assert result.exit_code == 2
    assert result.stderr.count("rnu") == 1
    assert result.stderr.count("fl-dp run") == 1
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--epsilon", "4"], "privacy.epsilon=4"),
        (["--epsilon=4", "--json"], "privacy.epsilon=4"),
        (["--noise-multiplier", "--json"], "privacy.noise_multiplier=null"),
    ],
)
def test_a_setting_written_as_an_option_is_said_as_an_override(
    words: list[str], meant: str
) -> None:
    result = call("plan", *words)
    assert result.exit_code == 2
    (said,) = result.stderr.splitlines()
    assert said.endswith(f"as {meant}")


def test_hydra_s_own_options_are_told_where_experiment_files_go() -> None:
    result = call("run", "-m", "--config-dir", "mine", "experiment=mine")
    assert result.exit_code == 2
    (said,) = result.stderr.splitlines()
    [file] = re.findall(r"(/\S+)/NAME\.yaml", said)
    assert (Path(file) / "privacy_levels.yaml").is_file()


@pytest.mark.parametrize("command", ["run", "plan"])
def test_ctrl_c_while_something_is_computed_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fl_dp.app.planning.make_plan", interrupted)
    result = call(command, "privacy.noise_multiplier=2", "privacy.delta=1e-5")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "error: stopped"


def test_ctrl_c_while_the_command_line_is_imported_is_one_line() -> None:
    code = """
import builtins, sys
real = builtins.__import__
def interrupted(name, *rest):
    if name == "typer":
        raise KeyboardInterrupt
    return real(name, *rest)
builtins.__import__ = interrupted
from fl_dp.commands.entry import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: stopped\n")


# fl-dp config and fl-dp run --cfg


def test_config_lists_every_key_with_its_default_and_help() -> None:
    listed = json_of("config", "--json")["keys"]
    assert [each["key"] for each in listed] == list(all_keys())
    shown = " ".join(call("config").stdout.split())
    for key in all_keys().values():
        of = f"; with {key.of_options}" if key.of_options else ""
        assert f"{key.name}={key.default_text} ({key.allowed}{of})" in shown
        assert " ".join(key.help.split()) in shown


def test_config_of_a_group_that_is_none_names_the_nearest() -> None:
    result = call("config", "cliping")
    assert result.exit_code == 2
    assert "did you mean clipping?" in result.stderr


def test_cfg_prints_settings_that_compose_to_the_same() -> None:
    overrides = ["privacy=local", "selection=public", "clipping.norm=0.25", "run_name=x"]
    printed = OmegaConf.to_container(OmegaConf.create(call("run", "--cfg", *overrides).stdout))
    assert printed == asdict(compose_settings(overrides))
    assert json_of("run", "--cfg", "--json", *overrides) == printed


# fl-dp plan


def plan_overrides(num_clients: int, sampling_rate: float, rounds: int) -> list[str]:
    return [
        f"task.num_clients={num_clients}",
        f"selection.sampling_rate={sampling_rate}",
        f"rounds={rounds}",
    ]


@pytest.mark.parametrize(
    ("num_clients", "sampling_rate", "rounds", "noise_multiplier", "pld", "rdp"),
    [
        (1_000, 0.05, 100, 1.0, 2.402, 2.904),
        (1_000, 0.1, 200, 1.0, 7.569, 8.715),
        (1_000, 0.1, 200, 2.0, 2.481, 2.821),
        (1_000, 1, 100, 8.0, 4.408, 4.900),
        (100_000, 0.001, 1_000, 0.6, 1.761, 2.846),
        (100_000, 0.01, 1_000, 1.0, 1.978, 2.270),
        (1_000_000, 0.001, 2_000, 0.8, 0.700, 1.689),
        (1_000_000, 0.1, 500, 4.0, 2.819, 3.015),
    ],
)
def test_plan_tells_the_golden_epsilon(
    num_clients: int,
    sampling_rate: float,
    rounds: int,
    noise_multiplier: float,
    pld: float,
    rdp: float,
) -> None:
    """PLD within 0.5 %; RDP up to 1 % below, as ours integrates fractional orders exactly."""
    epsilon = json_of(
        "plan",
        "--json",
        *plan_overrides(num_clients, sampling_rate, rounds),
        f"privacy.noise_multiplier={noise_multiplier}",
        "privacy.epsilon=null",
    )["epsilon"]
    assert epsilon["pld"] == pytest.approx(pld, rel=5e-3)
    assert 0.99 * rdp <= epsilon["rdp"] <= 1.001 * rdp + 5e-4


@pytest.mark.parametrize(
    ("num_clients", "sampling_rate", "rounds", "target", "noise_multiplier"),
    [
        (1_000, 0.05, 100, 8, 0.60297),
        (1_000, 0.1, 200, 8, 0.97162),
        (100_000, 0.01, 1_000, 2, 0.99485),
        (100_000, 0.001, 1_000, 1, 0.66956),
    ],
)
def test_plan_calibrates_to_the_golden_noise_multiplier(
    num_clients: int, sampling_rate: float, rounds: int, target: int, noise_multiplier: float
) -> None:
    planned = json_of(
        "plan",
        "--json",
        *plan_overrides(num_clients, sampling_rate, rounds),
        f"privacy.epsilon={target}",
    )
    assert planned["noise_multipliers"][0] == pytest.approx(noise_multiplier, rel=5e-3)
    assert planned["epsilon"]["pld"] <= target


QUICK = [*plan_overrides(200, 0.25, 12), "privacy.noise_multiplier=2", "privacy.epsilon=null"]
NO_SAMPLING = ["selection.sampling_rate=1"]  # composes faster


@pytest.fixture(scope="module")
def quick_plan() -> Any:
    return json_of("plan", "--json", *QUICK)


def test_plan_json_says_what_is_planned(quick_plan: Any) -> None:
    assert quick_plan["noise_multipliers"] == [2.0] * 12
    assert (quick_plan["rounds"], quick_plan["sampling_rate"]) == (12, 0.25)
    assert quick_plan["delta"] == pytest.approx(200**-1.1, rel=1e-12)
    epsilon = quick_plan["epsilon"]
    assert epsilon["pld"] < epsilon["rdp"] < epsilon["naive"]


def test_plan_says_what_the_noise_leaves_of_the_configured_model(quick_plan: Any) -> None:
    """650 parameters, noise of 2 norms on each number of a sum of 50, over 12 rounds."""
    [left] = quick_plan["noise_left"]
    assert left["size"] == 650
    assert left["of_one"] == pytest.approx(650**0.5 * 2.0 * quick_plan["clipping_norm"] / 50)
    assert left["std_of_one"] == pytest.approx(2.0 * quick_plan["clipping_norm"] / 50)
    assert left["std_of_all"] == pytest.approx(12**0.5 * left["std_of_one"])
    assert left["ratio"] == pytest.approx(
        left["of_one"] / quick_plan["clipping_norm"] / 12**0.5, rel=1e-6
    )


def test_plan_warns_of_a_model_that_noise_buries() -> None:
    few = ["task.num_clients=10", "privacy.epsilon=0.1", "rounds=2", *NO_SAMPLING]
    result = call("plan", *few)
    assert result.exit_code == 0
    assert "this model will hardly learn" in said_on_stderr(result)
    assert "Error of the released sum: standard deviation" in result.stdout.replace("\n", " ")


def test_plan_of_records_says_it_of_a_step() -> None:
    [left] = json_of("plan", "--json", "privacy=dp_sgd", "dp_sgd.steps=2", "rounds=3")["noise_left"]
    assert (left["step"], left["size"], left["releases"]) == ("step", 650, 6)


def test_plan_agrees_with_an_accountant_of_its_own(quick_plan: Any) -> None:
    expected = independent_epsilon({(2.0, 0.25): 12}, 200**-1.1)
    assert quick_plan["epsilon"]["pld"] == pytest.approx(expected, rel=1e-6)


def test_plan_shows_a_person_the_same_epsilon_as_a_program(quick_plan: Any) -> None:
    table = call("plan", *QUICK).stdout
    assert f"{quick_plan['epsilon']['pld']:.4f}" in table


def test_a_plan_over_the_budget_warns_and_still_succeeds(quick_plan: Any) -> None:
    result = call("plan", "--json", *changed(QUICK, "privacy.epsilon=1"))
    assert result.exit_code == 0
    assert "warning:" in result.stderr
    assert "more than privacy.epsilon=1:" in said_on_stderr(result)
    assert json.loads(result.stdout)["epsilon"] == quick_plan["epsilon"]


@pytest.mark.parametrize(("delta", "warns"), [(1 / 200, True), (0.0049, False)])
def test_a_plan_warns_of_a_delta_that_is_not_below_one_over_the_clients(
    delta: float, warns: bool
) -> None:
    result = call("plan", "--json", *changed(QUICK, *NO_SAMPLING), f"privacy.delta={delta}")
    assert result.exit_code == 0
    assert ("is not below 1/num_clients" in said_on_stderr(result)) is warns


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("privacy.epsilon=-1", "privacy.epsilon must be positive and finite, got -1.0"),
        (
            "privacy.epsilon=1e-6 privacy.delta=1e-9",
            "no noise reaches epsilon 1e-06 at delta 1e-09 in 100 rounds",
        ),
    ],
)
def test_a_plan_that_can_t_be_made_is_refused_with_status_2(overrides: str, said: str) -> None:
    result = call("plan", *overrides.split())
    assert result.exit_code == 2
    assert said in said_on_stderr(result)
    assert result.stdout == ""
    assert said in json.loads(call("plan", "--json", *overrides.split()).stdout)["error"]


SEED_RULE = ["schedule=seed_rule", "schedule.levels=null", "privacy.delta=1e-5", *NO_SAMPLING]


def test_plan_compares_with_splitting_epsilon_over_the_rounds() -> None:
    """Closed form: 11.7 times the noise, for a true epsilon of 0.50."""
    planned = json_of("plan", "--json", "privacy.epsilon=8", "rounds=100", *SEED_RULE)
    naive = planned["naive_split"]
    assert planned["noise_multipliers"][0] == pytest.approx(5.327942, rel=1e-5)
    assert planned["noise_multipliers"][-1] == pytest.approx(10.656, rel=1e-4)
    assert naive["noise_multipliers"][0] == pytest.approx(62.35, rel=1e-3)
    assert naive["noise_multipliers"][-1] == pytest.approx(124.7, rel=1e-3)
    assert naive["times_our_noise"] == pytest.approx(11.7, abs=0.01)
    assert naive["epsilon"] == pytest.approx(0.50, abs=0.01)


def test_plan_tells_epsilon_over_the_rounds(quick_plan: Any) -> None:
    curve = quick_plan["epsilon_over_rounds"]
    assert curve[0][0] == 1
    assert curve[-1] == [12, pytest.approx(quick_plan["epsilon"]["pld"], rel=1e-2)]
    assert [epsilon for _, epsilon in curve] == sorted(epsilon for _, epsilon in curve)


def test_plan_draws_a_picture_and_tells_the_rounds_in_numbers(tmp_path: Path) -> None:
    target = tmp_path / "plan.png"
    shown = call("plan", *changed(QUICK, *NO_SAMPLING), "--plot", str(target))
    assert shown.exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "epsilon spent after it" in shown.stdout


def test_the_table_of_rounds_reads_what_the_curve_and_the_plan_say() -> None:
    shown = call("plan", *changed(QUICK, *NO_SAMPLING)).stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    read = {row[0]: row[1:] for row in rows if len(row) == 3 and row[0].isdigit()}
    spent = dict(
        map(tuple, json_of("plan", "--json", *changed(QUICK, *NO_SAMPLING))["epsilon_over_rounds"])
    )
    assert list(read) == ["1", "3", "6", "9", "12"]
    assert all(read[n][1] == rounded_up(spent[int(n)]) for n in read)


@pytest.mark.parametrize(
    ("name", "said"),
    [("plan.jpg", "ends in .png"), ("nowhere/plan.png", "no folder")],
)
def test_a_picture_that_can_t_be_written_is_status_2(name: str, said: str, tmp_path: Path) -> None:
    result = call("plan", *changed(QUICK, *NO_SAMPLING), "--plot", str(tmp_path / name))
    assert result.exit_code == 2
    assert said in said_on_stderr(result)


@pytest.mark.parametrize(
    ("overrides", "cautioned"),
    [
        ("task.num_clients=200 privacy.delta=1e-5", []),
        ("task.num_clients=99 privacy.delta=1e-5", ["privacy=distributed_records protects"]),
        ("task.num_clients=200", ["delta 0.00295 (the default for 200) is large"]),
        ("task.num_clients=50 privacy=none", []),
        (
            "privacy=none task=csv task.test_fraction=0.2",
            ["task.test_fraction=0.2 measures", "write task.mean and task.std"],
        ),
        ("privacy=none task=folder task.validation=true", ["task.validation=true measures"]),
        ("privacy=none task=csv task.client_column=a", ["task.client_column=a is not used"]),
        ("privacy=none task=csv task.client_column=a task.partition=natural", []),
        ("privacy=dp_sgd task.num_clients=3", ["nobody takes part in 42% of the rounds"]),
        ("privacy=dp_sgd task.num_clients=6", []),
        ("task.num_clients=3 privacy.delta=1e-5 statistic.query=count", ["costs less accuracy"]),
    ],
)
def test_what_promises_less_than_it_seems_is_cautioned_of(
    overrides: str, cautioned: list[Any]
) -> None:
    said = cautions(compose_settings(overrides.split()))
    assert [text for text, start in zip(said, cautioned, strict=True) if start not in text] == []


def test_a_caution_is_said_by_plan_and_by_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: Any) -> RunStatus:
        raise KeyboardInterrupt

    use(monkeypatch, stop)
    few, said = ["privacy=dp_sgd", "task.num_clients=3"], "nobody takes part in 42% of the rounds"
    assert said in said_on_stderr(call("plan", *few))
    assert said in said_on_stderr(call("run", *few, f"output_dir={tmp_path}"))


def test_clients_without_records_end_a_run_before_an_engine_starts(tmp_path: Path) -> None:
    thin = ["task.partition=dirichlet", "task.alpha=0.001", f"output_dir={tmp_path}"]
    result = call("run", *thin)
    assert result.exit_code == 2
    assert "without records" in said_on_stderr(result)
    assert "starting the nodes" not in said_on_stderr(result)
    planned = call("plan", *thin)
    assert planned.exit_code == 0
    assert "`fl-dp run` will refuse: " in said_on_stderr(planned)
    assert "without records" in said_on_stderr(planned)


def test_plan_says_what_is_promised_to_whom() -> None:
    shown = " ".join(call("plan", *changed(QUICK, *NO_SAMPLING)).stdout.split())
    assert "unit: one client" in shown
    assert "trusted: the server" in shown
    promise = json_of("plan", "--json", *changed(QUICK, *NO_SAMPLING))["promise"]
    assert set(promise) == {"unit", "neighbours", "adversary", "trusted"}


# fl-dp run: what is refused before anything starts.


@pytest.fixture
def nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class MustNotTrain:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> MustNotTrain:
            return self  # it comes up while data and plan are checked

        def __exit__(self, *error: Any) -> None:
            pass

        def run(self, *_: Any) -> None:
            raise AssertionError("a training was started")

    for engine in ENGINES:
        monkeypatch.setattr(engine, MustNotTrain)


CHEAP = ["privacy.epsilon=null", "privacy.noise_multiplier=2", "task.num_clients=20"]


@pytest.mark.usefixtures("nothing_may_start")
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([*CHEAP, "task.name=nonesuch"], "task.name must be one of digits"),
        (changed(CHEAP, "task.num_clients=5000"), "num_clients is 5000 but there are 1437 records"),
        (["-m", *CHEAP, "clipping.norm=1,-1"], "clipping.norm must be positive and finite, got -1"),
        (
            [*CHEAP, "clipping=per_layer", "clipping.norms=[1,1,1]"],
            "clipping.norms has 3 norms and model=logistic has 2",
        ),
    ],
)
def test_a_run_that_can_t_succeed_is_refused_with_status_2(
    overrides: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("run", *overrides)
    assert result.exit_code == 2
    assert said in said_on_stderr(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_may_start")
def test_a_run_beyond_its_budget_names_the_number_of_rounds_that_fit(tmp_path: Path) -> None:
    result = call(
        "run",
        *plan_overrides(200, 1, 40),
        f"output_dir={tmp_path}",
        "privacy.epsilon=2",
        "privacy.noise_multiplier=8",
    )
    assert result.exit_code == 2
    assert "40 rounds at noise_multiplier=8 spend epsilon" in said_on_stderr(result)
    stated = re.search(r"at most (\d+) rounds", said_on_stderr(result))
    assert stated is not None
    fits = int(stated.group(1))
    release, delta = (8.0, 1.0), 200**-1.1
    assert independent_epsilon({release: fits}, delta) <= 2
    assert independent_epsilon({release: fits + 1}, delta) > 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_may_start")
def test_a_run_never_takes_the_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.app.planning.make_plan", lambda *_: pytest.fail("it was computed"))
    (tmp_path / "taken").mkdir()
    result = call("run", *CHEAP, f"output_dir={tmp_path}", "run_name=taken")
    assert result.exit_code == 2
    assert f"{tmp_path / 'taken'} exists already: choose another run_name" in result.stderr
    assert list((tmp_path / "taken").iterdir()) == []


@pytest.mark.usefixtures("nothing_may_start")
def test_a_folder_that_can_t_be_written_to_is_said_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.app.planning.make_plan", lambda *_: pytest.fail("it was computed"))
    (tmp_path / "file").write_text("")
    result = call("run", f"output_dir={tmp_path / 'file' / 'runs'}")
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} can't be written to" in said_on_stderr(result)


@pytest.mark.usefixtures("nothing_may_start")
def test_a_sweep_starts_nothing_if_one_of_its_runs_can_t_succeed(tmp_path: Path) -> None:
    result = call(
        "run",
        "-m",
        *plan_overrides(200, 1, 100),
        f"output_dir={tmp_path}",
        "privacy.epsilon=2",
        "privacy.noise_multiplier=20,8",
    )
    assert result.exit_code == 2
    assert "at most" in said_on_stderr(result)
    assert list(tmp_path.iterdir()) == []


# fl-dp run: how it ends.


def test_a_run_that_fails_in_flower_exits_1_with_flower_s_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, lambda *_: RunStatus(status="finished:failed", details="boom"))
    result = call("run", *CHEAP, f"output_dir={tmp_path}")
    assert result.exit_code == 1
    assert "the run ended as 'finished:failed': boom" in said_on_stderr(result)


def test_a_run_that_is_interrupted_exits_130(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(overrides: Any, on_progress: Any) -> None:
        raise KeyboardInterrupt

    use(monkeypatch, interrupted)
    result = call("run", *CHEAP, f"output_dir={tmp_path}")
    assert result.exit_code == 130
    assert "what was reserved stays spent" in said_on_stderr(result)


@pytest.mark.parametrize("name", ["a, b=[c] ü", 'quo"te'])
def test_flower_is_given_the_absolute_output_folder_whatever_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ServerApp runs in another folder than the caller's."""
    link = use(monkeypatch, lambda *_: RunStatus(status="finished:failed", details=""))
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    call("run", *CHEAP, "run_name=first", "task.data_dir=data")
    [(_, overrides)] = link.given
    composed = compose_settings(overrides)
    assert composed.output_dir == str(tmp_path / name / "runs")
    assert composed.task.data_dir == str(tmp_path / name / "data")
    assert composed.run_name == "first"


SHORT = [*CHEAP, "rounds=2", "client.epochs=1", "selection.sampling_rate=0.5", "report=none"]


def test_a_run_that_completes_exits_0_with_what_it_spent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, train_here)
    [run] = json_of("run", "--json", *SHORT, f"output_dir={tmp_path}", "run_name=one")["runs"]
    assert run["path"] == str(tmp_path / "one")
    assert run["rounds"] == 2
    assert run["promise"]["delta"] == pytest.approx(20**-1.1)
    expected = independent_epsilon({(2.0, 0.5): 2}, 20**-1.1)
    assert run["promise"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_a_sweep_gives_each_run_a_folder_and_sums_up_the_seeds_of_each_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, train_here)
    swept = [*SHORT, f"output_dir={tmp_path}", "run_name=sweep", "clipping.norm=0.5,1", "seed=0,1"]
    printed, folder = json_of("run", "--json", "-m", *swept), tmp_path / "sweep"
    paths = [str(folder / f"run-{index}") for index in range(4)]
    assert [run["path"] for run in printed["runs"]] == paths
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == printed
    variants = {row["variant"]: row["runs"] for row in printed["variants"]}
    assert variants == {"clipping.norm=0.5": 2, "clipping.norm=1": 2}


def test_a_sweep_that_was_stopped_goes_on_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first run is kept as it is, the second goes on by its ledger, the third is new."""
    started = []

    def stop_in_the_second(overrides: Any, on_progress: Any) -> RunStatus:
        started.append(overrides)
        if len(started) == 2:
            settings = compose_settings(overrides)
            RunFolder(tmp_path / "s" / "run-1").create(settings)
            raise KeyboardInterrupt
        return train_here(overrides, on_progress)

    use(monkeypatch, stop_in_the_second)
    sweep = ["sweep.side_by_side=1", f"output_dir={tmp_path}", "run_name=s"]
    stopped = call("run", "-m", *SHORT, *sweep, "clipping.norm=0.5,1,2")
    assert stopped.exit_code == 130
    assert f"`fl-dp run resume={tmp_path / 's'}` continues it" in said_on_stderr(stopped)
    first = (tmp_path / "s" / "run-0" / "ledger.db").read_bytes()
    assert not (tmp_path / "s" / "run-2").exists()

    link = use(monkeypatch, train_here)
    printed = json_of("run", "--json", f"resume={tmp_path / 's'}")
    assert [run["rounds"] for run in printed["runs"]] == [2, 2, 2]
    assert [row["variant"] for row in printed["variants"]] == [
        "clipping.norm=0.5",
        "clipping.norm=1",
        "clipping.norm=2",
    ]
    # Both start at once: which is seen first is the machine's choice.
    assert sorted(settings.clipping.norm for settings, _ in link.given) == [1.0, 2.0]
    assert (tmp_path / "s" / "run-0" / "ledger.db").read_bytes() == first


@pytest.mark.usefixtures("nothing_may_start")
@pytest.mark.parametrize(
    ("files", "said", "status"),
    [
        ({}, "it has no config.yaml", 2),
        ({"config.yaml": "a: [\n"}, "does not fit this version", 2),
        ({"sweep.json": "[1]"}, "is not what a sweep of fl-dp writes", 2),
        ({"config.yaml": "rounds: 3\n", "ledger.db": b"not a database " * 99}, "ledger", 1),
    ],
)
def test_a_folder_that_is_no_run_is_one_line(
    files: dict[str, Any], said: str, status: int, tmp_path: Path
) -> None:
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
    result = call("run", f"resume={tmp_path}")
    assert result.exit_code == status
    assert said in said_on_stderr(result)
    assert "Traceback" not in result.stderr


# The progress of a run.


PROMISE = Guarantee(
    budget=8.0, delta=1e-5, unit="client", neighbours="zero-out", against=Against.MODELS
)
LINE = {"round": 999, "test_accuracy": 0.93721, "epsilon": 5.1234, "promise": PROMISE.to_dict()}


class _Terminal(io.StringIO):
    """A stream that keeps what it shows, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [60, 120])
def test_the_progress_shows_what_matters_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    console = Console(file=stream, width=width, color_system=None)
    with progress_line(console, "[2/6] a=b c=d e=f, seed 0", rounds=1000) as on_round:
        on_round({**LINE, "round": 998})
        on_round(LINE)
    lines = [line for line in re.split(r"\x1b\[2K|\r|\n", stream.getvalue()) if "999" in line]
    for part in ("round 999/1000", "test accuracy 0.937", "epsilon 5.13/8"):
        assert part in lines[-1]
    assert len(lines[-1].rstrip()) <= width
    assert " left" not in lines[-1]  # the run has ended


def test_the_time_left_counts_neither_the_start_nor_rounds_of_long_ago() -> None:
    left = TimeLeft()
    assert left.after(0, 100, now=0.0) is None
    assert left.after(1, 100, now=60.0) is None  # Ray started in it
    for done in range(2, 41):
        seconds = left.after(done, 100, now=60.0 + 2.0 * (done - 1))
    assert seconds == pytest.approx(2.0 * 60)
    for done in range(41, 61):
        seconds = left.after(done, 100, now=138.0 + 5.0 * (done - 40))
    assert seconds == pytest.approx(5.0 * 40)


def test_the_time_left_of_a_resumed_run_counts_new_rounds_alone() -> None:
    left = TimeLeft()
    assert {left.after(done, 100, now=0.001 * done) for done in range(31)} == {None}
    assert left.after(31, 100, now=60.0) is None
    assert left.after(32, 100, now=62.0) == pytest.approx(2.0 * 68)


def test_the_summary_explains_an_epsilon_above_the_progress() -> None:
    stopped = replace(PROMISE, epsilon=7.9, spent=6.1)
    run = replace(RESULT, promise=stopped)
    assert epsilon_jump([run]) == f"7.9 stated, 6.1 spent. {ENDED_EARLY}"
    ended = replace(run, promise=replace(stopped, spent=7.9))
    assert epsilon_jump([ended]) is None
    measured = epsilon_jump([replace(ended, spent_in_rounds=6.1)])
    assert measured is not None
    assert measured.endswith("as the last model was measured on clients' rows, too")


def test_epsilons_of_different_promises_stand_in_tables_of_their_own() -> None:
    of_clients = replace(PROMISE, epsilon=7.9, spent=7.9)
    of_records = replace(of_clients, unit="record", against=Against.SERVER)
    nothing = replace(of_clients, insecure=True)
    run = replace(RESULT, x=None, curve="a", promise=of_clients)
    others = [replace(run, curve="b", promise=of_records), replace(run, curve="c")]
    tables = summary_tables([run, *others, replace(run, curve="d", promise=nothing)])
    titles = [f"epsilon {of_clients.terms}", f"epsilon {of_records.terms}", "no privacy"]
    assert [table.title for table in tables] == titles
    assert [list(table.columns[0].cells) for table in tables] == [
        [Text("a"), Text("c")],
        [Text("b")],
        [Text("d")],
    ]


def test_the_summary_and_the_progress_tell_auc_beside_accuracy() -> None:
    """Of a rare class the accuracy is the share of the other one, whatever was learned."""
    run = replace(RESULT, accuracy=0.947, metrics={"auc": 0.462, "balanced_accuracy": 0.5})
    others = [replace(run, curve="rounds=9", metrics={})]
    [table] = summary_tables([run, replace(run, metrics={"auc": 0.5}), *others])
    assert [str(column.header) for column in table.columns][2:4] == ["test accuracy", "AUC"]
    assert [str(cell) for cell in table.columns[3].cells] == ["0.481", "-"]
    assert "AUC" not in [str(column.header) for column in summary_tables(others)[0].columns]
    line: dict[str, Any] = {
        "round": 100,
        "test_accuracy": 0.947,
        "test_auc": 0.462,
        "epsilon": 2.999,
    }
    line |= {"promise": {"budget": 3.0}}
    said = describe_round(line, rounds=100, time_left="time left unknown")
    assert said.startswith("round 100/100, test accuracy 0.947, AUC 0.462, epsilon 3/3")
    assert len(said) <= 80
    assert "AUC" not in describe_round(line | {"test_auc": None}, rounds=100)


def test_the_summary_and_the_progress_tell_r2_of_a_number() -> None:
    run = replace(RESULT, accuracy=None, metrics={"r2": 0.4321})
    [table] = summary_tables([run, replace(run, metrics={})])
    assert [str(column.header) for column in table.columns][2] == "test R2"
    [cell, *_] = table.columns[2].cells
    assert str(cell) == "0.432"
    undefined = {"round": 1, "test_r2": None, "epsilon": 1.0, "promise": {"budget": 4.0}}
    said = describe_round(undefined, rounds=2, time_left="time left unknown")
    assert said == "round 1/2, test R2 -, epsilon 1/4, time left unknown"


# fl-dp ledger


DELTA = 1e-4


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    """A ledger of six planned rounds: two released, one repeated, one of unknown fate."""
    plan = noised_plan(
        1.2, delta=DELTA, rounds=6, sampling_rate=0.2, clipping_norm=1.0, num_clients=100
    )
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.reserve(round=2)
        ledger.commit(ledger.reserve(round=2))
        ledger.reserve(round=3)
    return path


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


def test_ledger_tells_an_epsilon_that_follows_from_its_entries_alone(ledger_path: Path) -> None:
    before = ledger_path.read_bytes()
    told = json_of("ledger", "--json", str(ledger_path))
    assert ledger_path.read_bytes() == before
    assert [entry["sequence"] for entry in told["entries"]] == list(range(1, 9))
    assert (told["rounds_spent"], told["rounds_committed"]) == (4, 2)
    releases = Counter(
        (entry["noise_multiplier"], entry["sampling_rate"])
        for entry in told["entries"]
        if entry["kind"] == "reserve"
    )
    assert releases.total() == 4
    assert told["epsilon"]["pld"] == pytest.approx(independent_epsilon(releases, DELTA), rel=1e-6)


def test_ledger_shows_a_person_the_same_epsilon_as_a_program(ledger_path: Path) -> None:
    epsilon = json_of("ledger", "--json", str(ledger_path))["epsilon"]["pld"]
    shown = " ".join(call("ledger", str(ledger_path)).stdout.split())
    assert f"epsilon {epsilon:.4f}" in shown


def test_ledger_takes_the_folder_of_a_run(ledger_path: Path) -> None:
    by_folder = json_of("ledger", "--json", str(ledger_path.parent))
    assert by_folder == json_of("ledger", "--json", str(ledger_path))


@pytest.mark.parametrize("what", ["nowhere/ledger.db", "."])
def test_a_missing_ledger_is_status_2(what: str, tmp_path: Path) -> None:
    result = call("ledger", str(tmp_path / what))
    assert result.exit_code == 2
    assert "no ledger at" in said_on_stderr(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            """UPDATE entries SET payload = replace(payload, '"round":1', '"round":9')
               WHERE sequence = 3""",
            "entry 3 does not match its hash",
        ),
        (
            """UPDATE entries SET payload = replace(payload, '"sampling_rate":0.2',
               '"sampling_rate":0.1') WHERE sequence = 5""",
            "entry 5 does not match its hash",
        ),
        ("DELETE FROM entries WHERE sequence = 6", "entry 6 is missing"),
        ("DELETE FROM entries WHERE sequence = 1", "entry 1 is missing"),
    ],
    ids=["another round", "a cheaper round", "a round removed", "the plan removed"],
)
def test_a_ledger_that_was_altered_is_status_1(
    statement: str, said: str, ledger_path: Path
) -> None:
    change(ledger_path, statement)
    for options in ([], ["--json"]):
        result = call("ledger", *options, str(ledger_path))
        assert result.exit_code == 1
        assert said in said_on_stderr(result)
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"", 2), (b"not a database, but long enough to look at " * 9, 1)],
    ids=["empty, as if there were none", "something else"],
)
def test_a_file_that_is_no_ledger_has_its_status(
    content: bytes, status: int, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    assert call("ledger", str(path)).exit_code == status


def test_the_entries_are_exported_as_csv(ledger_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "entries.csv"
    assert call("ledger", str(ledger_path), "--csv", str(target)).exit_code == 0
    with target.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    entries = json_of("ledger", "--json", str(ledger_path))["entries"]
    assert [int(row["sequence"]) for row in rows] == [entry["sequence"] for entry in entries]
    assert [row["hash"] for row in rows] == [entry["hash"] for entry in entries]
    assert [row["round"] for row in rows if row["kind"] == "reserve"] == ["1", "2", "2", "3"]
    assert json.loads(rows[0]["more"])["plan"]["rounds"] == 6


@pytest.mark.parametrize("name", ["ledger.db", "records.txt"])
def test_the_export_never_overwrites_a_ledger(ledger_path: Path, name: str) -> None:
    before = ledger_path.read_bytes()
    result = call("ledger", str(ledger_path), "--csv", str(ledger_path.parent / name))
    assert result.exit_code == 2
    assert "ends in .csv" in said_on_stderr(result)
    assert ledger_path.read_bytes() == before


def test_the_ledger_says_what_to_quote_while_rounds_are_missing(ledger_path: Path) -> None:
    told = json_of("ledger", "--json", str(ledger_path))
    assert min(told["promised"].values()) > min(told["epsilon"].values())
    shown = " ".join(call("ledger", str(ledger_path)).stdout.split())
    quoted = Guarantee.read(told["guarantee"] | {"epsilon": min(told["promised"].values())})
    assert f"Quote {quoted}, the plan's" in shown


def test_names_with_markup_and_formulas_are_shown_as_they_are(tmp_path: Path) -> None:
    plan = noised_plan(
        2.0, delta=1e-3, rounds=2, sampling_rate=1.0, clipping_norm=1.0, num_clients=20
    )
    folder = tmp_path / "[x]"
    folder.mkdir()
    PrivacyLedger.open(folder / "ledger.db", plan, run_id="=1+1[/b]").close()
    target = tmp_path / "records.csv"
    shown = call("ledger", str(folder), "--csv", str(target)).stdout
    assert "=1+1[/b]" in shown
    assert "'=1+1[/b]" in target.read_text()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://somewhere/ledger", "SQLite or PostgreSQL"),
        ("://", "no database URL"),
        ("postgresql+nope://u@h/d", "no driver"),
    ],
)
def test_a_url_that_leads_nowhere_is_status_2_with_one_that_would(url: str, said: str) -> None:
    result = call("ledger", url)
    assert result.exit_code == 2
    assert said in said_on_stderr(result)


@pytest.mark.parametrize("override", ["privacy.delta=1e-20", "privacy.epsilon=1e9"])
def test_a_plan_far_from_anything_useful_is_still_shown(override: str) -> None:
    overrides = [*plan_overrides(200, 0.25, 12), override]
    assert call("plan", *overrides).exit_code == 0
    assert json_of("plan", "--json", *overrides)["rounds"] == 12
