"""Whether the gate takes the installed Flower: it refuses one that it was not tested with."""

from __future__ import annotations

import pytest

from fl_dp.gate.flower_hook import require_known_flower
from fl_dp.protocol.flower_versions import FlowerChanged


def takes_this_flower() -> bool:
    """Whether a SuperNode behind a gate would start."""
    try:
        require_known_flower()
    except FlowerChanged:
        return False
    return True


NEEDS_GATE = pytest.mark.skipif(
    not takes_this_flower(), reason="the gate refuses a Flower that it was not tested with"
)
"""Marks a test of real SuperNodes behind gates."""
