"""A client that trains scikit-learn's logistic regression, in the shape of Flower's quickstart."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for two passes from the server's model."""
    images, labels = load_digits(return_X_y=True)
    node = context.node_config
    own = np.arange(len(images)) % int(node["num-partitions"]) == int(node["partition-id"])
    model = LogisticRegression(max_iter=2, warm_start=True)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = message.content.array_records["arrays"].to_numpy_ndarrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two passes do not converge
        model.fit(images[own] / 16.0, labels[own])
    arrays = ArrayRecord([model.coef_, model.intercept_])
    metrics = MetricRecord({"num-examples": int(own.sum())})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
