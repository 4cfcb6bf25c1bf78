"""A private head for ten digits, on an encoder that has seen public digits 0 to 4 alone.

`client_app` and `app` are those of a Flower app; docs/models.md says when this pays.
"""

from collections import OrderedDict

import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

from fl_dp.clients import numpy_client_app
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.strategies import DPFedAvg
from fl_dp.updates import SharedPart

CLIENTS, TEST = 100, 300
digits = load_digits()
images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
labels = torch.tensor(digits.target)


def train(model: nn.Module, rows: torch.Tensor, steps: int, rate: float) -> None:
    """Make some steps on rows of the images."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()


def pretrained() -> nn.Module:
    """Stands for a network that somebody published: load yours here."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = nn.Sequential(OrderedDict(encoder=encoder, head=nn.Linear(64, 10)))
    train(model, torch.where(labels[TEST:800] < 5)[0] + TEST, steps=200, rate=0.5)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


model = pretrained()
model.encoder.requires_grad_(False)
frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
first = get_arrays(model)
part = SharedPart.of(list(first), None, frozen=frozen)  # head.weight and head.bias travel


class HeadClient(NumPyClient):
    """Trains the head on images of its own."""

    def __init__(self, place: int) -> None:
        """Take every hundredth image."""
        self.rows = torch.arange(800 + place, len(labels), CLIENTS)

    def fit(self, parameters, config):
        """Return the trained head."""
        set_arrays(model, parameters, part.shared)
        train(model, self.rows, steps=5, rate=0.5)
        trained = get_arrays(model)
        return [trained[name] for name in part.shared], len(self.rows), {}


client_app = numpy_client_app(
    lambda context: HeadClient(int(context.node_config["partition-id"])).to_client()
)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the head privately, and measure it on public images."""
    strategy = DPFedAvg.with_budget(
        FedAvgM(server_momentum=0.9),
        epsilon=4.0,
        rounds=20,
        num_clients=CLIENTS,
        sampling_rate=0.5,
        clipping_norm=0.5,
        ledger="head.db",
    )
    start = part.of_model(ArrayRecord({name: Array(values) for name, values in first.items()}))
    result = strategy.start(grid, start, num_rounds=20)
    set_arrays(model, result.arrays.to_numpy_ndarrays(), part.shared)
    save_file(model.state_dict(), "model.safetensors")  # encoder and head, as one model
    right = model(images[:TEST]).argmax(1) == labels[:TEST]
    print(f"{right.float().mean():.1%} of the public test part")
