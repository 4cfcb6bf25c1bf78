"""A real SuperLink before two sites, of which one runs an app that does all that it should not.

What the server sees of both is recorded before it, and may not tell which is which. In one
process: tests/gate/test_times.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from gated_deployment import GatedDeployment
from loopback_proxy import LoopbackProxy
from written_apps import write_app

ROUNDS, AFTER = 15, 24.0
LARGE = 1000  # bytes of a call: a model's array has more
POLICY: dict[str, Any] = {
    "max_epsilon": 1e9,
    "gate_promise": "local",
    "gate_clipping_norm": 1.0,
    "gate_noise_multiplier": 2.0,
    "gate_answer_after": AFTER,
}
CLIENT = """\
import os, signal, time
from pathlib import Path

from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()

def kill_its_supernode():
    pid = os.getpid()
    while b"supernode" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
    os.kill(pid, signal.SIGKILL)

def of_another_root(secret):
    import sys
    from flwr.supercore.inflatable import inflatable_object
    tree_of = inflatable_object.get_object_tree
    def other(message):
        tree = tree_of(message)
        tree.object_id = "f" * 64
        return tree
    frame = sys._getframe()
    while frame.f_code.co_name != "run_clientapp":
        frame = frame.f_back
    frame.f_globals["get_object_tree"] = other

@app.train()
def train(message, context):
    secret, number = context.node_config["secret"], message.content["config"]["server-round"]
    with Path(TOLD, secret).open("a") as told:
        told.write(f"{number}\\n")
    way = number % 5
    if secret == "south" and way == 0:
        time.sleep(3600)
    if secret == "south" and way == 1:
        kill_its_supernode()
    if secret == "south" and way == 2:
        of_another_root(secret)
    if secret == "south" and way == 3:
        raise ValueError(secret * 1000)
    return Message(message.content, reply_to=message)
"""
SERVER = """\
import json, threading, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) != 2:
        time.sleep(0.5)
    online, answers = [], []
    for number in range(ROUNDS):
        model = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})
        content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": number})})
        waiting = set(grid.push_messages(
            [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        ))
        replies, until = [], time.monotonic() + 60.0
        while waiting and time.monotonic() < until:
            replies += (arrived := list(grid.pull_messages(waiting)))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            online.append(len(list(grid.get_node_ids())))
            time.sleep(0.3)
        answers.append([
            [reply.error.code, reply.error.reason] if reply.has_error() else sorted(reply.content)
            for reply in replies
        ])
    Path(TOLD, "seen.json").write_text(json.dumps([online, answers]))
"""


def calls_of(tap: LoopbackProxy) -> list[tuple[str, float, int]]:
    """Return each call's name, its time, and the bytes of its request."""
    calls = []
    for time, head in tap.calls:
        name = re.match(rb"POST /v1/fleet/([a-z-]+)", head)
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert name and length
        calls.append((name.group(1).decode(), time, int(length.group(1))))
    return calls


def seconds(calls: list[tuple[str, float, int]], earlier: str, later: str) -> list[float]:
    """Return the times from the last call of one name to the next call of another."""
    times, began = [], None
    for name, time, _ in calls:
        if name == later and began is not None:
            times.append(time - began)
            began = None
        if name == earlier:
            began = time
    return times


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(1500)
def test_a_server_can_t_tell_which_of_two_sites_has_the_app_that_misbehaves(tmp_path: Path) -> None:
    app = write_app(
        tmp_path / "app",
        client=CLIENT,
        server=SERVER.replace("ROUNDS", str(ROUNDS)),
        TOLD=str(tmp_path),
    )
    taps: dict[str, LoopbackProxy] = {}
    with GatedDeployment(tmp_path / "processes", **POLICY) as running, ExitStack() as stack:
        for name in ("north", "south"):
            taps[name] = stack.enter_context(LoopbackProxy(running.port))
            running.join(name, {"secret": name}, through=taps[name].port)
        assert running.run(app, [], timeout=1200) == "finished:completed"
        north, south = map(calls_of, taps.values())
    online, answers = json.loads((tmp_path / "seen.json").read_text())
    assert set(online) == {2}
    assert answers == [[["arrays", "metrics"]] * 2] * ROUNDS
    for name in taps:
        assert (tmp_path / name).exists()  # the app was there, and knew which site it was
    # Ids of nodes differ in length, and what both sites send alike travels once.
    for calls in (north, south):
        sizes = Counter((name, size) for name, _, size in calls if name.startswith("push-messages"))
        models = Counter(size for _, _, size in calls if size > LARGE)
        assert list(sizes.values()) == list(models.values()) == [ROUNDS]
    for earlier, later in (
        ("pull-messages", "confirm-message-received"),
        ("confirm-message-received", "push-messages"),
        ("push-messages", "pull-messages"),
    ):
        one, other = (seconds(calls, earlier, later) for calls in (north, south))
        assert len(one) >= ROUNDS and len(other) >= ROUNDS
        # An app of the old gate moved them by seconds in most rounds.
        assert median(one[:ROUNDS]) == pytest.approx(median(other[:ROUNDS]), abs=0.3)
        assert sorted(one)[-3] == pytest.approx(sorted(other)[-3], abs=1.0)
