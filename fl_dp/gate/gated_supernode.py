"""Flower's SuperNode with a gate in it, ready to run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_dp.clients.owner.node_config import NodeConfigError

from .connection import GatedConnection
from .description import describe_gate
from .flower_hook import supernode_behind_gate
from .gate import Gate
from .policy import GatePolicy


def gated_supernode(policy: Path, options: Sequence[str], *, isolated: bool) -> Callable[[], None]:
    """A function that runs a SuperNode behind a gate.

    `policy` is the owner's file, `options` are those of `flower-supernode`, `isolated` is as for
    `Gate`.

    Raises:
        NodeConfigError: The policy can't be read or is invalid, or its ledger or another file
            would have each message answered by noise alone.
        FlowerChanged: The gate was not tested with this Flower.
    """
    gate = Gate(policy, isolated=isolated)
    if problems := describe_gate(GatePolicy.read(policy)).wrong:
        raise NodeConfigError(f"{policy}: {'; '.join(problems)}")
    flower_supernode = supernode_behind_gate(lambda real: GatedConnection(gate, real, abandon))

    def run() -> None:
        sys.argv = ["flower-supernode", *options]
        flower_supernode()

    return run


def abandon() -> None:
    """End this process as its operator would; its supervisor starts another one."""
    os.kill(os.getpid(), signal.SIGTERM)
