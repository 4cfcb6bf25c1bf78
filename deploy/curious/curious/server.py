"""Server of an app that asks for tables, and writes down what arrives."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
_TABLE = (200, 2)  # rows and columns of a ward's


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Send each ward a model in the form of a table, and write down the replies."""
    words = shlex.split(str(context.run_config["hydra-overrides"]))
    folder = dict(word.split("=", 1) for word in words)["output_dir"]
    model = ArrayRecord({"w": Array(np.zeros(_TABLE, np.float32))})
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})})
    messages = [
        Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()
    ]
    arrived = [_told(reply) for reply in grid.send_and_receive(messages, timeout=600.0)]
    Path(folder, "arrived.json").write_text(json.dumps(arrived))


def _told(reply: Message) -> dict[str, Any]:
    """All that a reply says."""
    if reply.has_error():
        return {"error": reply.error.reason}
    records = reply.content
    arrays = [array for record in records.array_records.values() for array in record.values()]
    return {
        "arrays": [array.numpy().ravel().tolist() for array in arrays],
        "metrics": [dict(record) for record in records.metric_records.values()],
        "texts": [dict(record) for record in records.config_records.values()],
    }
