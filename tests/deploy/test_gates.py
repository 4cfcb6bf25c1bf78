"""Real SuperNodes behind gates, and an app that sends all it knows by every way of Flower's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from deployment import Deployment

from fl_dp.ledger import NodeLedger

SITES = {"north": "patient 4711", "south": "x" * 29}
APP = {
    "pyproject.toml": """\
[project]
name = "curious"
version = "1.0.0"
description = "Sends what it should not"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "curious.server:app"
clientapp = "curious.client:app"

[tool.flwr.app.config]
hydra-overrides = ""
""",
    "curious/__init__.py": "",
    "curious/client.py": """\
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
""",
    "curious/server.py": """\
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
""",
}


class Gates(Deployment):
    """SuperNodes that stand behind gates, each with a policy of its own."""

    def policy(self, name: str) -> Path:
        """Return the file of a site's policy."""
        file = self._folder / f"{name}.yaml"
        keys = {
            "dp-ledger-path": str(self._folder / f"{name}.db"),
            "dp-unit-name": name,
            "dp-max-epsilon": 50.0,
            "dp-gate-promise": "local",
            "dp-gate-clipping-norm": 1.0,
            "dp-gate-noise-multiplier": 2.0,
            "dp-gate-answer-after": 45.0,
        }
        file.write_text(yaml.safe_dump(keys))
        return file

    def _supernode(self, name: str) -> Sequence[str]:
        policy = str(self.policy(name))
        command = (sys.executable, "-m", "fl_dp", "supernode", "--policy", policy)
        return (*command, "--cooperative", "--insecure")


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_what_arrives_of_two_sites_differs_in_numbers_of_the_model_alone(tmp_path: Path) -> None:
    app = tmp_path / "curious"
    for name, text in APP.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text.replace("TOLD", repr(str(tmp_path))))
    with Gates(tmp_path / "processes") as running:
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
        with NodeLedger.read(tmp_path / "processes" / f"{name}.db") as ledger:
            [use] = ledger.uses
        assert use.charges == 2
        assert use.use is not None and use.use.app is not None
        assert use.use.app.startswith("stranger/curious==1.0.0@")
    assert all("they can read the ledger" in log for log in logs)
