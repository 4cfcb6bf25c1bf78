"""What tests of clients share: one node, and how its replies are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from asked_node import Node, ToldClient, arrays_in, metrics_in, record_of


@pytest.fixture
def told() -> type[ToldClient]:
    return ToldClient


@pytest.fixture
def node() -> type[Node]:
    return Node


@pytest.fixture
def read() -> Any:
    """Return `(arrays, metrics)` of a reply, both by name."""
    return lambda reply: (arrays_in(reply), metrics_in(reply))


@pytest.fixture
def read_metrics() -> Any:
    """Return the metrics of a reply, by name."""
    return metrics_in


@pytest.fixture
def record() -> Any:
    """Make an ArrayRecord of arrays by name."""
    return record_of


@pytest.fixture
def scale_p() -> Any:
    """Return the p-value of the mean absolute draw, given a law's: sharper than a test of shape."""

    def p_value(draws: Any, mean: float, variance: float) -> float:
        z = (np.abs(draws).mean() - mean) / math.sqrt(variance / len(draws))
        return math.erfc(abs(z) / math.sqrt(2.0))

    return p_value
