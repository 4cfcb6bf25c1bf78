"""How long a round takes on one machine of a Ray cluster and on two, and what follows for more.

    python benchmarks/ray_cluster.py [--json] [--rounds 6] [--picture docs/images/ray_cluster.png]

The machines are processes of this one, with a processor each, on their own loopback addresses. A
round on M workers, each of which answers with one sum, is taken to need

    fixed + clients * per_client / M + M * (per_message + 2 * bytes / bandwidth)

seconds. The first terms are found on one machine; two are predicted from them, and measured.
Loopback has no wire: its bandwidth is what the picture assumes, and is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ray_machines import RayMachines
from rich.console import Console
from rich.table import Table

RECORDS = 100
"""Of each client, and of a step: training then waits for the processor, not for memory."""
SMALL, LARGE = 16, 1024
"""Widths of the two models' hidden layers."""
PATIENCE = 600.0
MOST_MACHINES = 1000
BITS_PER_SECOND = 1e9
"""Of the server's link, in the picture."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A training whose rounds are timed.

    All `clients` take part in each round and answer by `messages` messages. `hidden` is the
    model's width.
    """

    hidden: int
    clients: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a round needs, in seconds, of one model.

    Attributes:
        fixed: Once a round.
        per_client: To train one on one worker.
        per_message: To send one, and to take in its answer.
        message: Bytes of one, one way.
    """

    fixed: float
    per_client: float
    per_message: float
    message: int

    def seconds(self, workers: Any, clients: int, bandwidth: float = np.inf) -> Any:
        """How long a round takes on so many workers, by a link of bytes per second."""
        exchange = self.per_message + 2 * self.message / bandwidth
        return self.fixed + clients * self.per_client / workers + workers * exchange


def timed(machines: RayMachines, size: Size, rounds: int) -> tuple[float, int]:
    """Median seconds of a round after the first, and a message's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = (
            f"simulation.ray_address={machines.address} rounds={rounds} model=mlp "
            f"model.hidden={size.hidden} task.num_clients={size.clients} "
            f"task.records_per_client={RECORDS} client.epochs=5 client.batch_size={RECORDS} "
            f"selection.sampling_rate=1 report=none "
            f"simulation.units_per_node={-(-size.clients // size.messages)} "
            f"output_dir={folder} run_name=run"
        )
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fl_dp", "run", *words.split()],
            env=machines.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        seen: list[float] = []
        deadline = time.monotonic() + PATIENCE
        lines: list[str] = []
        while process.poll() is None and time.monotonic() < deadline:
            if (run / "metrics.jsonl").is_file():
                lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
                seen += [time.monotonic()] * (len(lines) - len(seen))
            time.sleep(0.01)
        process.kill()
        output = process.communicate()[1].decode(errors="replace")
        if process.returncode:
            raise RuntimeError(f"{size}: {output[-500:]}")
        message = int(json.loads(lines[-1])["bytes_down"])
    return float(statistics.median(np.diff(seen)[1:])), message


def fitted(machines: RayMachines, hidden: int, clients: int, rounds: int) -> Model:
    """What a round needs, from three trainings on one worker."""
    once, message = timed(machines, Size(hidden=hidden, clients=clients, messages=1), rounds)
    doubled, _ = timed(machines, Size(hidden=hidden, clients=2 * clients, messages=1), rounds)
    often, _ = timed(machines, Size(hidden=hidden, clients=clients, messages=8), rounds)
    per_client = max((doubled - once) / clients, 0.0)
    per_message = max((often - once) / 7, 0.0)
    fixed = max(once - clients * per_client - per_message, 0.0)
    return Model(fixed=fixed, per_client=per_client, per_message=per_message, message=message)


def measured(rounds: int) -> tuple[dict[str, dict[str, float]], dict[str, Model]]:
    """Both models, and what one and two machines need for twice the fit's most clients."""
    results: dict[str, dict[str, float]] = {}
    models: dict[str, Model] = {}
    with RayMachines(object_store=200_000_000) as machines:
        machines.start()
        names = {"small": (SMALL, 200), "large": (LARGE, 8)}
        for name, (hidden, clients) in names.items():
            models[name] = fitted(machines, hidden, clients, rounds)
        one = {
            name: timed(machines, Size(hidden=hidden, clients=4 * clients, messages=1), rounds)[0]
            for name, (hidden, clients) in names.items()
        }
        machines.start()
        for name, (hidden, clients) in names.items():
            size = Size(hidden=hidden, clients=4 * clients, messages=2)
            two = timed(machines, size, rounds)[0]
            results[f"{name} model of {models[name].message} bytes, {size.clients} clients"] = {
                "clients": size.clients,
                "one_s": one[name],
                "one_predicted_s": float(models[name].seconds(1, size.clients)),
                "two_s": two,
                "two_predicted_s": float(models[name].seconds(2, size.clients)),
                **{
                    key: getattr(models[name], key)
                    for key in ("fixed", "per_client", "per_message", "message")
                },
            }
    return results, models


def draw(models: dict[str, Model], results: dict[str, dict[str, float]], path: Path) -> None:
    """Draw the model's rounds on up to 1,000 machines of one processor."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    workers = np.unique(np.geomspace(1, MOST_MACHINES, 200).astype(int))
    for row, model, colour in zip(
        results.values(), models.values(), ("tab:blue", "tab:orange"), strict=True
    ):
        for clients, style in ((int(row["clients"]), ":"), (10_000, "-"), (1_000_000, "--")):
            seconds = model.seconds(workers, clients, BITS_PER_SECOND / 8)
            label = f"{clients:,} clients, message of {model.message / 1e6:.2g} MB"
            axes.loglog(workers, seconds, style, color=colour, label=label)
        axes.plot([1, 2], [row["one_s"], row["two_s"]], "o", color=colour)
    axes.set_xlabel("machines of one processor each")
    axes.set_ylabel("seconds for a round")
    axes.set_title("Dots: measured at 1 and 2. Lines: the model, with a link of 1 Gbit/s")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--rounds", type=int, default=6, help="of each training")
    parser.add_argument("--picture", type=Path, help="file to draw more machines into")
    asked = parser.parse_args()
    results, models = measured(asked.rounds)
    if asked.picture is not None:
        draw(models, results, asked.picture)
    if asked.json:
        print(json.dumps(results))
        return
    table = Table("training", "1 machine", "by the model", "2 machines", "by the model")
    for name, row in results.items():
        shown = ("one_s", "one_predicted_s", "two_s", "two_predicted_s")
        table.add_row(name, *(f"{row[key]:.2f} s" for key in shown))
    Console().print(table)
    for name, model in models.items():
        print(f"{name}: {model}")


if __name__ == "__main__":
    main()
