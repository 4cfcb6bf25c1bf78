"""Real SuperNodes behind gates, and apps that do in their own processes what they should not.

One federation plays one after another. In one process: tests/gate.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from gated_deployment import DeploymentApart, GatedDeployment
from written_apps import write_app

from fl_dp.ledger import NodeLedger

SITES = {"north": "patient 4711", "south": "x" * 29}
POLICY: dict[str, Any] = {
    "max_epsilon": 1e9,
    "gate_promise": "local",
    "gate_clipping_norm": 1.0,
    "gate_noise_multiplier": 0.01,  # of length 0.1 over the model
    "gate_answer_after": 50.0,
}
WAYS = (
    "patches fl-dp",
    "answers twice and goes on in another process",
    "replays another round and answers",
    "kills its SuperNode",
    "sends a tree of another root",
    "comes back",
    "floods the desk",
    "burns all processors in another session",
    "never answers",
    "behaves",
    "behaves again",
)
UPDATES = dict.fromkeys(WAYS, (1.0,)) | {
    "never answers": (0.0,),
    "kills its SuperNode": (0.0, 1.0),  # a busy machine may take too long to start another one
    # Flower's loop ends by it, and with it the SuperNode's part in this round.
    "sends a tree of another root": (0.0,),
    "comes back": (0.0, 1.0),  # a SuperNode whose loop has ended is ended after ninety seconds
    "floods the desk": (0.0, 1.0),
    "behaves": (0.0, 1.0),  # its SuperNode ends within half a minute, and another one starts
    "burns all processors in another session": (0.0, 1.0),
}
MODEL = ["train", "", ["arrays", "metrics"], {"num-examples": 1}, [["w", "float32", [100], 528]]]

CLIENT = """\
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def of_the_process():
    # What Flower's process of this app pushes its reply by.
    frame = sys._getframe()
    while frame.f_code.co_name != "run_clientapp":
        frame = frame.f_back
    return frame.f_globals["push_message"], frame.f_locals["client"], frame.f_locals["context"]

def push(reply):
    function, client, context = of_the_process()
    function(client, reply, context)

def trained(message, secret, update=1e6):
    model = message.content["arrays"]["w"].numpy()
    arrays = ArrayRecord({"w": Array((model + update).astype(model.dtype))})
    metrics = MetricRecord({"num-examples": len(secret)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

def patched():
    import fl_dp.mechanisms
    from fl_dp.gate import gate, loop, ways
    from fl_dp.mechanisms import GaussianMechanism, SecureRandom
    fl_dp.mechanisms.clip_by_norm = ways.clip_by_norm = lambda update, norm: update
    GaussianMechanism.privatize = lambda self, values, rng: values
    gate.Gate.judge = loop.GateLoop._answer = None

def goes_on(message, secret):
    if os.fork():
        return
    os.setsid()
    while True:  # as long as anybody takes it
        time.sleep(1.0)
        try:
            push(trained(message, secret, 7.0))
        except Exception:
            os._exit(0)

def kill_its_supernode():
    pid = os.getpid()
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
        if b"supernode" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
            time.sleep(3600)

def sends_another_root():
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

def supernode_s_words():
    pid = os.getpid()
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\\0")
        if "--superlink" in words:
            return words

def apart(seconds, work):
    # In processes of another session, which outlive the app's.
    for _ in range(2 * os.cpu_count()):
        if not os.fork():
            os.setsid()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                with suppress(Exception):
                    work()
            os._exit(0)

def flood():
    from http.client import HTTPConnection
    words = supernode_s_words()
    desk = words[words.index("--superlink") + 1]
    def call():
        connection = HTTPConnection(desk, timeout=5.0)
        connection.request("POST", "/v1/fleet/push-object", bytes(4 << 20))
        connection.getresponse().read()
    apart(30.0, call)

@app.train()
def train(message, context):
    secret, way = str(context.node_config["secret"]), message.content["config"]["way"]
    kept = Path(TOLD, f"{secret} id")
    reply = trained(message, secret)
    if way == "patches fl-dp":
        with suppress(ImportError):  # beside another Flower it need not be installed
            patched()
    elif way == "answers twice and goes on in another process":
        kept.write_text(json.dumps(message.metadata.message_id))
        goes_on(message, secret)
        push(reply)
        reply = trained(message, secret, -1e6)
    elif way == "replays another round and answers":
        replayed = trained(message, secret, -1e6)
        earlier = json.loads(kept.read_text())
        replayed.metadata.__dict__["_reply_to_message_id"] = earlier
        with suppress(Exception):  # Flower may have dropped it before it is whole
            push(replayed)
    elif way == "sends a tree of another root":
        sends_another_root()
    elif way == "floods the desk":
        flood()
    elif way == "burns all processors in another session":
        apart(30.0, lambda: sum(range(10**6)))
    Path(TOLD, f"{secret} {way}").touch()
    if way == "never answers":
        time.sleep(3600)
    if way == "kills its SuperNode" and not kept.with_suffix(".killed").exists():
        kept.with_suffix(".killed").touch()
        kill_its_supernode()
    return reply
"""

SERVER = """\
import json, shlex, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

def told(reply):
    metadata = reply.metadata
    said = [metadata.message_type, metadata.group_id]
    if reply.has_error():
        return {"said": [*said, reply.error.code, reply.error.reason]}
    content = reply.content
    arrays = content["arrays"]
    forms = [[key, each.dtype, each.shape, len(each.data)] for key, each in arrays.items()]
    said += [sorted(content), dict(content["metrics"]), forms]
    return {"said": said, "model": arrays["w"].numpy().tolist()}

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) != 2:
        time.sleep(0.5)
    arrived = {}
    for way in shlex.split(context.run_config["hydra-overrides"]):
        model = ArrayRecord({"w": Array(np.zeros(100, np.float32))})
        content = RecordDict({"arrays": model, "config": ConfigRecord({"way": way})})
        messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        replies = grid.send_and_receive(messages, timeout=90.0)
        arrived[way] = [told(reply) for reply in replies]
        Path(TOLD, "arrived.json").write_text(json.dumps(arrived))
"""


def wrong_in(arrived: dict[str, Any], way: str) -> list[Any]:
    """What of both sites' answers is not a model alone, with the update that was trained, clipped.

    The update is that of the app's first answer to a round; another would have the other sign.
    """
    if [reply["said"] for reply in arrived[way]] != [MODEL] * len(SITES):
        return [arrived[way]]
    moves = [sum(reply["model"]) / 10.0 for reply in arrived[way]]
    # Eight standard deviations of the noise.
    return [move for move in moves if not any(abs(move - due) < 0.08 for due in UPDATES[way])]


OTHER = os.environ.get("FL_DP_OTHER_FLOWER")
"""Folder of the executables of another Flower, whose SuperNode then serves behind a gate, too."""


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("deployment", "options"),
    [
        (GatedDeployment, {}),
        (DeploymentApart, {"flower": Path(sys.executable).parent}),
        pytest.param(
            *(DeploymentApart, {"flower": Path(OTHER or "")}),
            marks=pytest.mark.skipif(OTHER is None, reason="FL_DP_OTHER_FLOWER names no folder"),
        ),
    ],
    ids=["one user", "unchanged SuperNode", "that of another Flower"],
)
def test_whatever_an_app_does_in_its_process_a_noised_model_arrives_and_is_charged_once(
    tmp_path: Path, deployment: type[GatedDeployment], options: dict[str, Any]
) -> None:
    app = write_app(tmp_path / "hostile", client=CLIENT, server=SERVER, TOLD=str(tmp_path))
    told = tmp_path / "arrived.json"

    def charges() -> list[int]:
        counts = []
        for name in SITES:
            with NodeLedger.read(running.ledger_of(name)) as ledger:
                [spending] = ledger.spendings
                counts.append(spending.charges)
        return counts

    with deployment(tmp_path / "processes", **options, **POLICY) as running:
        for name, secret in SITES.items():
            running.join(name, {"secret": secret})
        assert running.run(app, WAYS, timeout=1500) == "finished:completed"
        arrived = json.loads(told.read_text())
        assert charges() == [len(WAYS)] * 2
        assert {way: wrong for way in WAYS if (wrong := wrong_in(arrived, way))} == {}
        if deployment is GatedDeployment:  # elsewhere a unit starts it, and not the gate
            assert all("it is started again" in running.log(name) for name in SITES)
    for way in WAYS:
        for secret in SITES.values():
            there = (tmp_path / f"{secret} {way}").exists()  # the app was there, and knew it
            assert there or way == "comes back"
