"""How long commands take to start: `fl-dp plan`, and `fl-dp run` of one round, whole.

Each timing is of a fresh process and is printed as it comes, however long it takes: seconds of the
clock, and processor seconds of all its processes, which a busy machine changes less. The yardstick
is one process that imports flwr, ray and torch, which every simulation must do at least once. It is
timed before each case. Flower's own part is a run on the same private SuperLink that computes
nothing.

    python benchmarks/startup.py [--before CHECKOUT] [--only TEXT] [--repeats 3]

With `--before` another checkout takes turns with this one, for example the release before:

    git worktree add --detach ../before v0.1.0
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
_CHILD_SUBREAPER = 36  # of prctl: processes whose parent has ended become this one's children
YARDSTICK = ["-c", "import flwr.clientapp, flwr.serverapp, ray, torch"]

FILES = {
    # Comes with a tool of the extra "release", and takes each process of Ray 1.2 s to import.
    "rfc3987_syntax.py": "raise ImportError",
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


class Failed(Exception):
    """A command that failed; the text is the end of its output."""


@dataclass(frozen=True)
class Taken:
    """Seconds that a command took: of the clock, and of processors in all its processes."""

    wall: float
    processor: float


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A copy of the repository whose code runs in processes of its own."""

    path: Path
    scratch: Path

    def taken(self, arguments: Sequence[str]) -> Taken:
        """Run Python with this copy's packages until its last process has ended.

        Raises:
            Failed: It did not end well, as where Ray gives up after 30 s on a busy machine.
        """
        paths = os.pathsep.join([str(self.path), str(self.scratch)])
        start, processor = time.perf_counter(), _of_children()
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.scratch,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(done.stdout[-2000:])
        wall = time.perf_counter() - start
        with suppress(ChildProcessError):  # no more: services of Ray end after the command
            while True:
                os.wait()
        return Taken(wall, _of_children() - processor)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    runs = count()
    with tempfile.TemporaryDirectory() as folder:
        sides = {"ours": HERE} | ({"before": options.before.resolve()} if options.before else {})
        checkouts = {}
        for side, path in sides.items():
            checkouts[side] = Checkout(path=path, scratch=Path(folder) / side)
            checkouts[side].scratch.mkdir()
            for name, text in FILES.items():
                (checkouts[side].scratch / name).write_text(text, encoding="utf-8")
        checkouts["ours"].taken(YARDSTICK)  # files are in memory from then on
        for name in (name for name in cases(runs) if options.only in name):
            for turn in range(options.repeats):
                for side in sorted(checkouts, reverse=turn % 2 == 1):
                    imports = checkouts[side].taken(YARDSTICK)
                    try:
                        took = checkouts[side].taken(cases(runs)[name])
                    except Failed as failed:
                        print(f"{name} ({side}): failed\n{failed}", flush=True)
                        continue
                    print(
                        f"{name} ({side}): {took.wall:.2f} s, {took.processor:.2f} of processors, "
                        f"{took.processor / imports.processor:.2f} of the yardstick's "
                        f"{imports.processor:.2f}, load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
