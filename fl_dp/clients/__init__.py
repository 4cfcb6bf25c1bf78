"""What runs on a node: the bridge from Flower's messages to a `NumPyClient`."""

from .numpy_client_app import numpy_client_app

__all__ = ["numpy_client_app"]
