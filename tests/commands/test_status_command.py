"""`fl-dp status`: an exit status for runs of plain `flwr run`, whatever their SuperLink says."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command_line import call, said_on_stderr

from fl_dp.app.local import flower_runs, superlink
from fl_dp.commands import status as status_command

FLWR = """#!/bin/sh
cd '{folder}'
echo "$@" >> asked
number=$(wc -l < asked)
[ -e answer$number ] || number=
cat answer$number
"""
Answers = Callable[..., None]


def run_in(status: str, details: str = "") -> str:
    return json.dumps({"success": True, "runs": [{"status": status, "status-details": details}]})


def error(text: str) -> str:
    return json.dumps({"success": False, "error-message": f"Using SuperLink: x (y)\n\n{text}"})


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """Put a script in the place of Flower's command, which gives one answer after the other."""
    script = tmp_path / "flwr"
    script.write_text(FLWR.format(folder=tmp_path))
    script.chmod(0o700)
    monkeypatch.setattr(flower_runs, "BIN", tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "192.0.2.1:8000"\n'
        '[superlink.own]\naddress = ":local:"\n'
    )
    monkeypatch.setattr(status_command, "_PAUSE", 0.0)

    def answer(*answers: str) -> None:
        for number, each in enumerate(answers, 1):
            (tmp_path / f"answer{number}").write_text(each)
        (tmp_path / "answer").write_text(answers[-1])  # from there on
        (tmp_path / "asked").unlink(missing_ok=True)

    yield answer


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("finished:completed", 0),
        ("finished:failed", 1),
        ("finished:stopped", 3),
        ("running", 4),
        ("pending", 4),
    ],
)
def test_the_exit_status_is_the_outcome_of_the_run(
    flower: Answers, tmp_path: Path, word: str, code: int
) -> None:
    flower(run_in(word, "because"))
    said = call("status", "17")
    assert said.exit_code == code
    assert said.stdout == f"run 17: {word} (because)\n"
    assert asked(tmp_path) == ["list --run-id 17 --format json"]


def test_a_connection_can_be_named_and_the_answer_be_json(flower: Answers, tmp_path: Path) -> None:
    flower(run_in("finished:failed", "it broke"))
    said = call("status", "17", "here", "--json")
    assert json.loads(said.stdout) == {
        "run": "17",
        "status": "finished:failed",
        "details": "it broke",
    }
    assert asked(tmp_path) == ["list here --run-id 17 --format json"]


def test_waiting_lasts_until_the_run_has_ended(flower: Answers, tmp_path: Path) -> None:
    flower(run_in("pending"), run_in("running"), run_in("running"), run_in("finished:completed"))
    said = call("status", "17", "--wait")
    assert said.exit_code == 0
    assert len(asked(tmp_path)) == 4
    assert said_on_stderr(said) == "run 17: pending run 17: running"  # each once


def test_waiting_lasts_no_longer_than_asked(flower: Answers) -> None:
    flower(run_in("running"))
    said = call("status", "17", "--wait", "--timeout", "0")
    assert (said.exit_code, said.stdout) == (4, "run 17: running\n")


def test_a_run_that_is_pending_for_long_is_said_once(
    flower: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "_LONG_PENDING", 0.0)
    flower(run_in("pending"), run_in("pending"), run_in("finished:stopped"))
    said = call("status", "17", "--wait")
    assert said.exit_code == 3
    assert said_on_stderr(said).count("has been pending for") == 1


DOWN = "Connection is unavailable."


def test_a_superlink_that_is_down_is_waited_for(flower: Answers, tmp_path: Path) -> None:
    flower(run_in("running"), error(DOWN), error(DOWN), run_in("finished:failed"))
    said = call("status", "17", "--wait")
    assert said.exit_code == 1
    assert len(asked(tmp_path)) == 4
    assert said_on_stderr(said).count("waiting for it") == 1


@pytest.mark.parametrize("options", [(), ("--wait", "--timeout", "0")])
def test_a_superlink_that_is_down_is_status_2_where_nobody_waits(
    flower: Answers, tmp_path: Path, options: tuple[str, ...]
) -> None:
    flower(error(DOWN))
    assert call("status", "17", *options).exit_code == 2
    assert len(asked(tmp_path)) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error("[code: 16] Run ID not found."), "knows no run 17: it is another one"),
        (error("Server error '501 Unsupported method'"), "501 Unsupported method"),
        ("<html>", "does not tell how run 17 stands: <html>"),
    ],
)
def test_who_says_nothing_of_the_run_is_one_line_and_status_2(
    flower: Answers, answer: str, said: str
) -> None:
    flower(answer)
    for more in ((), ("--wait",)):
        told = call("status", "17", *more)
        assert told.exit_code == 2
        assert said in said_on_stderr(told)
        assert len(told.stderr.splitlines()) == 1


def test_a_run_is_a_number(flower: Answers) -> None:
    told = call("status", "runs/17")
    assert told.exit_code == 2
    assert "RUN is the number that `flwr run` prints, got 'runs/17'" in said_on_stderr(told)


def local(monkeypatch: pytest.MonkeyPatch, port: int) -> Result:
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(port))
    return call("status", "17", "own")


def test_flower_s_own_superlink_is_not_started_in_order_to_be_asked(
    flower: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flower(run_in("running"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = local(monkeypatch, free.getsockname()[1])
    assert told.exit_code == 2
    assert "no SuperLink answers on port" in said_on_stderr(told)
    assert not (tmp_path / "asked").exists()


@pytest.mark.skipif(
    not superlink.users_can_be_told_apart(), reason="only Linux says who listens on a port"
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_somebody_else_s_superlink_on_the_port_is_refused(
    flower: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    flower(run_in("finished:completed"))
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        assert local(monkeypatch, port).exit_code == 0
        (tmp_path / "asked").unlink()
        me: Any = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        told = local(monkeypatch, port)
    assert told.exit_code == 2
    assert f"port {port} of this machine belongs to user {me} and not to you" in said_on_stderr(
        told
    )
    assert not (tmp_path / "asked").exists()
