"""How long a client, or a node of many, takes for its part of a round.

    python benchmarks/clients.py --case units|dp_sgd|gradients [--threads 2] [--json] [--repeats 9]

`units`: a node trains, clips and sums 100 units of 20 images each. Ours trains them together; a
plain PyTorch loop and pfl-research take them one by one. pfl-research gets an environment of its
own with the same PyTorch, kept under the temporary folder.

`dp_sgd`: a client's one participation in DP-SGD, 256 images in eight steps: `OpacusClient` with
its ledger on disk, beside Opacus' steps alone, and beside a new engine with its epsilon each
round.

`gradients`: steps with gradients record by record, beside Opacus' hooks and plain SGD, for a small
CNN, a ResNet-18 of width 16, a small transformer and an LSTM.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_sgd_round import dp_sgd, gradients
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.client import NumPyClient
from peers import CACHE, Peer, environment
from side_by_side import Case
from side_by_side import main as print_comparison
from small_cnn import small_cnn
from torch.nn import functional

from fl_dp.clients import NodeUnits, TrainedRows, UnitReport
from fl_dp.clients.cohort import UnitData, train_units
from fl_dp.clients.units import sum_of_units
from fl_dp.mechanisms import GaussianBundle
from fl_dp.model_arrays import get_arrays
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.tasks.training import plain_sgd

UNITS, ROWS, BATCH_SIZE = 100, 20, 10
LEARNING_RATE, CLIPPING_NORM = 0.1, 0.5
PFL = "pfl[pytorch]==0.6.0"


@contextlib.contextmanager
def units(threads: int) -> Iterator[list[Case]]:
    """Compare a node of many units with a loop and with pfl-research."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(UNITS, ROWS, 1, 28, 28)).astype(np.float32)
    y = rng.integers(0, 10, size=(UNITS, ROWS))
    CACHE.mkdir(exist_ok=True)
    data = CACHE / "units.npz"
    np.savez(data, x=x, y=y)
    python = environment(
        "pfl-research", [PFL, f"torch=={version('torch').partition('+')[0]}"], CACHE
    )
    peer = Peer(
        python,
        Path(__file__).with_name("pfl_units.py"),
        {
            "data": str(data),
            "threads": threads,
            "batch_size": BATCH_SIZE,
            "learning_rate": LEARNING_RATE,
            "clipping_norm": CLIPPING_NORM,
        },
    )
    node, loop = node_of_units(x, y), loop_over_units(x, y)
    size = f"{UNITS} units of {ROWS} images, {threads} threads"
    yield [
        Case(name=f"{size}: loop", peer="PyTorch, one by one", ours=node, theirs=loop),
        Case(name=f"{size}: pfl", peer="pfl-research 0.6.0", ours=node, theirs=peer.run),
    ]
    peer.close()


def node_of_units(x: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """What a node does when asked for its units' sum."""
    model = small_cnn()
    record = ArrayRecord({name: Array(values) for name, values in get_arrays(model).items()})
    training = plain_sgd(learning_rate=LEARNING_RATE, epochs=1, batch_size=BATCH_SIZE)
    data = [
        UnitData(features=torch.from_numpy(x[unit]), labels=torch.from_numpy(y[unit]), seed=unit)
        for unit in range(len(x))
    ]

    def alone(context: Context, unit: int) -> NumPyClient:
        raise RuntimeError("all units are trained together here")

    def train_many(
        context: Context, units: Sequence[int], arrays: ArrayRecord, config: dict[str, Any]
    ) -> Iterator[TrainedRows]:
        for places, vectors in train_units(model, [data[unit] for unit in units], training):
            reports = [UnitReport(num_examples=ROWS, metrics={}) for _ in places]
            named = [units[index] for index in places]
            yield TrainedRows(units=named, reports=reports, vectors=vectors.cpu().numpy())

    instruction = RoundInstruction(
        server_round=1,
        units=tuple(range(len(x))),
        max_units=len(x),
        bundle=GaussianBundle(noise_multiplier=1.0, clipping_norms=(CLIPPING_NORM,)),
    )
    hosted = NodeUnits(client_fn=alone, count=lambda *_: len(x), train_many=train_many)
    context = Context(1, 1, {}, RecordDict(), {})
    return lambda: sum_of_units(instruction, record, {}, context, hosted)


def loop_over_units(x: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """The simplest loop that trains, clips and sums, with an optimizer and no loader."""
    model, origin = small_cnn(), small_cnn().state_dict()
    features, labels = torch.from_numpy(x), torch.from_numpy(y)

    def train() -> torch.Tensor:
        total = torch.zeros(sum(tensor.numel() for tensor in origin.values()))
        start = torch.cat([tensor.reshape(-1) for tensor in origin.values()])
        for unit in range(len(x)):
            model.load_state_dict(origin)
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            for batch in torch.split(torch.randperm(ROWS), BATCH_SIZE):
                optimizer.zero_grad()
                outputs = model(features[unit][batch])
                torch.autograd.backward(functional.cross_entropy(outputs, labels[unit][batch]))
                optimizer.step()
            with torch.no_grad():
                trained = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
                update = trained - start
                total += update * (CLIPPING_NORM / update.norm()).clamp(max=1.0)
        return total

    return train


CASES: dict[str, Callable[[int], contextlib.AbstractContextManager[list[Case]]]] = {
    "units": units,
    "dp_sgd": dp_sgd,
    "gradients": gradients,
}


def main() -> None:
    """Print a case's table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--case", choices=CASES, default="units", help="what is timed")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch, on either side")
    options, rest = parser.parse_known_args()
    torch.set_num_threads(options.threads)
    with CASES[options.case](options.threads) as cases:
        print_comparison(f"Clients: {options.case}", cases, rest)


if __name__ == "__main__":
    main()
