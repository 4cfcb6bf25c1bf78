"""A hospital: plain Flower, nothing of fl-dp is imported."""

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from . import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on this hospital's patients."""
    config: dict[str, Any] = dict(message.content.config_records["config"])
    patients = _patients(context)
    weights = task.train(
        message.content.array_records["arrays"].to_numpy_ndarrays(),
        patients,
        learning_rate=config["learning-rate"],
        steps=config["local-steps"],
    )
    metrics = MetricRecord({"num-examples": len(patients[1])})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the model on this hospital's patients; the private server never asks."""
    patients = _patients(context)
    accuracy = task.accuracy(message.content.array_records["arrays"].to_numpy_ndarrays(), patients)
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(patients[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query("region")
def region(message: Message, context: Context) -> Message:
    """Tell where this hospital stands, which is public."""
    where = task.region_of(int(context.node_config["partition-id"]))
    return Message(RecordDict({"address": ConfigRecord({"region": where})}), reply_to=message)


@app.query("fl_dp_identity")
def identity(message: Message, context: Context) -> Message:
    """Tell this hospital's name, by which a participation cap knows it again in another run."""
    name = f"hospital-{context.node_config['partition-id']}"
    return Message(RecordDict({"identity": ConfigRecord({"name": name})}), reply_to=message)


def _patients(context: Context) -> task.Patients:
    node = context.node_config
    return task.load_hospital(int(node["partition-id"]), int(node["num-partitions"]))
