"""`make federation`: all protections on, the same app as in a simulation, nothing left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from federation import (
    CURIOUS,
    MODES,
    ROUNDS,
    WARDS,
    Federation,
    Mode,
    arrived_lines,
    late_lines,
    main,
    spent_lines,
)
from waiting import until
from wards import ROOT, write_tables
from written_apps import write_app

from fl_dp import PrivacyLedger
from fl_dp.app.local.launch import App
from fl_dp.app.run_folder import RunFolder

ALL = ("central", "dp_sgd", "local", "distributed")
# Where the rows lie, and what only a real node has.
OF_THE_PLACE = (
    "task.partition=",
    "task.data_dir=",
    "output_dir=",
    "run_name=",
    "privacy.witness_dir=",
    "privacy.secure_sum.roster=",
)
# What a statement says of the privacy and not of the place.
OF_THE_PRIVACY = ("unit", "neighboring_relation", "mechanism", "noise_multipliers", "rounds")


def processes_of(place: Path) -> list[str]:
    """Return every process that was started for a federation in a folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment = (process / "environ").read_bytes()
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if os.fsencode(f"FLWR_HOME={place}") in environment and words:
            found.append(words.decode(errors="replace"))
    return found


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(ROOT / "deploy" / "federation.py"), "--keep", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def simulated(place: Path, overrides: list[str]) -> RunFolder:
    """Train with the same settings in Flower's simulation, on rows of this machine."""
    write_tables(place, ("here",))
    (place / "public" / "test.csv").rename(place / "here" / "test.csv")
    same = [each for each in overrides if not each.startswith(OF_THE_PLACE)]
    here = (f"task.data_dir={place / 'here'}", f"output_dir={place}", "run_name=simulated")
    # One client a node, as a ward is.
    split = ("task.partition=iid", "simulation.units_per_node=1", "simulation.engine=flower")
    subprocess.run([sys.executable, "-m", "fl_dp", "run", *same, *split, *here], check=True)
    return RunFolder(place / "simulated")


def patient(mode: Mode) -> Mode:
    """Return a mode whose gates give apps the time that they take on a busy machine."""
    if not mode.gate:
        return mode
    return replace(mode, gate=dict(mode.gate) | {"dp-gate-answer-after": 150.0})


def what_arrives(name: str, federation: Federation, arrived: list[dict[str, Any]]) -> None:
    """Check what the server gets of a table that an app sends by every way."""
    lines = list(arrived_lines(federation.tables(), arrived))
    if name == "distributed":
        assert arrived == [{"error": "PolicyRefusal"}] * len(WARDS)
        return
    for answer in arrived:
        assert (answer["metrics"], answer["texts"]) == ([{"num-examples": 1}], [])
        [numbers] = answer["arrays"]
        assert len(numbers) == 400
        if name == "central":  # whose server is trusted with updates
            assert np.linalg.norm(numbers) == pytest.approx(0.5, rel=1e-5)
        else:  # noise of .4 times .5 at least on each number
            assert np.linalg.norm(numbers) > 0.2 * 400**0.5 / 2
    assert all(("table 1.00" in line) == (name == "central") for line in lines)


def said_of_privacy(folder: RunFolder) -> dict[str, Any]:
    statement = folder.read_statement()
    return {key: statement.get(key) for key in OF_THE_PRIVACY}


def test_the_app_of_a_simulation_is_the_one_that_is_bundled() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    components = metadata["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": f"{App().server}:app", "clientapp": f"{App().client}:app"}


def test_the_federation_offers_every_mode_that_the_makefile_names() -> None:
    assert tuple(MODES) == ALL
    [comment] = re.findall(r"^# `make federation`: (.*)\.$", (ROOT / "Makefile").read_text(), re.M)
    assert comment.replace(" or ", ", ") == ", ".join(ALL)


def test_the_workflow_runs_the_federation_in_every_mode() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())
    steps = workflow["jobs"]["federation"]["steps"]
    runs = [step["env"]["PRIVACY"] for step in steps if step.get("run") == "make federation"]
    assert tuple(runs) == ALL


def test_the_federation_says_what_has_arrived_of_a_table() -> None:
    tables = [np.arange(4.0), np.array([5.0, 1.0, 2.0, 0.0])]
    sent = {
        "arrays": [[0.0, 0.1, 0.2, 0.3]],
        "metrics": [{"age": 47.0}],
        "texts": [{"a": "b" * 99}],
    }
    made = {"arrays": [[1.0, 1.0, 0.0, 0.0]], "metrics": [{"num-examples": 1}], "texts": []}
    refused = {"error": "PolicyRefusal"}
    first, second, third = arrived_lines(tables, [sent, made, refused])
    assert "4 numbers, correlation with the table 1.00; metrics: age=47.0; texts: a=bbb" in first
    assert len(first) < 120
    assert "table 0.53; metrics: num-examples=1; texts: none" in second
    assert "PolicyRefusal: the gate did not start the app" in third


def test_the_federation_says_whose_app_was_late() -> None:
    late = "the client failed\nTraceback:\nTimeoutError: the app gave no answer in its time\n"
    [line] = late_lines({"north": "all is well", "south": 2 * late})
    assert line.startswith("  south: 2 answers are noise alone")


def test_the_app_that_sends_tables_knows_nothing_of_fl_dp() -> None:
    texts = [file.read_text(encoding="utf-8") for file in CURIOUS.rglob("*.py")]
    assert len(texts) == 3
    assert not any(re.search(r"import fl_dp|from fl_dp", text) for text in texts)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_a_federation_that_is_stopped_leaves_nothing_running(
    script: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert script.stdout is not None
    for line in script.stdout:
        if "SuperLink with TLS" in line:
            break
    while not processes_of(tmp_path):
        assert script.poll() is None
    script.send_signal(signal.SIGINT)
    assert script.wait() == 1
    until(lambda: not processes_of(tmp_path))  # the kernel may be busy when the last one has ended


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL)
def test_the_same_app_runs_in_a_simulation_and_on_the_federation(name: str, tmp_path: Path) -> None:
    mode = patient(MODES[name])
    with Federation(tmp_path / "place", mode) as federation:
        run = federation.train(name)
        assert run.read_metrics()[-1].get("test_accuracy", 1.0) > 0.6  # .5 untrained
        assert "SuperNode authentication is disabled" not in federation.log("superlink")
        assert processes_of(tmp_path / "place")
        lines = "\n".join(spent_lines(federation, run))
        for ward in WARDS:
            assert (f"{ward}: epsilon" in lines) == (name != "central")
            assert (f"{ward}: no epsilon of its own" in lines) == (name == "central")
        if mode.gate:
            arrived = federation.send_tables()
            assert len(arrived) == len(WARDS)
            what_arrives(name, federation, arrived)
    assert processes_of(tmp_path / "place") == []
    assert len(run.read_metrics()) >= ROUNDS
    (tmp_path / "simulation").mkdir()
    apart = simulated(tmp_path / "simulation", federation.overrides(name))
    assert said_of_privacy(apart) == said_of_privacy(run)


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(1800)
def test_a_node_runs_no_app_that_nobody_signed(tmp_path: Path) -> None:
    with Federation(tmp_path / "place", MODES["dp_sgd"]) as federation:
        with pytest.raises(RuntimeError, match="the run did not end well"):
            federation.train("unsigned", app=str(ROOT))
        for ward in WARDS:
            assert "The FAB could not be verified" in federation.log(ward)
            assert "flwr-clientapp" not in federation.log(ward)
            assert not federation.ledger_of(ward).exists()


def test_a_folder_that_is_no_app_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no pyproject.toml: name a Flower app's folder"):
        main(["--app", str(tmp_path)])


_CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    part = context.node_config["partition-id"] / context.node_config["num-partitions"]
    model = message.content["arrays"].to_numpy_ndarrays()[0]
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord([model + part]), "metrics": metrics})
    return Message(content, reply_to=message)
"""
_SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3)
    strategy.start(grid, ArrayRecord([np.zeros(400)]), num_rounds=1)
"""


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(1800)
def test_an_app_of_one_s_own_runs_behind_the_gates(tmp_path: Path) -> None:
    own = write_app(tmp_path / "mine", client=_CLIENT, server=_SERVER)
    with Federation(tmp_path / "place", patient(MODES["local"]), own) as federation:
        assert federation.own == "@stranger/mine==1.0.0"
        federation.run_own(federation.own)
        lines = list(spent_lines(federation, None))
    assert len(lines) == len(WARDS) and all("1 releases" in line for line in lines)


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(1800)
def test_buffers_are_filled_on_the_federation(tmp_path: Path) -> None:
    with Federation(tmp_path / "place", patient(MODES["central"])) as federation:
        run = federation.train("buffers", "privacy=buffered", "selection.sampling_rate=0.67")
    with PrivacyLedger.read(run.ledger) as ledger:
        assert ledger.rounds_committed == ledger.rounds_spent == ROUNDS
        entries = [entry.fields for entry in ledger.entries]
    folded = [unit for each in entries if each["kind"] == "fold" for unit in each["units"]]
    assert len(folded) == 2 * ROUNDS and set(folded) <= set(WARDS)
