"""`fl-dp supernode`: what is wrong ends in one line before anything is sent."""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest
import yaml
from typer.testing import CliRunner

from fl_dp.commands.app import app
from fl_dp.gate import gated_supernode as gated
from fl_dp.gate import isolation
from fl_dp.gate.app_user import AppUser
from fl_dp.gate.figures import GateFigures
from fl_dp.gate.gate import Gate
from fl_dp.gate.gated_supernode import LinkOptions
from fl_dp.gate.isolation import Attempt, Guarded
from fl_dp.gate.link import LinkLost, LinkRefused
from fl_dp.user_code import Contained

POLICY: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-max-epsilon": 8.0,
    "dp-gate-promise": "local",
    "dp-gate-clipping-norm": 0.5,
    "dp-gate-noise-multiplier": 4.0,
    "dp-gate-answer-after": 60,
}
APART = ("--app-user", "nobody", "--desk-socket", "/run/gate.sock")
LINK = ("--superlink", "192.0.2.1:8000", "--insecure")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    (tmp_path / "private").mkdir()
    file.write_text(
        yaml.safe_dump(POLICY | {"dp-ledger-path": str(tmp_path / "private" / "ledger.db")})
    )
    return file


class Started(NamedTuple):
    """A gate that would run.

    Attributes:
        supernode: Command of its own SuperNode; empty: it starts none.
        desk_socket: Where its desk connects.
        options: How it reaches the SuperLink.
    """

    supernode: list[str]
    desk_socket: Path
    options: LinkOptions


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Return the gates that were started, of which none runs."""
    gates: list[Started] = []
    made: list[Any] = []

    def link(options: LinkOptions, figures: GateFigures) -> str:
        made.append(options)
        return "link"

    @contextmanager
    def site(supernode: list[str], desk: list[str]) -> Iterator[Any]:
        made.append(supernode)
        yield Path("own"), SimpleNamespace(kill=None)

    def ran(
        gate: Any, link: str, policy: Path, desk_socket: Path, abandon: Any, figures: GateFigures
    ) -> NoReturn:
        options, *commands = made
        supernode = [word for command in commands for word in command[4:]]
        gates.append(Started(supernode, desk_socket, options))
        made.clear()
        sys.exit(0)

    monkeypatch.setattr(LinkOptions, "link", link)
    monkeypatch.setattr(gated, "own_site", site)
    monkeypatch.setattr(gated, "run_gate", ran)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    return gates


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


def test_flower_s_own_options_are_the_gate_s_or_the_supernode_s(
    policy: Path, started: list[Started], isolated: list[bool]
) -> None:
    rest = ["--node-config", "partition-id=0", "--port=9105", "--trusted-entities", "/srv/t.yaml"]
    own = ["--superlink", "192.0.2.1:8000", "--root-cert", "/srv/ca.crt"]
    key = ["--auth-supernode-private-key=/srv/node.key"]
    ended = run("--policy", policy, "--cooperative", *own, *rest, *key)
    assert ended.exit_code == 0
    assert "they can read the ledger" in said_by(ended)
    [gate] = started
    assert gate.supernode == rest
    assert gate.options == LinkOptions(
        superlink="192.0.2.1:8000",
        insecure=False,
        roots=Path("/srv/ca.crt"),
        key=Path("/srv/node.key"),
    )
    assert isolated == [False]


def test_a_gate_whose_apps_are_another_user_s_starts_no_supernode(
    policy: Path, started: list[Started], isolated: list[bool]
) -> None:
    ended = run("--policy", policy, *APART, *LINK)
    assert ended.exit_code == 0
    assert "nobody has found out what an app of nobody could do" in said_by(ended)
    [gate] = started
    assert (gate.supernode, gate.desk_socket) == ([], Path("/run/gate.sock"))
    assert isolated == [False]


def test_a_gate_whose_ledger_has_no_folder_does_not_start(
    policy: Path, started: list[Started]
) -> None:
    """Else it would answer every round by noise alone."""
    (policy.parent / "private").rmdir()
    ended = run("--policy", policy, "--cooperative", *LINK)
    assert ended.exit_code == 2
    assert f"folder {policy.parent / 'private'} does not exist: make it" in said_by(ended)
    assert not started


@pytest.mark.parametrize("error", [LinkRefused("status 409"), LinkLost("register its key there")])
def test_a_superlink_that_refuses_the_node_ends_in_one_line(
    policy: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def ran(*told: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(gated, "run_gate", ran)
    ended = run("--policy", policy, *APART, *LINK)
    assert ended.exit_code == 2
    assert str(error) in said_by(ended)


def test_a_gate_that_is_told_to_end_does_so_in_the_middle_of_an_answer(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*told: Any) -> NoReturn:
        with Contained("the app failed"):
            signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it goes on")

    monkeypatch.setattr(LinkOptions, "link", lambda options, figures: "link")
    monkeypatch.setattr(gated, "run_gate", ran)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run("--policy", policy, *APART, *LINK).exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_gate_shows_its_figures_to_prometheus_on_loopback(
    policy: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--policy", policy, *APART, *LINK, "--metrics-port", port)
        assert ended.exit_code == 2 and not started
        assert f"--metrics-port {port} can't be used" in said_by(ended)
    pages: list[str] = []

    def ran(*told: Any) -> NoReturn:
        told[-1].answers = 7
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            pages.append(page.read().decode())
        sys.exit(0)

    monkeypatch.setattr(gated, "run_gate", ran)
    assert run("--policy", policy, *APART, *LINK, "--metrics-port", port).exit_code == 0
    [page] = pages
    assert "fl_dp_node_answers 7.0\n" in page
    assert "fl_dp_node_epsilon_left 8.0\n" in page


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
    policy: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
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
    policy: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
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
    started: list[Started],
    isolated: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    successes: tuple[str, ...],
) -> None:
    checked(monkeypatch, Attempt("read", successes))
    run("--policy", policy, *APART, *LINK, "--check")
    ended = run("--policy", policy, *APART, *LINK)
    assert isolated == [not successes]
    assert ("enforced by the site" in said_by(ended)) == (not successes)
    assert len(started) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "add --app-user USER"),
        (("--check", "--cooperative"), "add --app-user USER"),
        ((*APART, "--iso=subprocess"), "leave it out, and write --app-user USER"),
        (("--cooperative", *APART), "leave --app-user and --desk-socket out"),
        (("--cooperative", "--desk-socket", "/run/s"), "leave --app-user and --desk-socket out"),
        (("--app-user", "nobody", *LINK), "add --desk-socket SOCKET"),
        (APART, "add --superlink HOST:PORT"),
        ((*APART, "--superlink"), "expected one argument"),
        (
            (*APART, *LINK, "--auth-supernode-private-key", "/srv/node.key"),
            "leave one of them out",
        ),
        (("--app-user", "root", "--desk-socket", "/run/s"), "make a user for them"),
        ((*APART, "--node-config", "dp-max-epsilon=4.0"), "dp-max-epsilon stands in --node-config"),
        ((*APART, "--n=max-epsilon=4.0"), "max-epsilon stands in --node-config"),
    ],
)
def test_what_would_leave_the_gate_open_is_refused(
    policy: Path, started: list[Started], words: tuple[str, ...], said: str
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
    policy: Path, started: list[Started], text: str, said: str
) -> None:
    policy.write_text(text)
    ended = run("--policy", policy, *APART)
    assert ended.exit_code == 2
    assert said in said_by(ended)
    assert started == []


def test_packages_of_a_named_app_are_not_installed_at_the_server_s_wish(
    policy: Path, started: list[Started]
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
    words = ("--policy", policy, "--cooperative", *LINK, "--allow-runtime-dependency-installation")
    run(*words)
    policy.write_text(yaml.safe_dump(named))
    ended = run(*words)
    assert ended.exit_code == 2
    assert "leave --allow-runtime-dependency-installation out" in said_by(ended)
    run("--policy", policy, "--cooperative", *LINK)
    assert len(started) == 2


def test_a_policy_that_is_not_there_is_an_error_at_the_start(started: list[Started]) -> None:
    ended = run("--policy", "/no/such/policy.yaml", *APART)
    assert (ended.exit_code, started) == (2, [])
    assert "can't be read" in said_by(ended)
    assert run(*APART).exit_code == 2
