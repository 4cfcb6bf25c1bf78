"""A client that trains an Equinox network in JAX, and its records for privacy of each."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from sklearn.datasets import load_digits

from fl_dp.clients import RecordsInBatches

FIRST, FORM = eqx.partition(eqx.nn.Linear(64, 10, key=jax.random.key(0)), eqx.is_array)


def make_model() -> list[np.ndarray]:
    """Return the first weights, the same at server and clients."""
    return [np.asarray(each) for each in jax.tree.leaves(FIRST)]


def loss(arrays, image, label):  # type: ignore[no-untyped-def]  # trees of JAX
    """Return the cross-entropy of one image."""
    model = eqx.combine(jax.tree.unflatten(jax.tree.structure(FIRST), arrays), FORM)
    return -jax.nn.log_softmax(model(image))[label]


gradient_of_each = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))


def part_of(context: Context) -> tuple[jax.Array, jax.Array]:
    """Return the node's images and labels."""
    node = context.node_config
    part = slice(int(node["partition-id"]), None, int(node["num-partitions"]))
    digits = load_digits()
    return jnp.asarray(digits.data[part] / 16.0, jnp.float32), jnp.asarray(digits.target[part])


class Client(NumPyClient):
    """Five steps down the gradient of its own images."""

    def __init__(self, context: Context) -> None:
        """Find the images."""
        self.images, self.labels = part_of(context)

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]  # as NumPyClient has it
        """Return the trained weights."""
        arrays = [jnp.asarray(each) for each in parameters]
        for _ in range(5):
            each = gradient_of_each(arrays, self.images, self.labels)
            arrays = [array - 0.5 * one.mean(0) for array, one in zip(arrays, each, strict=True)]
        return [np.asarray(each) for each in arrays], len(self.labels), {}


def client_fn(context: Context) -> Client:
    """Make the client of a node."""
    return Client(context)


def records_fn(context: Context, config: dict, model: ArrayRecord) -> RecordsInBatches:
    """Return the node's records, each a privacy unit of its own."""
    images, labels = part_of(context)
    arrays = [jnp.asarray(each, jnp.float32) for each in model.to_numpy_ndarrays()]
    return RecordsInBatches(
        model=model,
        count=len(labels),
        gradients=lambda rows: gradient_of_each(arrays, images[rows], labels[rows]),
        at_once=64,  # no record depends on another one of its batch
    )
