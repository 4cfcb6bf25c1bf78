"""Heads of ledgers that the two sides of a training keep of each other, at its end.

Nodes keep the point of the server's ledger in their receipts, so that the server can't show them a
shorter one later. The server keeps the nodes' in `node-heads.json` beside its ledger, sealed: a
node that has lost or restored its ledger can be told by it how far it had come.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fl_dp.files import read_json_object, write_text
from fl_dp.ledger import SpentLedger
from fl_dp.ledger.run_receipt import ServerHead, statement_hash

logger = logging.getLogger("flwr.fl_dp")

HEADS_FILE = "node-heads.json"
"""The file beside the server's ledger."""


def head_of(ledger: SpentLedger) -> dict[str, Any]:
    """Return the point that the server's ledger has reached, and the hash of its statement."""
    from fl_dp.statement import privacy_statement  # with SciPy's bounds, at the end of a run alone

    anchor, said = ledger.anchor, privacy_statement(ledger).to_dict()
    return asdict(
        ServerHead(entries=anchor.entries, hash=anchor.hash, statement=statement_hash(said))
    )


def keep_heads(ledger: SpentLedger, heads: Mapping[str, str]) -> None:
    """Write the nodes' sealed heads beside the server's ledger; one of a node replaces its last.

    A database has no such place. What can't be written is said in the log: the run has ended.
    """
    if ledger.file is None or not heads:
        return
    file = Path(ledger.file).with_name(HEADS_FILE)
    try:
        known = read_json_object(file, "file of nodes' heads") if file.is_file() else {}
        fresh = {name: json.loads(text) for name, text in heads.items()}
        write_text(file, json.dumps(known | fresh, indent=2, sort_keys=True) + "\n")
    except (OSError, ValueError) as error:
        logger.warning("The heads of the nodes' ledgers can't be kept: %s", error)
