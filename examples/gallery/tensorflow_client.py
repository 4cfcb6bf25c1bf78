"""A client that trains a Keras network in TensorFlow, and its records for privacy of each."""

import numpy as np
import tensorflow as tf
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from sklearn.datasets import load_digits

from fl_dp.clients import RecordsInBatches


def make_model() -> tf.keras.Model:
    """Return the network with its first weights, the same at server and clients."""
    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential([tf.keras.layers.Input((64,)), tf.keras.layers.Dense(10)])


def part_of(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return the node's images and labels."""
    node = context.node_config
    part = slice(int(node["partition-id"]), None, int(node["num-partitions"]))
    digits = load_digits()
    return (digits.data[part] / 16.0).astype(np.float32), digits.target[part]


class Client(NumPyClient):
    """Five steps down the gradient of its own images."""

    def __init__(self, context: Context) -> None:
        """Find the images, and compile the network."""
        self.images, self.labels = part_of(context)
        self.model = make_model()
        self.model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.model.optimizer.learning_rate = 0.5

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]  # as NumPyClient has it
        """Return the trained weights."""
        self.model.set_weights(parameters)
        every = len(self.labels)
        self.model.fit(self.images, self.labels, batch_size=every, epochs=5, verbose=0)
        return self.model.get_weights(), every, {}


def client_fn(context: Context) -> Client:
    """Make the client of a node."""
    return Client(context)


def records_fn(context: Context, config: dict, model: ArrayRecord) -> RecordsInBatches:
    """Return the node's records, each a privacy unit of its own."""
    images, labels = part_of(context)
    network = make_model()
    network.set_weights(model.to_numpy_ndarrays())

    @tf.function
    def gradients(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x, training=False))
        return tape.jacobian(losses, network.trainable_variables)

    return RecordsInBatches(
        model=model,
        count=len(labels),
        gradients=lambda rows: [each.numpy() for each in gradients(images[rows], labels[rows])],
        at_once=64,  # no record depends on another one of its batch
    )
