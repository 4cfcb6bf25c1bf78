"""`fl-dp supernode`: what is wrong ends in one line before anything is sent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fl_dp.commands.app import app
from fl_dp.gate import supernode as gated

POLICY: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-max-epsilon": 8.0,
    "dp-gate-promise": "local",
    "dp-gate-clipping-norm": 0.5,
    "dp-gate-noise-multiplier": 4.0,
    "dp-gate-answer-after": 60,
}
APART = ("--isolation", "process")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(POLICY))
    return file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines that Flower's SuperNode was started with."""
    lines: list[list[str]] = []

    def behind(wrap: Callable[[Any], Any]) -> Callable[[], None]:
        return lambda: lines.append(list(sys.argv))

    monkeypatch.setattr(gated, "supernode_behind_gate", behind)
    monkeypatch.setattr(sys, "argv", ["fl-dp"])
    return lines


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["supernode", *map(str, words)])


def test_flower_s_own_options_are_handed_on(policy: Path, started: list[list[str]]) -> None:
    rest = ["--superlink", "192.0.2.1:8000", "--node-config", "partition-id=0", *APART]
    ended = run("--policy", policy, *rest)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert started == [["flower-supernode", *rest]]


def test_who_lets_apps_run_as_the_gate_s_user_is_told_what_that_means(
    policy: Path, started: list[list[str]]
) -> None:
    ended = run("--policy", policy, "--cooperative", "--insecure")
    assert ended.exit_code == 0
    assert "they can read the ledger" in " ".join(ended.stderr.split())
    assert started == [["flower-supernode", "--insecure"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "add --isolation process"),
        (("--isolation", "subprocess"), "add --isolation process"),
        (("--iso=subprocess",), "add --isolation process"),
        (("--isolation=process", "--isolation=subprocess"), "add --isolation process"),
        (("--cooperative", *APART), "leave --isolation out"),
        ((*APART, "--node-config", "dp-max-epsilon=4.0"), "dp-max-epsilon stands in --node-config"),
        ((*APART, "--n=max-epsilon=4.0"), "max-epsilon stands in --node-config"),
    ],
)
def test_what_would_leave_the_gate_open_is_refused(
    policy: Path, started: list[list[str]], words: tuple[str, ...], said: str
) -> None:
    ended = run("--policy", policy, *words)
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert started == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must hold lines like"),
        ("dp-max-epsilon: 4.0\n", "dp-gate-promise is missing"),
        ("dp-gate-promise: locall\n", "should be 'local' or 'clip'"),
    ],
)
def test_a_policy_that_can_t_be_meant_is_an_error_at_the_start(
    policy: Path, started: list[list[str]], text: str, said: str
) -> None:
    policy.write_text(text)
    ended = run("--policy", policy, *APART)
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert started == []


def test_a_policy_that_is_not_there_is_an_error_at_the_start(started: list[list[str]]) -> None:
    ended = run("--policy", "/no/such/policy.yaml", *APART)
    assert (ended.exit_code, started) == (2, [])
    assert "can't be read" in " ".join(ended.stderr.split())
    assert run(*APART).exit_code == 2
