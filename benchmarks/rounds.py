"""How long a round takes through Flower's simulation engine, against Flower's own strategy.

The clients only send the model back. Timed is everything else, in rounds with all of them, after a
first round in which the engine starts its workers. Each case has its own process, whose peak
memory is told too; the engine's workers, separate processes, are not in it.

    python benchmarks/rounds.py [--json] [--rounds 3] [--clients 1000] [--parameters 100000]
"""

from __future__ import annotations

import argparse
import copyreg
import importlib
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common.typing import NDArrays, Scalar
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation
from own_ray import own_ray
from rich.console import Console
from rich.table import Table

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.app.local.devices import Machine, num_workers
from fl_dp.app.settings import TASK, Settings, SimulationSettings
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import CentralPlan
from fl_dp.strategies import DPFedAvg

UNITS_PER_NODE = 50


class NoOpClient(NumPyClient):
    """Returns the model as it came."""

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Do nothing."""
        return parameters, 1, {}


app = numpy_client_app(
    lambda context: NoOpClient(),
    units=NodeUnits(client_fn=lambda context, unit: NoOpClient(), count=lambda *_: UNITS_PER_NODE),
)


def load_app(folder: str = str(Path(__file__).parent)) -> ClientApp:
    """Return this script's app in a worker, as `flwr run` does: by its name, loaded once."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded: ClientApp = importlib.import_module("rounds").app
    return loaded


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a case trains over.

    Attributes:
        ours: Whether `DPFedAvg` runs the rounds, or Flower's `FedAvg`.
        units_per_node: Clients that one node hosts.
        clients: All of them.
        parameters: Of the model, 32-bit floats.
        rounds: Timed ones; one more comes first.
    """

    ours: bool
    units_per_node: int = 1
    clients: int
    parameters: int
    rounds: int

    @property
    def nodes(self) -> int:
        """Number of nodes that host the clients."""
        return -(-self.clients // self.units_per_node)

    def strategy(self, folder: str) -> Strategy:
        """What runs the rounds, with everybody in each."""
        if not self.ours:
            return FedAvg(
                fraction_evaluate=0.0,
                min_train_nodes=self.nodes,
                min_available_nodes=self.nodes,
            )
        plan = CentralPlan(
            budget=PrivacyBudget(epsilon=8.0, delta=1e-4),
            rounds=self.rounds + 1,
            num_clients=self.nodes * self.units_per_node,
            sampling=PoissonSampling(sampling_rate=1.0),
            clipping=FixedClipping(norm=1.0),
            units_per_node=self.units_per_node,
            contribution_check=False,  # clients that send the model back contribute nothing
        ).calibrated()
        ledger = PrivacyLedger.open(Path(folder) / "ledger.db", plan)
        return DPFedAvg(plan=plan, ledger=ledger)


def measure(federation: Federation) -> dict[str, list[float] | float]:
    """Run a federation in this process: seconds of each timed round, and peak memory in GB."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Both sides get the workers that we choose for ourselves.
    settings = Settings(task=TASK(num_clients=federation.clients), simulation=SimulationSettings())
    workers = num_workers(settings, Machine.here())
    ends: list[float] = []
    server = ServerApp()

    def note_the_time(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.perf_counter())
        return MetricRecord()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = np.zeros(federation.parameters, dtype=np.float32)
        with tempfile.TemporaryDirectory() as folder:
            federation.strategy(folder).start(
                grid,
                ArrayRecord({"weights": Array(model)}),
                num_rounds=federation.rounds + 1,
                evaluate_fn=note_the_time,
            )

    # In-process runs pickle the whole app with every message; runs that name it do not.
    copyreg.pickle(ClientApp, lambda _: (load_app, ()))
    with own_ray():
        run_simulation(
            server,
            app,
            federation.nodes,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": workers},
            },
        )
    rounds = [after - before for before, after in itertools.pairwise(ends[1:])]
    return {"rounds_s": rounds, "peak_gb": _peak_memory()}


def measure_alone(federation: Federation) -> dict[str, float]:
    """Run a federation in a process of its own: median seconds of a round, and peak memory."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            # By its name, so that the engine's workers import the clients instead of unpickling.
            "import json, sys, rounds; "
            "print(json.dumps(rounds.measure(rounds.Federation(**json.loads(sys.argv[1])))))",
            json.dumps(asdict(federation)),
        ],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(":"),
            "FLWR_TELEMETRY_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{federation} failed:\n{done.stdout}{done.stderr}")
    measured = json.loads(done.stdout.splitlines()[-1])
    return {
        "s": statistics.median(measured["rounds_s"]),
        "gb": measured["peak_gb"],
    }


def compare(clients: int, parameters: int, rounds: int) -> dict[str, dict[str, float]]:
    """Measure our rounds, with one client a node and with many, and Flower's."""

    def alone(*, ours: bool, units_per_node: int = 1) -> dict[str, float]:
        return measure_alone(
            Federation(
                ours=ours,
                units_per_node=units_per_node,
                clients=clients,
                parameters=parameters,
                rounds=rounds,
            )
        )

    ours = {1: alone(ours=True)}
    flower = alone(ours=False)
    ours[UNITS_PER_NODE] = alone(ours=True, units_per_node=UNITS_PER_NODE)
    size = f"{clients} clients, {parameters} parameters"
    return {
        f"round of {size}, {units} a node": {
            "ours_s": mine["s"],
            "peer_s": flower["s"],
            "ratio": mine["s"] / flower["s"],
            "ours_gb": mine["gb"],
            "peer_gb": flower["gb"],
            "ratio_gb": mine["gb"] / flower["gb"],
        }
        for units, mine in ours.items()
    }


def main() -> None:
    """Print a table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description="A round through Flower's simulation engine")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    for name, default, what in (
        ("--rounds", 3, "timed rounds a case"),
        ("--clients", 1000, "clients, all in every round"),
        ("--parameters", 100_000, "size of the model"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{what} (default: {default})")
    options = parser.parse_args()
    results = compare(options.clients, options.parameters, options.rounds)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    table = Table(
        title=f"DPFedAvg and Flower's FedAvg, one client a node (median of {options.rounds})"
    )
    table.add_column("case")
    for column in ("ours", "Flower", "ours / Flower", "our GB", "Flower's GB"):
        table.add_column(column, justify="right")
    for name, row in results.items():
        table.add_row(
            name,
            f"{row['ours_s']:.3g} s",
            f"{row['peer_s']:.3g} s",
            f"{row['ratio']:.3g}",
            f"{row['ours_gb']:.3g}",
            f"{row['peer_gb']:.3g}",
        )
    Console().print(table)


def _peak_memory() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e6


if __name__ == "__main__":
    main()
