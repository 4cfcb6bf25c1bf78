"""How long it takes to start: imports by room, `fl-dp plan`, and `fl-dp run` to its first round.

Each timing is of a fresh process. The yardstick is one process that imports flwr, ray and torch,
which every simulation must do at least once.

    python benchmarks/startup.py [--before CHECKOUT] [--only TEXT] [--repeats 3] [--json]

With `--before` another checkout takes turns with this one, for example the release before:

    git worktree add --detach ../before v0.1.0
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
YARDSTICK = "import flwr, ray and torch"
FIRST_ROUND = 2  # lines of metrics.jsonl: the model before training, and the first release
LONGEST = 600.0  # seconds

# Optional libraries of some modules may be missing, which is part of neither side.
EVERY_MODULE = """
import importlib, pkgutil, sys
room = importlib.import_module(sys.argv[1])
for module in pkgutil.iter_modules(getattr(room, "__path__", ()), sys.argv[1] + "."):
    try:
        importlib.import_module(module.name)
    except ImportError:
        pass
"""


# A run of Flower's that computes nothing, on the same private SuperLink: Flower's own part.
FLOWER_ALONE = {
    "alone_server.py": """
from pathlib import Path

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
    Path(__file__).with_name("answered").write_text("done\\n")
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
    engine.run(settings, [], lambda: None)
""",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to time.

    Attributes:
        name: In words; the key in the results.
        ours: Does it with this checkout; returns the seconds.
        before: Does it with the other one; None where that has no such thing.
    """

    name: str
    ours: Callable[[], float]
    before: Callable[[], float] | None


@dataclass(kw_only=True)
class Checkout:
    """A copy of the repository whose code runs in processes of its own."""

    path: Path
    scratch: Path
    _runs: int = field(default=0)

    def python(self, *arguments: str) -> float:
        """Run Python with this copy's packages; return the seconds."""
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=self.scratch,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - start

    def rooms(self) -> list[str]:
        """The packages inside `fl_dp`, each with all its modules a room."""
        rooms = [file.parent.name for file in (self.path / "fl_dp").glob("*/__init__.py")]
        return [f"fl_dp.{name}" for name in sorted(rooms)]

    def component(self, name: str) -> str:
        """The module of the Flower app's `clientapp` or `serverapp`."""
        project = tomllib.loads((self.path / "pyproject.toml").read_text(encoding="utf-8"))
        reference: str = project["tool"]["flwr"]["app"]["components"][name]
        return reference.partition(":")[0]

    def first_round(self, *overrides: str) -> float:
        """Seconds from `fl-dp run` to its first released round; the run is stopped."""
        self._runs += 1
        folder = self.scratch / f"run-{self._runs}"
        asked = ["rounds=100", f"output_dir={self.scratch}", f"run_name={folder.name}", *overrides]
        command = [sys.executable, "-P", "-m", "fl_dp", "run", *asked]
        return self._until(folder / "metrics.jsonl", FIRST_ROUND, command)

    def flower_alone(self) -> float:
        """Seconds until two nodes of Flower's engine have answered to nothing."""
        self._runs += 1
        folder = self.scratch / f"run-{self._runs}"
        folder.mkdir()
        for name, text in FLOWER_ALONE.items():
            (folder / name).write_text(text, encoding="utf-8")
        paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(self.path)])}
        return self._until(folder / "answered", 1, [sys.executable, "-m", "alone"], paths)

    def _until(
        self, file: Path, lines: int, command: list[str], environment: dict[str, str] | None = None
    ) -> float:
        """Seconds until a command has written so many lines; it is stopped then."""
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=self.scratch,
            env=self._environment | (environment or {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not _lines(file) >= lines:
                seconds = time.perf_counter() - start
                if process.poll() is not None or seconds > LONGEST:
                    raise RuntimeError(f"nothing in {file} after {seconds:.0f} s: {command}")
                time.sleep(0.02)
            return time.perf_counter() - start
        finally:
            process.terminate()
            process.wait()

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.path)}


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def cases(ours: Checkout, before: Checkout | None) -> list[Case]:
    """What is timed."""

    def both(name: str, how: Callable[[Checkout], float]) -> Case:
        then = None if before is None else lambda: how(before)
        return Case(name=name, ours=lambda: how(ours), before=then)

    def importing(name: str, code: str) -> Case:
        return both(name, lambda checkout: checkout.python("-c", code))

    def room(name: str) -> Case:
        then = before if before is not None and name in before.rooms() else None
        return Case(
            name=f"import all of {name}",
            ours=lambda: ours.python("-c", EVERY_MODULE, name),
            before=None if then is None else lambda: then.python("-c", EVERY_MODULE, name),
        )

    def run(number: int) -> Case:
        asked = f"simulation.units_per_node={number}"
        return both(
            f"fl-dp run to the first round, {number} a node",
            lambda checkout: checkout.first_round(asked, "simulation.engine=flower"),
        )

    def app(name: str) -> Case:
        return both(
            f"import the {name}",
            lambda checkout: checkout.python("-c", f"import {checkout.component(name)}"),
        )

    return [
        importing(YARDSTICK, "import flwr.clientapp, flwr.serverapp, ray, torch"),
        importing("import fl_dp", "import fl_dp"),
        *(room(name) for name in ours.rooms()),
        app("clientapp"),
        app("serverapp"),
        both("fl-dp plan", lambda checkout: checkout.python("-P", "-m", "fl_dp", "plan")),
        both(
            "fl-dp run to the first round",
            lambda checkout: checkout.first_round("simulation.engine=flower"),
        ),
        run(1),
        run(50),
        Case(
            name="Flower's engine to the first answers, a run that computes nothing",
            ours=ours.flower_alone,
            before=None,  # it is Flower's
        ),
        Case(
            name="fl-dp run to the first round, in one process",
            ours=lambda: ours.first_round("simulation.engine=in_process"),
            before=None,  # no release has had it
        ),
    ]


def timed(case: Case, repeats: int) -> dict[str, float]:
    """Least and median seconds of each side, which take turns."""
    sides = {"ours": case.ours} | ({} if case.before is None else {"before": case.before})
    timings: dict[str, list[float]] = {side: [] for side in sides}
    for run in sides.values():
        run()  # files are in memory and noise is calibrated from then on
    for turn in range(repeats):
        for side in sorted(sides, reverse=turn % 2 == 1):
            timings[side].append(sides[side]())
    least = {f"{side}_least_s": min(times) for side, times in timings.items()}
    return least | {f"{side}_s": statistics.median(times) for side, times in timings.items()}


def _shown(row: dict[str, float], side: str) -> str:
    least, median = row.get(f"{side}_least_s"), row.get(f"{side}_s")
    return "" if least is None or median is None else f"{least:.2f} / {median:.2f} s"


def main() -> None:
    """Time everything and print a table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description="Startup")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--only", default="", help="time what has this text in its name")
    parser.add_argument("--repeats", type=int, default=3, help="timings a side (default: 3)")
    parser.add_argument("--json", action="store_true", help="print the timings as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        ours = Checkout(path=HERE, scratch=scratch / "ours")
        before = None
        if options.before is not None:
            before = Checkout(path=options.before.resolve(), scratch=scratch / "before")
        for checkout in filter(None, (ours, before)):
            checkout.scratch.mkdir()
        results: dict[str, dict[str, float]] = {}
        for case in cases(ours, before):
            if options.only in case.name:
                print(case.name, file=sys.stderr)
                results[case.name] = timed(case, options.repeats)
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"load": load, "seconds": results}, indent=2))
        return
    table = Table(title=f"Startup, least / median of {options.repeats}; load {load:.1f} at the end")
    table.add_column("case")
    for column in ("ours", "before", "of the yardstick"):
        table.add_column(column, justify="right")
    yardstick = results.get(YARDSTICK, {}).get("ours_least_s")
    for name, row in results.items():
        share = "" if yardstick is None else f"{row['ours_least_s'] / yardstick:.2f}"
        table.add_row(name, _shown(row, "ours"), _shown(row, "before"), share)
    Console().print(table)


if __name__ == "__main__":
    main()
