"""Flower's SuperNode with a gate in it, ready to run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .connection import GatedConnection
from .flower_hook import supernode_behind_gate
from .gate import Gate


def gated_supernode(policy: Path, options: Sequence[str], *, isolated: bool) -> Callable[[], None]:
    """Return what runs a SuperNode behind a gate.

    Args:
        policy: File of the owner's policy.
        options: Those of `flower-supernode`.
        isolated: Whether root has tried, and found, that apps can't go around the gate.

    Raises:
        NodeConfigError: If the policy can't be read or can't be meant.
        FlowerChanged: If this Flower is not one that the gate was tested with.
    """
    gate = Gate(policy, isolated=isolated)

    flower_supernode = supernode_behind_gate(lambda real: GatedConnection(gate, real, abandon))

    def run() -> None:
        sys.argv = ["flower-supernode", *options]
        flower_supernode()

    return run


def abandon() -> None:
    """End this process as its operator would; whoever supervises it starts another one."""
    os.kill(os.getpid(), signal.SIGTERM)
