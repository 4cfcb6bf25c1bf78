"""A client that trains scikit-learn's logistic regression, in the shape of Flower's quickstart."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

app = ClientApp()


def load_data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return the node's images and labels."""
    images, labels = load_digits(return_X_y=True)
    node = context.node_config
    own = np.arange(len(images)) % int(node["num-partitions"]) == int(node["partition-id"])
    return images[own] / 16.0, labels[own]


def load_model(message: Message) -> LogisticRegression:
    """Return the server's model."""
    model = LogisticRegression(max_iter=2, warm_start=True)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = message.content.array_records["arrays"].to_numpy_ndarrays()
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for two passes from the server's model."""
    model = load_model(message)
    images, labels = load_data(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two passes do not converge
        model.fit(images, labels)
    arrays = ArrayRecord([model.coef_, model.intercept_])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the server's model."""
    model = load_model(message)
    images, labels = load_data(context)
    loss = log_loss(labels, model.predict_proba(images), labels=np.arange(10))
    metrics = {"test_logloss": loss, "accuracy": model.score(images, labels)}
    record = MetricRecord(metrics | {"num-examples": len(labels)})
    return Message(RecordDict({"metrics": record}), reply_to=message)
