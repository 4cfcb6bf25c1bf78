"""An app for real nodes: a file tells its clients what to do, and its server may kill itself.

It trains a vector of eight numbers, without PyTorch: a message takes only Flower's time.
"""

from __future__ import annotations

from pathlib import Path

from flat_plans import calibrated_plan
from stages import Place
from written_apps import write_app

from fl_dp import Plan, PrivacyBudget

SECRET = "Jane Doe, born 1970-01-01"
"""A record that a client's exception has in its text."""

_CLIENT = """\
import os
import time
from pathlib import Path

from flwr.client import NumPyClient
from fl_dp.clients import numpy_client_app

class Client(NumPyClient):
    def __init__(self, name):
        self.name = name

    def fit(self, parameters, config):
        with (Path(PLACE) / f"{self.name}.began").open("a") as file:
            file.write("x")
        told = Path(PLACE) / f"{self.name}.do"
        what, _, how = (told.read_text() if told.exists() else "").partition(" ")
        if what == "raise":
            raise ValueError(f"not a record: {how}")
        if what == "die":
            os._exit(17)
        if what == "sleep":
            time.sleep(float(how))
        return [each + 0.1 for each in parameters], 1, {}

app = numpy_client_app(lambda context: Client(context.node_config["dp-unit-name"]))
"""
_SERVER = """\
from pathlib import Path

from flwr.serverapp import ServerApp
from .stages import Place, train

app = ServerApp()

@app.main()
def main(grid, context):
    place = Place(Path(PLACE))
    timeout = float((place.path / "timeout").read_text())
    train(grid, place, rounds=ROUNDS, timeout=timeout)
"""


class FaultApp:
    """The app, and the folder that its clients and server look at.

    Attributes:
        path: Of the app.
        place: Of the training.
    """

    def __init__(self, folder: Path, *, nodes: int, rounds: int, plan: Plan | None = None) -> None:
        """Write them.

        Without `plan`, theirs has one round more than is trained, with everybody in each.
        """
        self.path, self.place = folder / "faulty", Place(folder / "place")
        self.place.path.mkdir(parents=True)
        self.place.put_plan(
            plan
            or calibrated_plan(
                PrivacyBudget(epsilon=20.0, delta=1e-5),
                rounds=rounds + 1,
                num_clients=nodes,
                sampling_rate=1.0,
                clipping_norm=1.0,
            )
        )
        self.wait_for(nobody=True)
        path = str(self.place.path)
        write_app(self.path, client=_CLIENT, server=_SERVER, PLACE=path, ROUNDS=rounds)
        stages = Path(__file__).with_name("stages.py").read_text()
        (self.path / "faulty" / "stages.py").write_text(stages)

    def tell(self, node: str, what: str) -> None:
        """Let a node's clients do something from now on: raise, die, sleep SECONDS, or nothing."""
        (self.place.path / f"{node}.do").write_text(what)

    def wait_for(self, *, nobody: bool) -> None:
        """Let the server's next run wait briefly for a silent node, or as long as a node takes.

        A busy machine takes a minute where an idle one takes three seconds.
        """
        (self.place.path / "timeout").write_text("30" if nobody else "240")

    def began(self, node: str) -> int:
        """How often a node's client was asked to train."""
        file = self.place.path / f"{node}.began"
        return len(file.read_text()) if file.exists() else 0
