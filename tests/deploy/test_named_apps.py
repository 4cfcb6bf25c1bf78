"""Real SuperNodes whose gates admit one app, by hash and configuration, and charge its DP-SGD."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment import Deployment
from flwr.cli.build import build_fab_from_disk
from record_plans import record_plan
from waiting import until
from written_apps import PUBLISHER, write_app

from fl_dp.ledger import NodeLedger
from fl_dp.promise import Enforcement

SITES = ("north", "south")
PLAN = record_plan(
    epsilon=8.0, noise_multiplier=1.1, sampling_rate=0.05, steps=20, participations=2
)

CLIENT = """\
import threading
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    number = message.content["config"]["server-round"]
    Path(TOLD, f"{context.node_config['site']}-{number}").touch()
    if number == 9:
        threading.Event().wait()  # until it is killed
    content = RecordDict({
        "arrays": ArrayRecord({"w": Array(np.full(4, 0.25 * number, np.float32))}),
        "metrics": MetricRecord({"num-examples": 812, "loss": 0.3}),
        "texts": ConfigRecord({"site": context.node_config["site"]}),
    })
    return Message(content, reply_to=message)
"""

SERVER = """\
import json, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

def told(reply):
    if reply.has_error():
        return reply.error.reason
    content = reply.content
    return [sorted(content), dict(content["metrics"]), content["arrays"]["w"].numpy().tolist()]

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    arrived = []
    for config in json.loads(Path(TOLD, "rounds.json").read_text()):
        model = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
        content = RecordDict({"arrays": model, "config": ConfigRecord(config)})
        messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        arrived.append([told(reply) for reply in grid.send_and_receive(messages, timeout=300.0)])
    Path(TOLD, "arrived.json").write_text(json.dumps(arrived))
"""


class NamedApps(Deployment):
    """SuperNodes behind gates that admit one app."""

    def __init__(self, folder: Path, app: Path) -> None:
        super().__init__(folder)
        self._hash = hashlib.sha256(build_fab_from_disk(app)).hexdigest()

    def ledger(self, name: str) -> Path:
        """Return the file of a site's ledger."""
        return self._folder / f"{name}.db"

    def charges(self, name: str) -> int:
        """Return how many trainings a site's ledger was charged for."""
        with NodeLedger.read(self.ledger(name)) as ledger:
            return sum(spending.charges for spending in ledger.spendings)

    def _supernode(self, name: str) -> Sequence[str]:
        terms = {"noise-multiplier": 1.1, "sampling-rate": 0.05, "steps": 20, "clipping-norm": 1.0}
        keys: dict[str, Any] = {
            "dp-ledger-path": str(self.ledger(name)),
            "dp-unit-name": name,
            "dp-max-epsilon": 8.0,
            "dp-allowed-apps": f"{PUBLISHER}/heart@{self._hash}",
            "dp-gate-promise": "record",
            "dp-gate-dp-sgd": terms,
            "dp-gate-run-config": {"hydra-overrides": "seed=7"},
            "dp-gate-environment": sys.prefix,
            "dp-shared-parameters": "w",
            "dp-gate-answer-after": 45.0,
        }
        policy = self._folder / f"{name}.yaml"
        policy.write_text(yaml.safe_dump(keys))
        command = (sys.executable, "-m", "fl_dp", "supernode", "--policy", str(policy))
        return (*command, "--cooperative", "--insecure")


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_one_app_is_admitted_and_charged_and_a_server_can_t_change_what_it_does(
    tmp_path: Path,
) -> None:
    app = write_app(tmp_path / "heart", client=CLIENT, server=SERVER, TOLD=str(tmp_path))
    rounds, arrived = tmp_path / "rounds.json", tmp_path / "arrived.json"
    with NamedApps(tmp_path / "processes", app) as running:
        for name in SITES:
            running.join(name, {"site": name})
        # More epochs are refused, and cost nothing.
        config = [{"server-round": 1}, {"server-round": 2, "local-epochs": 50}, {"server-round": 3}]
        rounds.write_text(json.dumps(config))
        assert running.run(app, ["seed=7"]) == "finished:completed"
        ours = ["arrays", "metrics"], {"num-examples": 1}
        assert json.loads(arrived.read_text()) == [
            [[*ours, [0.25] * 4]] * 2,
            ["PolicyRefusal"] * 2,
            [[*ours, [0.75] * 4]] * 2,
        ]
        for name in SITES:
            assert not (tmp_path / f"{name}-2").exists()
            with NodeLedger.read(running.ledger(name)) as ledger:
                [spending], [use] = ledger.spendings, ledger.uses
            assert (spending.unit, spending.charges) == ("record", 2)
            assert spending.epsilon() == PLAN.epsilon(2)
            assert use.use is not None and use.use.enforcement is Enforcement.NAMED_APP
        # Nor does another seed reach the app.
        rounds.write_text(json.dumps([{"server-round": 4}]))
        assert running.run(app, ["seed=8"]) == "finished:completed"
        assert json.loads(arrived.read_text()) == [["PolicyRefusal"] * 2]
        assert not any((tmp_path / f"{name}-4").exists() for name in SITES)
        # What has begun is charged, however it ends.
        rounds.write_text(json.dumps([{"server-round": 9}]))
        running.begin(app, ["seed=7"])
        until((tmp_path / "north-9").exists)
        running.kill("north")
        assert running.charges("north") == 3
        assert list(running.ledger("north").parent.glob("north.db.unfinished-*"))
