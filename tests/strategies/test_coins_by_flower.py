"""Coins of a client's own in Flower's simulation engine, whose workers are processes of Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NODES = 4
_SCRIPT = """
import sys
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fl_dp.clients import numpy_client_app
from fl_dp.protocol.message_keys import COINS_SEED_KEY

FOLDER = Path(sys.argv[1])
MISSING, SEED, NODES = map(int, sys.argv[2:])


class Drops(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.node = int(context.node_config["partition-id"])

    def fit(self, parameters, config):
        rows = 0 if self.node == MISSING else 8
        drawn = [float(torch.nn.functional.dropout(torch.ones(64)).sum()) for _ in range(rows)]
        np.save(FOLDER / f"{self.node}-{config['server-round']}.npy", drawn)
        return parameters, 1, {}


client = numpy_client_app(Drops)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        fraction_evaluate=0.0, min_available_nodes=NODES, min_train_nodes=NODES
    )
    config = ConfigRecord({COINS_SEED_KEY: SEED})
    strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=2, train_config=config)


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=NODES)
"""


def drawn_by(
    folder: Path, *, missing: int, seed: int
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """What each client drew in each round of a simulation, by node and round."""
    folder.mkdir()
    script = folder / "run.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), str(folder), str(missing), str(seed)]
    command.append(str(NODES))
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


@pytest.mark.nightly
def test_a_seeded_run_repeats_and_a_missing_client_moves_no_other_one(tmp_path: Path) -> None:
    nobody = -1
    first = drawn_by(tmp_path / "first", missing=nobody, seed=5)
    again = drawn_by(tmp_path / "again", missing=nobody, seed=5)
    without = drawn_by(tmp_path / "without", missing=0, seed=5)
    assert len(first) == len(again) == len(without) == 2 * NODES
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        if not name.startswith("0-"):
            np.testing.assert_array_equal(first[name], without[name])
    assert len({tuple(drawn) for drawn in first.values()}) == 2 * NODES  # each has its own
