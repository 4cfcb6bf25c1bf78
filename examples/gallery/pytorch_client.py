"""A client that trains a small network, in the shape of Flower's quickstart for PyTorch."""

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

app = ClientApp()


def make_model() -> torch.nn.Module:
    """Return the network with its first weights, the same at server and clients."""
    torch.manual_seed(0)
    return torch.nn.Linear(64, 10)


def load_partition(partition_id: int, num_partitions: int) -> Any:
    """Return one client's rows, dictionaries by column: here a list, which needs no download.

    A partition of flwr-datasets, `FederatedDataset(...).load_partition(partition_id)`, fits as it
    is, once a `with_transform` makes tensors of its pictures.
    """
    digits = load_digits()
    part = slice(partition_id, None, num_partitions)
    images = torch.tensor(digits.data[part] / 16.0, dtype=torch.float32)
    labels = digits.target[part].tolist()
    return [{"img": img, "label": label} for img, label in zip(images, labels, strict=True)]


def load_data(context: Context) -> Any:
    """Return the node's rows."""
    node = context.node_config
    return load_partition(int(node["partition-id"]), int(node["num-partitions"]))


def load_model(message: Message) -> torch.nn.Module:
    """Return the server's model."""
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one pass over the client's rows from the server's model."""
    model = load_model(message)
    partition = load_data(context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in DataLoader(partition, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["img"]), batch["label"]).backward()
        optimizer.step()
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"num-examples": len(partition)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the server's model."""
    model = load_model(message)
    partition = load_data(context)
    loss, correct = 0.0, 0
    with torch.no_grad():
        for batch in DataLoader(partition, batch_size=64):
            scores, labels = model(batch["img"]), batch["label"]
            loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").item()
            correct += int((scores.argmax(1) == labels).sum())
    count = len(partition)
    metrics = MetricRecord(
        {"eval_loss": loss / count, "eval_acc": correct / count, "num-examples": count}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
