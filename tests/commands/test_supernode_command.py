"""`fl-dp supernode`: what is wrong ends in one line before anything is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fl_dp.commands.app import app
from fl_dp.gate import gated_supernode as gated
from fl_dp.gate import isolation
from fl_dp.gate.app_user import AppUser
from fl_dp.gate.gate import Gate
from fl_dp.gate.isolation import Attempt, Guarded

POLICY: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-max-epsilon": 8.0,
    "dp-gate-promise": "local",
    "dp-gate-clipping-norm": 0.5,
    "dp-gate-noise-multiplier": 4.0,
    "dp-gate-answer-after": 60,
}
APART = ("--app-user", "nobody")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    (tmp_path / "private").mkdir()
    file.write_text(
        yaml.safe_dump(POLICY | {"dp-ledger-path": str(tmp_path / "private" / "ledger.db")})
    )
    return file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines that Flower's SuperNode was started with."""
    lines: list[list[str]] = []

    def behind(wrap: Callable[[Any], Any]) -> Callable[[], None]:
        return lambda: lines.append(list(sys.argv))

    monkeypatch.setattr(gated, "supernode_behind_gate", behind)
    monkeypatch.setattr("uvicorn.Config", lambda app, **options: options)
    monkeypatch.setattr(sys, "argv", ["fl-dp"])
    return lines


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return what each gate was told of its isolation."""
    told: list[bool] = []

    class Told(Gate):
        def __init__(self, policy: Path, *, isolated: bool = False) -> None:
            super().__init__(policy, isolated=isolated)
            told.append(self.isolated)

    monkeypatch.setattr(gated, "Gate", Told)
    return told


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["supernode", *map(str, words)])


def said_by(ended: Any) -> str:
    return " ".join(ended.stderr.split())


def test_flower_s_own_options_are_handed_on(
    policy: Path, started: list[list[str]], isolated: list[bool]
) -> None:
    config = 'partition-id=0 dp-data-path="/srv/north" dp-data-schema="/srv/schema.yaml"'
    rest = ["--superlink", "192.0.2.1:8000", "--node-config", config]
    ended = run("--policy", policy, *rest, *APART)
    assert ended.exit_code == 0
    assert "nobody has found out what an app of nobody could do" in said_by(ended)
    assert started == [["flower-supernode", *rest, "--isolation", "process"]]
    assert isolated == [False]


def test_who_lets_apps_run_as_the_gate_s_user_is_told_what_that_means(
    policy: Path, started: list[list[str]], isolated: list[bool]
) -> None:
    ended = run("--policy", policy, "--cooperative", "--insecure")
    assert ended.exit_code == 0
    assert "they can read the ledger" in said_by(ended)
    assert started == [["flower-supernode", "--insecure"]]
    assert isolated == [False]


def test_a_gate_whose_ledger_has_no_folder_does_not_start(
    policy: Path, started: list[list[str]]
) -> None:
    """Else it would answer every round by noise alone."""
    (policy.parent / "private").rmdir()
    ended = run("--policy", policy, "--cooperative", "--insecure")
    assert ended.exit_code == 2
    assert f"folder {policy.parent / 'private'} does not exist: make it" in said_by(ended)
    assert not started


def test_a_port_that_is_taken_ends_in_one_line(
    policy: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def behind(wrap: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            raise RuntimeError("SuperNode Runtime HTTP API failed to start.")

        return run

    monkeypatch.setattr(gated, "supernode_behind_gate", behind)
    ended = run("--policy", policy, "--cooperative", "--insecure")
    assert ended.exit_code == 2
    assert "add --port NUMBER" in said_by(ended)


def test_the_app_s_user_alone_reaches_the_runtime_api(
    policy: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[object, Path | None]] = []

    def behind(guard: Callable[[Any], Any], *, socket: Path | None = None) -> Any:
        served.append((getattr(guard("app"), "_user", "nobody asks"), socket))

    monkeypatch.setattr("fl_dp.app.local.local_supernode.supernode_behind", behind)
    socket = policy.with_name("runtime.sock")
    run("--policy", policy, "--cooperative")
    run("--policy", policy, *APART)
    run("--policy", policy, *APART, "--app-socket", socket)
    own, nobody = os.getuid(), AppUser.named("nobody").uid
    # Who may open a socket is what its folder says.
    assert served == [(own, None), (nobody, None), ("nobody asks", socket)]
    assert len(started) == 3


def checked(monkeypatch: pytest.MonkeyPatch, *attempts: Attempt, uid: int = 0) -> list[Guarded]:
    """Let a check find this, and return what it was asked for."""
    asked: list[Guarded] = []

    def tried(user: AppUser, guarded: Guarded) -> list[Attempt]:
        asked.append(guarded)
        return list(attempts)

    monkeypatch.setattr(isolation, "tried", tried)
    monkeypatch.setattr("os.geteuid", lambda: uid)
    return asked


def test_a_check_tries_files_of_the_policy_and_of_flower_s_options(
    policy: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", "/srv/flower")
    asked = checked(monkeypatch, Attempt("read", ()), uid=os.getuid())
    flower = ["--superlink=192.0.2.1:8000", "--trusted-entities", "/srv/trusted.yaml"]
    key = ["--auth-supernode-private-key", "/srv/node.key"]
    ended = run("--policy", policy, *APART, "--check", *flower, *key)
    assert (ended.exit_code, started) == (0, [])
    [guarded] = asked
    ledger = policy.parent / "private" / "ledger.db"
    keys = [ledger.with_name(name) for name in ("secagg-identity.pem", "secagg.db")]
    assert guarded.secrets == (policy, ledger, *keys, Path("/srv/node.key"))
    assert guarded.unwritable == (Path("/srv/trusted.yaml"),)
    assert (guarded.home, guarded.superlink) == (Path("/srv/flower"), ("192.0.2.1", 8000))
    assert "can't go around this gate" in ended.stdout


def test_where_something_can_be_gone_around_a_check_ends_with_1_and_says_what(
    policy: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = tuple(f"/file/{number}" for number in range(9))
    checked(monkeypatch, Attempt("read it", paths), Attempt("change it", ()), uid=4711)
    ended = run("--policy", policy, *APART, "--check")
    assert (ended.exit_code, started) == (1, [])
    assert "/file/2" in ended.stdout and "and 6 more" in ended.stdout
    assert "could go around this gate" in said_by(ended)
    assert not isolation.result_file(policy).exists()


@pytest.mark.skipif(os.getuid() != 0, reason="a gate believes root alone")
@pytest.mark.parametrize("successes", [(), ("/ledger.db",)])
def test_a_gate_that_starts_after_a_check_knows_what_root_found(
    policy: Path,
    started: list[list[str]],
    isolated: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    successes: tuple[str, ...],
) -> None:
    checked(monkeypatch, Attempt("read", successes))
    run("--policy", policy, *APART, "--check")
    ended = run("--policy", policy, *APART)
    assert isolated == [not successes]
    assert ("enforced by the site" in said_by(ended)) == (not successes)
    assert len(started) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "add --app-user USER"),
        (("--check", "--cooperative"), "add --app-user USER"),
        ((*APART, "--iso=subprocess"), "leave it out, and write --app-user USER"),
        (("--cooperative", *APART), "leave --app-user and --app-socket out"),
        (("--cooperative", "--app-socket", "/run/s"), "leave --app-user and --app-socket out"),
        (("--app-user", "root"), "make a user for them"),
        ((*APART, "--node-config", "dp-max-epsilon=4.0"), "dp-max-epsilon stands in --node-config"),
        ((*APART, "--n=max-epsilon=4.0"), "max-epsilon stands in --node-config"),
    ],
)
def test_what_would_leave_the_gate_open_is_refused(
    policy: Path, started: list[list[str]], words: tuple[str, ...], said: str
) -> None:
    ended = run("--policy", policy, *words)
    assert ended.exit_code == 2
    assert said in said_by(ended)
    assert started == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp-max-epsilon: 4.0\n", "dp-gate-promise is missing"),
        ("dp-gate-promise: locall\n", "should be 'local', 'distributed', 'clip' or 'record'"),
    ],
)
def test_a_policy_that_can_t_be_meant_is_an_error_at_the_start(
    policy: Path, started: list[list[str]], text: str, said: str
) -> None:
    policy.write_text(text)
    ended = run("--policy", policy, *APART)
    assert ended.exit_code == 2
    assert said in said_by(ended)
    assert started == []


def test_packages_of_a_named_app_are_not_installed_at_the_server_s_wish(
    policy: Path, started: list[list[str]]
) -> None:
    terms = {"noise-multiplier": 1.1, "sampling-rate": 0.01, "steps": 20, "clipping-norm": 1.0}
    named = {
        "dp-ledger-path": str(policy.parent / "private" / "ledger.db"),
        "dp-max-epsilon": 4.0,
        "dp-allowed-apps": "hospital/heart@" + "0f" * 32,
        "dp-gate-promise": "record",
        "dp-gate-dp-sgd": terms,
        "dp-gate-environment": "/srv/app/venv",
        "dp-gate-answer-after": 60,
    }
    words = ("--policy", policy, "--cooperative", "--allow-runtime-dependency-installation")
    run(*words)
    policy.write_text(yaml.safe_dump(named))
    ended = run(*words)
    assert ended.exit_code == 2
    assert "leave --allow-runtime-dependency-installation out" in said_by(ended)
    run("--policy", policy, "--cooperative")
    assert len(started) == 2


def test_a_policy_that_is_not_there_is_an_error_at_the_start(started: list[list[str]]) -> None:
    ended = run("--policy", "/no/such/policy.yaml", *APART)
    assert (ended.exit_code, started) == (2, [])
    assert "can't be read" in said_by(ended)
    assert run(*APART).exit_code == 2
