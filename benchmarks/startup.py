"""How long commands take to start: `fl-dp plan`, and `fl-dp run` of one round, whole.

Each timing is of a fresh process and is printed as it comes. The yardstick is one process that
imports flwr, ray and torch, which every simulation must do at least once. It is timed before each
case: on a busy machine only the ratio means anything. Flower's own part is a run on the same
private SuperLink that computes nothing.

    python benchmarks/startup.py [--before CHECKOUT] [--only TEXT] [--repeats 3]

With `--before` another checkout takes turns with this one, for example the release before:

    git worktree add --detach ../before v0.1.0
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LONGEST = 1800.0  # seconds of one command; a machine that eight people shared took 100
YARDSTICK = ["-c", "import flwr.clientapp, flwr.serverapp, ray, torch"]

FLOWER_ALONE = {
    "alone_server.py": """
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    nodes = []
    while len(nodes) < 2:
        nodes = list(grid.get_node_ids())
    ask = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
    grid.send_and_receive(ask)
""",
    "alone_client.py": """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
""",
    "alone.py": """
from fl_dp.app.local.launch import App, LocalSuperLink
from fl_dp.app.settings import Settings

settings = Settings().hosting(100)  # two nodes
with LocalSuperLink(App(server="alone_server", client="alone_client")) as engine:
    assert engine.run(settings, [], lambda: None).succeeded
""",
}


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A copy of the repository whose code runs in processes of its own."""

    path: Path
    scratch: Path

    def seconds(self, arguments: Sequence[str]) -> float:
        """Run Python with this copy's packages; return how long it took."""
        paths = os.pathsep.join([str(self.path), str(self.scratch)])
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.scratch,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LONGEST,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments} failed:\n{done.stdout}")
        return time.perf_counter() - start


def cases(runs: Iterator[int]) -> dict[str, list[str]]:
    """Arguments of Python, by what is timed; `runs` numbers the runs' folders."""

    def run(engine: str) -> list[str]:
        asked = ["rounds=1", "output_dir=.", f"run_name=run-{next(runs)}"]
        return ["-P", "-m", "fl_dp", "run", *asked, f"simulation.engine={engine}"]

    return {
        "import fl_dp": ["-c", "import fl_dp"],
        "fl-dp plan": ["-P", "-m", "fl_dp", "plan"],
        "fl-dp run, in one process": run("in_process"),
        "fl-dp run, Flower's engine": run("flower"),
        "Flower's engine, nothing computed": ["-m", "alone"],
    }


def main() -> None:
    """Time everything, and print each timing as it comes."""
    parser = argparse.ArgumentParser(description="Startup")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--only", default="", help="time what has this text in its name")
    parser.add_argument("--repeats", type=int, default=3, help="timings a side (default: 3)")
    options = parser.parse_args()
    runs = count()
    with tempfile.TemporaryDirectory() as folder:
        sides = {"ours": HERE} | ({"before": options.before.resolve()} if options.before else {})
        checkouts = {}
        for side, path in sides.items():
            checkouts[side] = Checkout(path=path, scratch=Path(folder) / side)
            checkouts[side].scratch.mkdir()
            for name, text in FLOWER_ALONE.items():
                (checkouts[side].scratch / name).write_text(text, encoding="utf-8")
        checkouts["ours"].seconds(YARDSTICK)  # files are in memory from then on
        for name in (name for name in cases(runs) if options.only in name):
            for turn in range(options.repeats):
                for side in sorted(checkouts, reverse=turn % 2 == 1):
                    imports = checkouts[side].seconds(YARDSTICK)
                    took = checkouts[side].seconds(cases(runs)[name])
                    print(
                        f"{name} ({side}): {took:.2f} s, {took / imports:.2f} of the yardstick's "
                        f"{imports:.2f} s, load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
