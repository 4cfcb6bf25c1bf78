"""Starts and stops: fields as the settings have them, a price first, one run at a time."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboards import OWN, dashboard_of, png, pretend_command, reader
from starlette.testclient import TestClient
from waiting import until
from written_runs import write_run

from fl_dp.app.compose import compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.viewer.dashboard.start_form import (
    KINDS,
    RECOVERY,
    STATISTIC,
    SWEEP,
    TRAINING,
    TUNING,
    Kind,
    Request,
    WrongField,
    WrongForm,
    folded_groups,
    offered,
    override_of,
    read_form,
)
from fl_dp.viewer.dashboard.started_runs import TOKEN_VARIABLE, NotPriced, NotStarted, StartedRuns
from fl_dp.viewer.found_runs import RunsFolder, RunState


@pytest.fixture
def started(tmp_path: Path) -> Iterator[StartedRuns]:
    root = tmp_path / "runs"
    root.mkdir()
    runs = StartedRuns(root=root, command=pretend_command(tmp_path))
    yield runs
    for each in runs.all():
        each.process.kill()
        each.process.wait()
        each.output.close()


@pytest.fixture
def client(started: StartedRuns) -> TestClient:
    return reader(dashboard_of(started.root, started=started).site())


# The form.


@pytest.mark.parametrize("chosen", ["task=fashion_mnist", "privacy=local"])
def test_an_empty_field_shows_what_holds_beside_the_chosen_parts(
    client: TestClient, chosen: str
) -> None:
    settings = compose_settings([chosen])
    shown = client.get(f"/defaults?{chosen}").json()
    page = client.post("/price", data={**dict([chosen.split("=")]), "seed": "x"}, headers=OWN).text
    for name, value in (
        ("rounds", settings.rounds),
        ("client.learning_rate", settings.client.learning_rate),
        ("client.epochs", settings.client.epochs),
        ("task.num_clients", settings.task.num_clients),
    ):
        assert shown[name] == placeholder_of(name, page) == str(value)
    assert shown["selection"].startswith(f"{settings.selection.name}: ")


def placeholder_of(name: str, page: str) -> str:
    found = re.search(rf'name="{re.escape(name)}"[^>]* placeholder="([^"]*)"', page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_field_is_a_key_and_shown_once(kind: Kind) -> None:
    shown = [*kind.first, *(key.name for keys in folded_groups(kind).values() for key in keys)]
    assert sorted(shown) == sorted(offered(kind))
    assert set(shown) <= set(all_keys())


NOT_OFFERED = (
    "output_dir resume task.data_dir dp_sgd.ledger_dir privacy.secure_sum.roster "
    "privacy.insecure_seed features.file features.module features.statistics model.initial "
    "selection.owners "
    "simulation.num_cpus sweep.axis recovery.attacks tune.chosen tune.mean_runs "
    "privacy.witness_dir tracking.uri tracking.mode"
)


def test_no_form_chooses_an_encoder_that_is_code() -> None:
    with pytest.raises(WrongForm, match="features is one of none, scattering"):
        read_form({"features": "checkpoint"})
    assert read_form({"privacy": "correlated"}).settings.privacy.mode == "correlated"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_no_form_chooses_folders_predictable_noise_or_the_machine(kind: Kind) -> None:
    assert not set(NOT_OFFERED.split()) & set(offered(kind))
    form = FILLED[kind.name] | dict.fromkeys(NOT_OFFERED.split(), "/etc")
    assert not any("/etc" in each for each in read_form(form, kind=kind).overrides)


FILLED = {
    "training": {"experiment": "records"},
    "sweep": {"experiment": "schedules", "sweep.seeds": "0, 1"},
    "recovery": {"experiment": "data_recovery", "recovery.threats": "raw, released"},
    "statistic": {"statistic.query": "mean", "statistic.low": "0", "statistic.high": "9"},
    "tuning": {"client.learning_rate": "0.5, 2", "tune.by": "public"},
}
COMMANDS = {
    "training": "run experiment=records",
    "sweep": "run -m experiment=schedules sweep.seeds=[0,1]",
    "recovery": 'attack inversion experiment=data_recovery recovery.threats=["raw","released"]',
    "statistic": "stats mean statistic.low=0 statistic.high=9",
    "tuning": 'tune client.learning_rate=0.5,2 tune.by="public"',
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_form_asks_for_its_command(kind: Kind) -> None:
    assert " ".join(read_form(FILLED[kind.name], kind=kind).command) == COMMANDS[kind.name]


@pytest.mark.parametrize(
    ("kind", "form", "field"),
    [
        (SWEEP, {}, "experiment"),
        (SWEEP, {"experiment": "data_recovery"}, "experiment"),
        (TRAINING, {"experiment": "schedules"}, "experiment"),
        (STATISTIC, {"task": "digits"}, "statistic.query"),
        (RECOVERY, {"experiment": "data_recovery", "recovery.threats": "all"}, "recovery.threats"),
        (TUNING, {"client.learning_rate": "0.5,much"}, "client.learning_rate"),
        (TUNING, {"client.learning_rate": "1,2", "tune.by": "stopping"}, "tune.by"),
        (TRAINING, {"client.learning_rate": "0.5,2"}, "client.learning_rate"),
    ],
)
def test_a_form_refuses_what_is_of_another(kind: Kind, form: dict[str, str], field: str) -> None:
    assert refused(form, kind=kind) == [field]


def refused(
    form: dict[str, str], data: dict[str, Path] | None = None, kind: Kind = TRAINING
) -> list[str]:
    """Return the fields that a form is refused for."""
    with pytest.raises(WrongForm) as error:
        read_form(form, data, kind)
    return [wrong.field for wrong in error.value.fields]


def test_every_wrong_field_is_told_at_once() -> None:
    # Two that can't be read, and two that the settings themselves refuse.
    form = {"rounds": "many", "run_name": "../up", "selection.sampling_rate": "2"}
    form |= {"clipping.norm": "-1", "seed": "1"}
    assert sorted(refused(form)) == sorted(form.keys() - {"seed"})


def test_no_key_of_a_folder_or_file_was_forgotten() -> None:
    """A new key whose help speaks of a folder or a file has to be looked at here."""
    suspects = {
        name
        for name, key in offered().items()
        if re.search(r"\b(folder|file|path|director)", key.help, re.IGNORECASE)
    }
    assert suspects <= {"report"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", "-1"),
        ("rounds", "1,2"),
        ("privacy.epsilon", "1e999999"),
        ("selection.sampling_rate", "2"),
        ("task.partition", "fair"),
        ("run_name", "../up"),
        ("run_name", "up/../.."),
        ("privacy.contribution_check", "perhaps"),
        ("privacy.epsilon", "${oc.env:HOME}"),
        ("task", "csv"),
    ],
)
def test_an_error_is_told_at_its_field(name: str, value: str) -> None:
    with pytest.raises(WrongForm) as error:
        read_form({name: value, "seed": "1"})
    [wrong] = error.value.fields
    assert wrong.field == name
    assert name in wrong.text


COLUMN = all_keys()["task.label_column"]


@pytest.mark.parametrize("value", ["$HOME", 'a"b', "a'b", "a,b", "a=b", "[x]", "a b", "\\", "列"])
def test_a_text_is_taken_as_it_is_written(value: str) -> None:
    """No character of it means anything to Hydra."""
    own = ["task=csv", "task.data_dir=/x", override_of(COLUMN, value)]
    assert compose_settings(own).task.label_column == value


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "\\${oc.env:HOME}", "a\nb", "x" * 501])
def test_a_text_that_could_read_the_environment_is_refused(value: str) -> None:
    with pytest.raises(WrongField):
        override_of(COLUMN, value)


def test_the_page_shows_an_error_at_its_field_and_keeps_what_was_written(
    client: TestClient,
) -> None:
    form = {"rounds": "0", "seed": "5"}
    answer = client.post("/price", data=form, headers=OWN)
    assert answer.status_code == 422
    [field] = re.findall(r"<input[^>]*aria-invalid[^>]*>", answer.text)
    assert 'name="rounds"' in field
    assert 'aria-describedby="h-rounds e-rounds"' in field
    assert re.search(r'id="e-rounds"[^>]*>rounds must be at least 1, got 0', answer.text)
    assert 'name="seed" value="5"' in answer.text
    hostile = {"privacy.epsilon": '"><script>alert(1)</script>', "run_name": "<script>"}
    assert "<script>" not in client.post("/price", data=hostile, headers=OWN).text


# Price, start, stop.


def priced(client: TestClient, **form: str) -> str:
    """Return the page with the price of a filled form."""
    return client.post("/price", data=form, headers=OWN).text


def key_on(page: str) -> str:
    """Return the key of the price that a page shows."""
    [key] = re.findall(r'name="price" value="([\w-]+)"', page)
    return str(key)


def test_the_price_is_shown_before_anything_starts(
    client: TestClient, started: StartedRuns
) -> None:
    page = priced(client, rounds="3")
    assert "This training would promise" in page
    assert '<span class="numbers">1.25</span>' in page
    assert "at delta 1e-05, one client (zero-out), against whoever sees the models" in page
    assert "few clients" in page
    assert "fl-dp run rounds=3" in page
    assert started.all() == []


@pytest.mark.parametrize("price", ["", "guessed", "x" * 10_000])
def test_nothing_starts_without_a_price_that_was_shown(
    client: TestClient, started: StartedRuns, price: str
) -> None:
    assert client.post("/start", data={"price": price}, headers=OWN).status_code == 409
    assert started.all() == []


def test_a_run_is_started_followed_and_stopped(client: TestClient, started: StartedRuns) -> None:
    price = key_on(priced(client, run_name="mine"))
    answer = client.post("/start", data={"price": price}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/started/mine")
    assert client.get("/started/mine").status_code in (200, 303)
    until((started.root / "mine" / "metrics.jsonl").exists)
    assert client.get("/started/mine").headers["location"] == "/run/mine"
    assert "Stop this run" in client.get("/run/mine").text
    # The same price starts nothing more, and neither does another while this runs.
    again = client.post("/start", data={"price": price}, headers=OWN)
    assert again.status_code == 409 and "runs already" not in again.text
    other = key_on(priced(client))
    assert "runs already" in client.post("/start", data={"price": other}, headers=OWN).text
    assert client.post("/stop/mine", headers=OWN).status_code == 303
    until(lambda: not started.is_running("mine"))
    assert RunsFolder(started.root).card("mine").state == RunState.STOPPED
    assert "Stop this run" not in client.get("/run/mine").text
    assert client.post("/stop/mine", headers=OWN).status_code == 409


def test_a_sweep_is_followed_on_its_own_page(client: TestClient, started: StartedRuns) -> None:
    form = FILLED["sweep"] | {"run_name": "mine"}
    price = key_on(client.post("/price?kind=sweep", data=form, headers=OWN).text)
    assert client.post("/start", data={"price": price}, headers=OWN).status_code == 303
    assert client.get("/started/mine").status_code == 200
    sweep = started.root / "mine"
    write_sweep(sweep, ["a", "b"])
    write_run(sweep / "run-0", done=6, rounds=6)
    assert client.get("/started/mine").headers["location"] == "/sweep/mine"
    page = client.get("/sweep/mine").text
    assert "1 of 2 trainings have ended" in page
    assert page.count("state-waiting") == 1
    assert "Stop this run" in page
    png(sweep / "experiment.png")
    assert "/image/mine/experiment.png" in client.get("/sweep/mine").text


@pytest.mark.parametrize("name", ["nothing", "%2e%2e/elsewhere", "mine/run-0", "link"])
def test_only_a_sweep_has_its_page(
    client: TestClient, started: StartedRuns, tmp_path: Path, name: str
) -> None:
    write_sweep(tmp_path / "elsewhere", ["a"])
    (started.root / "link").symlink_to(tmp_path / "elsewhere")
    write_run(started.root / "mine" / "run-0")
    assert client.get(f"/sweep/{name}").status_code == 404


def write_sweep(path: Path, curves: list[str]) -> None:
    """Write down what a sweep consists of."""
    path.mkdir(parents=True, exist_ok=True)
    cells = [
        {"name": f"run-{index}", "variant": curve, "place": None}
        for index, curve in enumerate(curves)
    ]
    (path / "sweep.json").write_text(json.dumps({"cells": cells}))


def test_a_run_that_the_dashboard_did_not_start_is_not_stopped(
    client: TestClient, started: StartedRuns
) -> None:
    write_run(started.root / "other", done=1, stated=False)
    assert "Stop this run" not in client.get("/run/other").text
    assert client.post("/stop/other", headers=OWN).status_code == 409


def test_a_folder_that_is_taken_is_not_written_to(started: StartedRuns) -> None:
    (started.root / "mine").symlink_to("/nowhere")
    price = started.price(read_form({"run_name": "mine"}))
    with pytest.raises(NotStarted, match="taken"):
        started.start(price.key)


def test_a_start_that_fails_shows_why(tmp_path: Path) -> None:
    said = '{"guarantee": {"epsilon": 1.5, "delta": 1e-5}, "records": '
    said += '{"guarantee": {"epsilon": 2.5, "delta": 1e-6}}}'
    plan_alone = f"test $0 = plan && echo '{said}' && exit; echo 'error: no data'; exit 2"
    command = ["sh", "-c", plan_alone]
    (tmp_path / "runs").mkdir()
    started = StartedRuns(root=tmp_path / "runs", command=command)
    client = reader(dashboard_of(tmp_path / "runs", started=started).site())
    price = started.price(read_form({"run_name": "mine"}))
    assert price.guarantee is not None and price.of_records is not None
    assert (price.guarantee.epsilon, price.guarantee.delta) == (1.5, 1e-5)
    assert (price.of_records.epsilon, price.of_records.delta) == (2.5, 1e-6)
    started.start(price.key)
    until(lambda: not started.is_running("mine"))
    page = client.get("/started/mine").text
    assert "The start failed" in page
    assert "error: no data" in page
    assert "The start failed" in client.get("/").text


def test_what_the_command_line_refuses_is_refused_with_its_words(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo 'warning: x' >&2; echo 'error: rounds is too large' >&2; exit 2"]
    with pytest.raises(NotPriced, match=r"^rounds is too large$"):
        StartedRuns(root=tmp_path, command=command).price(read_form({}))


def test_what_the_command_line_refuses_stands_at_its_option(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    said = '{"error": "no law of that many: write 3", "options": ["rounds"]}'
    started = StartedRuns(root=tmp_path, command=["sh", "-c", f"echo '{said}'; exit 2"])
    client = reader(dashboard_of(tmp_path / "runs", started=started).site())
    page = priced(client, rounds="9", seed="1")
    assert re.search(r'id="e-rounds"[^>]*>no law of that many: write 3', page)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_real_simulation_is_priced_started_and_stopped(tmp_path: Path) -> None:
    """The real `fl-dp`, in one process and without Ray, by the pages alone."""
    in_process = 'exec "$0" -P -m fl_dp "$@" simulation.engine=in_process'
    started = StartedRuns(root=tmp_path, command=["sh", "-c", in_process, sys.executable])
    client = reader(dashboard_of(tmp_path, started=started).site())
    form = {"rounds": "2000", "task.num_clients": "20", "client.epochs": "1", "run_name": "mine"}
    page = client.post("/price", data=form, headers=OWN).text
    assert "This training would promise" in page
    assert "of 8</span>" in page
    assert client.post("/start", data={"price": key_on(page)}, headers=OWN).status_code == 303
    try:
        runs = RunsFolder(tmp_path)
        until(
            lambda: (
                (tmp_path / "mine" / "metrics.jsonl").exists()
                and (runs.card("mine").round or 0) >= 2
            )
        )
        assert "Stop this run" in client.get("/run/mine").text
        assert client.post("/stop/mine", headers=OWN).status_code == 303
        until(lambda: not started.is_running("mine"))
    finally:
        [mine] = started.all()
        mine.process.kill()
        mine.process.wait()
    page = client.get("/run/mine").text
    assert "It ended before its last round" in page
    assert runs.card("mine").state == RunState.STOPPED
    # What was reserved is spent, and the ledger says so without being named.
    assert "mine/ledger.db" in client.get("/budgets").text
    mine.output.close()


def test_own_data_are_chosen_by_the_names_that_the_operator_gave(tmp_path: Path) -> None:
    (tmp_path / "ward").mkdir()
    data = {"ward": tmp_path / "ward"}
    form = {"task": "csv", "task.data_dir": "ward", "task.label_column": "ill", "rounds": "3"}
    request = read_form(form, data)
    assert request.settings.task.data_dir == str(tmp_path / "ward")
    assert request.settings.task.label_column == "ill"
    for wrong in ("/etc", "../ward", str(tmp_path / "ward")):
        assert "task.data_dir" in refused(form | {"task.data_dir": wrong}, data)
    with pytest.raises(WrongForm):
        read_form(form)  # nobody named a folder
    assert refused({"task": "digits", "task.label_column": "ill"}, data) == ["task.label_column"]


@pytest.mark.slow
def test_the_price_is_that_of_the_command_line(tmp_path: Path) -> None:
    """The real `fl-dp plan`, once."""
    request: Request = read_form({"rounds": "2", "privacy.epsilon": "3", "task.num_clients": "20"})
    price = StartedRuns(root=tmp_path).price(request)
    assert price.guarantee is not None
    epsilon = price.guarantee.epsilon
    assert epsilon == pytest.approx(3.0, abs=0.01)
    assert epsilon is not None
    assert epsilon <= 3.0
    assert price.guarantee.unit == "client"
    assert "unit" in price.promise
    assert any("20 clients are few" in warning for warning in price.warnings)


def test_what_is_started_does_not_learn_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret-of-the-dashboard")
    command = ["sh", "-c", "env; echo 'error: '$FL_DP_DASHBOARD_TOKEN >&2; exit 2"]
    with pytest.raises(NotPriced) as error:
        StartedRuns(root=tmp_path, command=command).price(read_form({}))
    assert str(error.value) == ""


def test_an_experiment_is_priced_by_the_budgets_of_its_trainings(client: TestClient) -> None:
    page = client.post("/price?kind=sweep", data=FILLED["sweep"], headers=OWN).text
    assert "12 trainings, of which 12 are private" in page
    assert "Each of 12 would promise" in page
    assert '<span class="numbers">at most 2</span>' in page
    assert re.search(r"at delta \S+, one client \(zero-out\), against whoever sees", page)
    formula = {"experiment": "udp_formula", "sweep.seeds": "0"}
    assert "noise is given" in client.post("/price?kind=sweep", data=formula, headers=OWN).text


def test_a_run_without_privacy_is_told_so(client: TestClient) -> None:
    assert "promises nothing to anybody" in priced(client, privacy="none")
