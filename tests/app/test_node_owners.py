"""What the owners of real SuperNodes rely on: a hung client ends, an unverified app is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployment import Deployment
from written_apps import write_app

# The first message is never answered; those after it are. `TOLD` is a folder.
CLIENT = """\
import time
from pathlib import Path

from flwr.client import NumPyClient
from fl_dp.clients import numpy_client_app

class Client(NumPyClient):
    def fit(self, parameters, config):
        hung = Path(TOLD) / "hung"
        if not hung.exists():
            hung.touch()
            time.sleep(3600)
        return parameters, 1, {}

app = numpy_client_app(lambda context: Client())
"""
SERVER = """\
import json, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    def ask(ttl):
        model = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
        content = RecordDict({"model": model, "config": ConfigRecord()})
        messages = [
            Message(content, dst_node_id=node, message_type="train", ttl=ttl) for node in nodes
        ]
        replies = list(grid.send_and_receive(messages, timeout=ttl))
        return sorted(
            reply.error.reason if reply.has_error() else "answered" for reply in replies
        )
    Path(TOLD, "replies.json").write_text(json.dumps([ask(60.0), ask(240.0)]))
"""


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_a_hung_client_ends_and_its_node_answers_again_and_a_guarded_node_runs_no_unverified_app(
    tmp_path: Path,
) -> None:
    app = write_app(tmp_path / "hanging", client=CLIENT, server=SERVER, TOLD=str(tmp_path))
    with Deployment(tmp_path / "processes") as running:
        running.join("open", {})
        running.join("guarded", {"dp-ledger-path": str(tmp_path / "l.db"), "dp-max-epsilon": 4.0})
        assert running.run(app, []) == "finished:completed"
        assert (tmp_path / "hung").exists()
        assert "has not answered within the message's time to live" in running.log("open")
        assert "in fit" in running.log("open")  # where it hung
        assert "runs whatever app the server sends" in running.log("guarded")
    first, second = json.loads((tmp_path / "replies.json").read_text())
    assert "answered" not in first  # the hung client, and the guarded node
    assert second == ["PolicyRefusal", "answered"]
