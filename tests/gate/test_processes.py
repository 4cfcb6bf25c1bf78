"""The processes of a gate, and what it asks of the installed Flower before it starts them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gated_site import NODE, Server
from owned_clock import OwnedClock, machine_clock
from waiting import until

from fl_dp.clients.owner.node_config import NodeConfigError
from fl_dp.gate import flower_wire, gated_supernode
from fl_dp.gate.figures import GateFigures
from fl_dp.gate.flower_wire import CALLS, Call, require_fitting_flower
from fl_dp.gate.gate import Gate
from fl_dp.gate.gated_supernode import KeptUp, checked_gate, own_site, run_gate
from fl_dp.gate.link import Link, LinkLost, NodeKey
from fl_dp.protocol.flower_versions import FlowerChanged

# Leaves its name and that of a child of its own, and stays; "desk" and "supernode" are for the log.
STAYS = """
import os, sys, time
child = os.fork()
with open(sys.argv[1], "a") as told:
    told.write(f"{os.getpid()}\\n")
time.sleep(3600)
"""


def command(file: Path) -> list[str]:
    return [sys.executable, "-c", STAYS, str(file), "supernode"]


def told_by(file: Path, lines: int) -> list[int]:
    """Return the ids of processes once so many have told theirs."""
    until(lambda: file.exists() and len(file.read_text().splitlines()) >= lines)
    return [int(line) for line in file.read_text().splitlines()]


def is_there(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    return "zombie" not in status


def test_what_ends_is_started_again_without_what_it_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_clock(monkeypatch)
    kept = KeptUp(command(tmp_path / "told"))
    first = told_by(tmp_path / "told", 2)
    # Where memory is short, the system ends the largest of these, and not the gate.
    for process in first:
        assert Path(f"/proc/{process}/oom_score_adj").read_text() == "1000\n"
    parent = min(first, key=lambda process: os.getpgid(process) != process)
    os.kill(parent, signal.SIGKILL)
    both = told_by(tmp_path / "told", 4)
    until(lambda: not any(map(is_there, first)))
    kept.end()
    until(lambda: not any(map(is_there, both)))


def test_desk_and_supernode_get_their_sockets_and_end_with_the_block(tmp_path: Path) -> None:
    desk, node = tmp_path / "desk", tmp_path / "node"
    says = "import os, sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]) + ' end')"
    waits = f"{says}; import time; time.sleep(3600)"
    started = [[sys.executable, "-c", waits, str(file)] for file in (node, desk)]
    started[0].append("supernode")
    started[1].append("desk")
    with own_site(*started) as (gate_socket, _):
        until(lambda: desk.exists() and desk.read_text().endswith("end"))
        until(lambda: node.exists() and node.read_text().endswith("end"))
        words = desk.read_text().split()
        assert words[:4] == ["desk", "--gate", str(gate_socket), "--listening"]
        assert gate_socket.parent.stat().st_mode & 0o077 == 0
        name, insecure, superlink, address, _ = node.read_text().split()
        assert (name, insecure, superlink) == ("supernode", "--insecure", "--superlink")
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))):
            pass
    assert not gate_socket.parent.exists()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(
        f"dp-ledger-path: {tmp_path / 'ledger.db'}\ndp-max-epsilon: 8.0\n"
        "dp-gate-promise: local\ndp-gate-clipping-norm: 0.5\ndp-gate-noise-multiplier: 4.0\n"
        "dp-gate-answer-after: 60\n"
    )
    return file


def test_a_gate_joins_works_and_says_goodbye(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    left: list[str] = []
    server._deactivate_node = left.append  # type: ignore[attr-defined]  # not otherwise called
    server._unregister_node = left.append  # type: ignore[attr-defined]  # not otherwise called
    pulls: list[Any] = []

    def pulled(asked: Any) -> dict[str, Any]:
        pulls.append(asked)
        if len(pulls) == 3:
            raise LinkLost("register its key there")
        return {}

    monkeypatch.setattr(server, "_pull_messages", pulled)
    monkeypatch.setattr(gated_supernode, "_beat", lambda link: None)
    link = Link(server.post, NodeKey())
    with pytest.raises(LinkLost):
        run_gate(Gate(policy), link, policy, tmp_path / "gate.sock", lambda: None, GateFigures())
    assert [asked.node.node_id for asked in pulls] == [NODE] * 3
    assert [asked.node_id for asked in left] == [NODE] * 2  # type: ignore[attr-defined]  # protobuf


def test_heartbeats_go_on_by_the_clock_whatever_becomes_of_one(owned: OwnedClock) -> None:
    beats: list[float] = []

    class Enough(BaseException):
        pass

    def beat() -> None:
        beats.append(owned.now())
        if len(beats) == 4:
            raise Enough
        if len(beats) == 2:
            raise LinkLost("not now")

    with pytest.raises(Enough):
        gated_supernode._beat(SimpleNamespace(beat=beat))  # type: ignore[arg-type]  # of a link
    assert beats == [15.0, 30.0, 45.0, 60.0]


def test_a_gate_that_would_answer_with_noise_alone_does_not_start(policy: Path) -> None:
    policy.write_text(policy.read_text().replace("max-epsilon: 8.0", "max-epsilon: 1.0e-9"))
    with pytest.raises(NodeConfigError, match="no room for one answer"):
        checked_gate(policy, isolated=False)


# Whether this Flower fits.


def test_this_flower_fits() -> None:
    require_fitting_flower()


def test_a_flower_without_a_call_or_a_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "push-object", Call(*CALLS["get-run"]))
    with pytest.raises(FlowerChanged, match="object_content in the call push-object"):
        require_fitting_flower()
    monkeypatch.delitem(CALLS, "push-object")
    with pytest.raises(FlowerChanged, match="the call push-object of its Fleet API"):
        require_fitting_flower()


def test_more_calls_than_a_gate_makes_are_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "of-tomorrow", CALLS["get-run"])
    require_fitting_flower()


def test_a_flower_whose_messages_have_another_form_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flower_wire, "get_object_id", lambda content: "another digest")
    with pytest.raises(FlowerChanged, match="messages as trees of objects"):
        require_fitting_flower()
