"""A client in Flower's older form, a NumPyClient, in the shape of its quickstart for NumPy."""

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient


class Client(NumPyClient):
    """Least squares on a few points of its own."""

    def __init__(self, partition: int) -> None:
        """Make up the points: y is about 1 + 2 x."""
        rng = np.random.default_rng(partition)
        self.x = rng.uniform(-1.0, 1.0, 20)
        self.y = 1.0 + 2.0 * self.x + rng.normal(0.0, 0.1, 20)

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]  # as NumPyClient has it
        """Take ten steps down the gradient."""
        (line,) = parameters
        for _ in range(10):
            wrong = line[0] + line[1] * self.x - self.y
            line = line - 0.2 * np.array([wrong.mean(), (wrong * self.x).mean()])
        return [line], len(self.x), {}

    def evaluate(self, parameters, config):  # type: ignore[no-untyped-def]  # as above
        """Measure the mean squared error."""
        (line,) = parameters
        wrong = line[0] + line[1] * self.x - self.y
        return float(np.square(wrong).mean()), len(self.x), {}


def client_fn(context: Context) -> Client:
    """Make the client of a node."""
    return Client(int(context.node_config["partition-id"]))
