"""`fl-dp audit`: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from command_line import call as fl_dp

from fl_dp.lab.audit.scores import report_of_scores
from fl_dp.lab.audit.verdict import AuditReport, Finding, audit_lines, audit_table, confidence


def call(*arguments: str) -> Result:
    return fl_dp("audit", *arguments)


def scores(folder: Path, apart: float) -> str:
    rng = np.random.default_rng(0)
    file = folder / f"{apart}.npz"
    np.savez(file, out=rng.normal(size=2000), there=rng.normal(size=2000) + apart)
    return str(file)


def test_scores_that_show_more_than_is_claimed_are_status_1_and_others_status_0(
    tmp_path: Path,
) -> None:
    telling = call("--json", "--scores", scores(tmp_path, 4.0), "--claim=1", "--delta=1e-5")
    assert telling.exit_code == 1
    (audit,) = json.loads(telling.stdout)["audits"]
    (finding,) = audit["findings"]
    assert audit["verdict"] == finding["verdict"] == "violated"
    assert finding["claim"] == 1.0
    assert finding["lower_bound"] > 1.0
    assert finding["confidence"] == pytest.approx(1 - 1e-6)
    assert "at most" in finding["power"]
    silent = call("--scores", scores(tmp_path, 0.0), "--claim=1", "--delta=1e-5")
    assert silent.exit_code == 0
    assert "proves no privacy" in silent.stdout


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["run_name=good"], "run_name= is for models that are used"),
        (["resume=runs/good"], "resume= is for models that are used"),
        (["resume=runs/good", "--keep-model"], "from the first round on"),
        (["privacy=local"], "privacy=central"),
        (["selection=public", "--canaries=200"], "leave nobody to train"),
        (["selection=public", "--canaries=30"], "must divide the 200 clients"),
        (["--canaries=600"], "at least 1200 parameters"),
        (["--by=records", "privacy=central"], "no DP-SGD"),
        (["task=csv"], "task=csv reads data of your own"),
        (["--by=records", "task=csv"], "no ledger is charged for an audited training"),
        (["--scores=missing.npz"], "--claim"),
    ],
)
def test_what_can_not_be_audited_is_one_line_before_anything_starts(
    arguments: list[str], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert cause in " ".join(result.stderr.split())
    assert not (tmp_path / "audits").exists()


def test_sums_of_shares_are_played_without_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    played = call("privacy=distributed", "task.num_clients=10", "rounds=4", "--json")
    assert played.exit_code == 0, played.stderr
    (audit,) = json.loads(played.stdout)["audits"]
    assert audit["subject"] == "digits, 4 sums of 8 shares of noise"
    assert [each["verdict"] for each in audit["findings"]] == ["stands"] * 5
    assert audit["findings"][0]["claim"] == pytest.approx(8.0, rel=0.01)
    assert not (tmp_path / "audits").exists()


def test_scores_keep_their_claim_whatever_order_they_come_in() -> None:
    rng = np.random.default_rng(0)
    out, there = np.sort(rng.normal(size=1000)), np.sort(rng.normal(size=1000))
    report = report_of_scores(out, there, claim=0.1, delta=1e-5, alpha=1e-6, subject="sorted")
    assert report.stands


def test_a_finding_without_an_epsilon_stands_or_is_caught() -> None:
    stands = Finding(name="a", alpha=1e-6)
    caught = Finding(name="b", alpha=1e-6, caught=True, observed="everything")
    assert stands.stands
    assert not AuditReport(subject="s", findings=(stands, caught)).stands
    report = AuditReport(subject="s", findings=(stands, caught))
    assert audit_table(report).row_count == 2
    assert audit_lines(report)[-1] == "VIOLATED: b"
    assert [confidence(alpha) for alpha in (0.05, 1e-6)] == ["0.95", "0.999999"]


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
def test_a_small_training_is_audited_through_flowers_engine(tmp_path: Path) -> None:
    options = (
        "--json --canaries=100 task.num_clients=10 rounds=2 simulation.units_per_node=50 "
        "simulation.engine=flower"
    )
    done = subprocess.run(
        [str(Path(sys.executable).parent / "fl-dp"), "audit", *options.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (audit,) = json.loads(done.stdout)["audits"]
    finding, *others = audit["findings"]
    assert audit["verdict"] == finding["verdict"] == "stands"
    assert len(others) == 5  # four on the noise, one on the coins
    assert finding["claim"] == pytest.approx(8.0, rel=0.01)
    (folder,) = (tmp_path / "audits").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names >= {"audit.json", "canaries.npz", "ledger.db", "privacy.json"}
    assert not names & {"model.safetensors", "checkpoint.safetensors"}  # canaries moved them
