"""The clients: each trains on its own records. fl-dp clips what they learnt."""

from typing import Any

from fl_dp.clients import NodeUnits, numpy_client_app, trained_names
from fl_dp.model_arrays import get_arrays, set_arrays
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar

from . import task


class Client(NumPyClient):
    """One client, who is the privacy unit."""

    def __init__(self, context: Context, unit: int) -> None:
        """Be one of the clients that a node hosts."""
        config = context.run_config
        node = int(context.node_config["partition-id"])
        self.number = node * int(config["clients-per-node"]) + unit
        self.config = config

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return what a model becomes by training on this client's records."""
        model = task.build_model()
        names = trained_names(model)  # what is frozen, and buffers, don't travel
        set_arrays(model, parameters, names)
        task.train(
            model,
            task.load_client(self.number, int(self.config["num-clients"])),
            learning_rate=float(self.config["learning-rate"]),
            epochs=int(self.config["local-epochs"]),
        )
        # Every client weighs 1: the number of its records stays private.
        return list(get_arrays(model, names).values()), 1, {}


def num_hosted(context: Context, config: dict[str, Any]) -> int:
    """Return the number of clients of a node; none of them sees another's records."""
    return int(context.run_config["clients-per-node"])


app = numpy_client_app(
    lambda context: Client(context, 0), units=NodeUnits(client_fn=Client, count=num_hosted)
)
