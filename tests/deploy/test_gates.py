"""Real SuperNodes behind gates, and an app that sends all it knows by every way of Flower's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_deployment import GatedDeployment
from written_apps import write_app

from fl_dp.ledger import NodeLedger

SITES = {"north": "patient 4711", "south": "x" * 29}
CLIENT = """\
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    secret = str(context.node_config["secret"])
    Path(TOLD, secret).touch()
    if message.content["config"]["server-round"] == 2:
        raise ValueError(secret)
    content = RecordDict({
        "arrays": message.content["arrays"],
        "more": ArrayRecord({secret: Array(np.zeros(len(secret)))}),
        "metrics": MetricRecord({"num-examples": len(secret), secret: 47.11}),
        "texts": ConfigRecord({"secret": secret}),
    })
    reply = Message(content, reply_to=message)
    reply.metadata.__dict__["_group_id"] = secret
    reply.metadata.ttl = float(len(secret))
    return reply

@app.evaluate()
def evaluate(message, context):
    raise ValueError(context.node_config["secret"])
"""
SERVER = """\
import json, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

def told(reply):
    metadata = reply.metadata
    if reply.has_error():
        said = [reply.error.code, reply.error.reason]
    else:
        said = [sorted(reply.content), dict(reply.content["metrics"]), {
            name: [array.shape, array.dtype] for name, array in reply.content["arrays"].items()
        }]
    return [metadata.message_type, metadata.group_id, said]

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    arrived = []
    for number, kind in ((1, "train"), (2, "train"), (3, "evaluate")):
        model = ArrayRecord({"w": Array(np.zeros(100, np.float32))})
        content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": number})})
        messages = [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
        arrived.append([told(reply) for reply in grid.send_and_receive(messages, timeout=300.0)])
    Path(TOLD, "arrived.json").write_text(json.dumps(arrived))
"""


POLICY = {
    "max_epsilon": 50.0,
    "gate_promise": "local",
    "gate_clipping_norm": 1.0,
    "gate_noise_multiplier": 2.0,
    "gate_answer_after": 45.0,
}


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_what_arrives_of_two_sites_differs_in_numbers_of_the_model_alone(tmp_path: Path) -> None:
    app = write_app(tmp_path / "curious", client=CLIENT, server=SERVER, TOLD=str(tmp_path))
    with GatedDeployment(tmp_path / "processes", **POLICY) as running:
        for name, secret in SITES.items():
            running.join(name, {"secret": secret})
        assert running.run(app, []) == "finished:completed"
        logs = [running.log(name) for name in SITES]
    arrived = json.loads((tmp_path / "arrived.json").read_text())
    model = [["arrays", "metrics"], {"num-examples": 1}, {"w": [[100], "float32"]}]
    refusal = [2, "PolicyRefusal"]
    for replies, kind, said in zip(
        arrived, ("train", "train", "evaluate"), (model, model, refusal), strict=True
    ):
        assert replies == [[kind, "", said]] * len(SITES)
    for name, secret in SITES.items():
        assert (tmp_path / secret).exists()  # the app was there, and knew it
        with NodeLedger.read(running.ledger_of(name)) as ledger:
            [use] = ledger.uses
        assert use.charges == 2
        assert use.use is not None and use.use.app is not None
        assert use.use.app.startswith("stranger/curious==1.0.0@")
    assert all("they can read the ledger" in log for log in logs)
