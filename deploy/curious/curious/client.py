"""Client of an app that sends its ward's table by three of Flower's ways."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the table in place of a model, as metrics and as a text."""
    file = Path(str(context.node_config["dp-data-path"]), "train.csv")
    table = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1), dtype=np.float32)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(table)}),
            "metrics": MetricRecord({"num-examples": len(table), "age": float(table[0, 0])}),
            "texts": ConfigRecord({"table": file.read_text()}),
        }
    )
    return Message(content, reply_to=message)
