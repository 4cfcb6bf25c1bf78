"""How much memory a round takes, as a multiple of the model, with central or distributed noise.

Server and nodes are one process, in which one node at a time trains: each adds one number to every
parameter. The peak is what one machine needs for all of them, less imports and set-up, measured
with a model of no size. Flower's FedAvg, which does nothing for privacy, keeps every reply.

    python benchmarks/large_model.py [--json] [--mib 1024] [--modes central distributed none]
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fl_dp.app import simulate
from fl_dp.clients import numpy_client_app
from fl_dp.plan import SecureSum
from fl_dp.strategies import DPFedAvg

MIB = 1 << 20
NODES = 5
ARRAYS = 8  # of equal size
MODES = ("central", "distributed", "none")


class Shift(NumPyClient):
    """Adds one number to every parameter."""

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train; the new parameters are the only memory it takes."""
        return [array + np.float32(1e-3) for array in parameters], 1, {}


def strategy_of(mode: str, parameters: int, folder: Path) -> Strategy:
    """What trains in a mode, for one round of all nodes."""
    if mode == "none":
        return FedAvg(fraction_evaluate=0.0)
    return DPFedAvg.with_budget(
        FedAvg(),
        epsilon=8.0,
        rounds=1,
        num_clients=NODES,
        sampling_rate=1.0,
        clipping_norm=1.0,
        contribution_check=False,
        secure_sum=SecureSum(max_parameters=parameters) if mode == "distributed" else None,
        ledger=folder / "ledger.db",
    )


def round_of(mode: str, mib: float) -> None:
    """Play one round in this process, and print its seconds and peak memory."""
    entries = max(1, round(mib * MIB / 4 / ARRAYS))
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = ArrayRecord(
            {f"w{number}": Array(np.zeros(entries, np.float32)) for number in range(ARRAYS)}
        )
        strategy_of(mode, entries * ARRAYS, Path(folder)).start(
            grid=grid, initial_arrays=model, num_rounds=1
        )

    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        simulate(server, numpy_client_app(lambda context: Shift()), num_nodes=NODES)
        seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


def in_a_process(mode: str, mib: float) -> dict[str, float]:
    """Play one round in a process of its own."""
    asked = [sys.executable, __file__, "--one", mode, "--mib", str(mib)]
    told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(told.strip().splitlines()[-1])
    return measured


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--mib", type=float, default=1024.0, help="size of the float32 model")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--one", choices=MODES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        round_of(asked.one, asked.mib)
        return
    results = {}
    for mode in asked.modes:
        measured, bare = in_a_process(mode, asked.mib), in_a_process(mode, 0.0)["peak_mib"]
        times = (measured["peak_mib"] - bare) / asked.mib
        results[mode] = measured | {"models": times}
        if not asked.json:
            print(
                f"{mode}: {asked.mib:.4g} MiB, {NODES} nodes: {measured['seconds']:.3g} s, peak "
                f"{measured['peak_mib'] / 1024:.3g} GiB, {times:.3g} models above the imports"
            )
    if asked.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
