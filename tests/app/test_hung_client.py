"""A client that hangs: its real SuperNode answers again, to the same run and to later ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployment import Deployment

# The first message is never answered; those after it are. `TOLD` is a folder.
APP = {
    "pyproject.toml": """\
[project]
name = "hanging"
version = "1.0.0"
description = "Hangs on its first message"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fl-dp"

[tool.flwr.app.components]
serverapp = "hanging.server:app"
clientapp = "hanging.client:app"

[tool.flwr.app.config]
hydra-overrides = ""
""",
    "hanging/__init__.py": "",
    "hanging/client.py": """\
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
""",
    "hanging/server.py": """\
import json, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    def ask(ttl):
        model = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
        content = RecordDict({"model": model, "config": ConfigRecord()})
        message = Message(content, dst_node_id=nodes[0], message_type="train", ttl=ttl)
        replies = list(grid.send_and_receive([message], timeout=ttl))
        return [reply.has_error() for reply in replies]
    Path(TOLD, "replies.json").write_text(json.dumps([ask(10.0), ask(240.0)]))
""",
}


@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_after_a_client_that_hangs_its_node_answers_the_next_message(tmp_path: Path) -> None:
    app = tmp_path / "hanging"
    for name, text in APP.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text.replace("TOLD", repr(str(tmp_path))))
    with Deployment(tmp_path / "processes") as running:
        running.join("node", {})
        assert running.run(app, []) == "finished:completed"
        assert (tmp_path / "hung").exists()
        assert "has not answered within the message's time to live" in running.log("node")
        assert "in fit" in running.log("node")  # where it hung
    first, second = json.loads((tmp_path / "replies.json").read_text())
    assert first in ([], [True])  # the first one has no answer in time
    assert second == [False]
