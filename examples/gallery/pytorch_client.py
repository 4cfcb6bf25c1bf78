"""A client that trains a small network, in the shape of Flower's quickstart for PyTorch."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

app = ClientApp()


def make_model() -> torch.nn.Module:
    """Return the network with its first weights, the same at server and clients."""
    torch.manual_seed(0)
    return torch.nn.Linear(64, 10)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a few steps from the server's model."""
    node = context.node_config
    part = slice(int(node["partition-id"]), None, int(node["num-partitions"]))
    digits = load_digits()
    images = torch.tensor(digits.data[part] / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target[part])
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
