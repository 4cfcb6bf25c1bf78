"""`fl-dp node`: a node's configuration and ledger, read for its owner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import RenderableType

from fl_dp.clients.owner.node_config import (
    PARTITION_ID_KEY,
    POLICY_KEYS,
    POLICY_PATH_KEY,
    NodeConfig,
    means_ours,
    policy_in_file,
)
from fl_dp.ledger import NodeLedger, witness_at
from fl_dp.protocol.flower_compat import parsed_config
from fl_dp.terminal.node_ledger_view import node_uses_json, node_uses_tables

from .shown_ledger import ShownLedger

if TYPE_CHECKING:  # with what it imports, which other commands can spare
    from fl_dp.gate.policy import GatePolicy


def owner_at(configuration: str) -> NodeConfig:
    """Return the configuration in a text of `--node-config`, or in a policy's or gate's file.

    Raises:
        ValueError: If it can't be read, or its values are invalid.
    """
    gate = gate_at(configuration)
    if gate is not None:
        return NodeConfig.of(gate.node_config)
    if "=" in configuration:
        return NodeConfig.of(parsed_node_config(configuration))
    return NodeConfig.of({POLICY_PATH_KEY: str(_file(configuration))})


def gate_at(configuration: str) -> GatePolicy | None:
    """Return the policy of a gate; None for a node's configuration or policy.

    Raises:
        NodeConfigError: If it is a file that can't be read, or its values are invalid.
    """
    from fl_dp.gate.policy import GATE_KEYS, GatePolicy

    if "=" in configuration:
        return None
    written = policy_in_file(str(_file(configuration)), POLICY_KEYS.keys() | GATE_KEYS.keys())
    if written.keys() & GATE_KEYS.keys():
        return GatePolicy.read(_file(configuration))
    return None


def _file(configuration: str) -> Path:
    return Path(configuration).expanduser().absolute()


def keys_of_others(configuration: str) -> list[str]:
    """Return the keys of a `--node-config` that fl-dp does not read; none of a policy's file.

    Raises:
        ValueError: If it can't be read.
    """
    config = parsed_node_config(configuration) if "=" in configuration else {}
    return [key for key in config if key != PARTITION_ID_KEY and not means_ours(key)]


def shown_uses(location: str, owner: NodeConfig | None) -> ShownLedger:
    """Verify a node's ledger and show by whom and for what its data were used.

    The owner's configuration names the cap and the witness.

    Raises:
        LedgerCorrupted: If it is no node's ledger or was altered.
        OSError: If it can't be read.
        ValueError: If it is the ledger of a training.
    """
    witness, cap = None, None
    if owner is not None:
        cap = owner.cap
        if owner.witness_path is not None:
            witness = witness_at(owner.witness_path)
    if not NodeLedger.is_one(location):
        raise ValueError(f"{location} is no node's ledger: `fl-dp ledger {location}` shows it")
    with NodeLedger.read(location, witness=witness) as ledger:
        ledger.require_owed()
        lines: list[RenderableType] = [*node_uses_tables(ledger, cap), "Chain verified"]
        if witness is not None:
            lines.append(f"Compared and in agreement: its witness {witness.location}")
        if ledger.revoked is not None:
            lines.append(f"Every use was revoked on {ledger.revoked}: nothing is charged any more")
        return ShownLedger(document=node_uses_json(ledger, cap), lines=lines)


def parsed_node_config(text: str) -> dict[str, Any]:
    """Return the key-value pairs that Flower reads from the text of `--node-config`.

    Raises:
        ValueError: If it can't be read.
    """
    how = "write key=value pairs with spaces between them, texts in double quotes"
    try:
        config = parsed_config(text)
    except (SystemExit, ValueError, typer.Exit, typer.BadParameter) as error:
        raise ValueError(f"Flower can't read this --node-config: {text!r}; {how}") from error
    # Flower's reader skips what it does not understand, and a cap would be gone.
    if len(config) < re.sub(r'"[^"]*"', "", text).count("="):
        raise ValueError(
            f"Flower reads only {', '.join(config) or 'nothing'} of this --node-config: {how}"
        )
    return config
