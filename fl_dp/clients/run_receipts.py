"""Receipts of a node's own: what each run has spent, signed, in a folder beside the ledger.

`receipts/LEDGER-run-RUN.json` is replaced after each answer that was charged, so that the last one
stands whatever becomes of the run. It never leaves the node: the server gets a sealed head.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.files import private_folder, write_text
from fl_dp.secagg import Identity

from .node_config import NodeConfig
from .node_privacy import in_simulation

logger = logging.getLogger("flwr.fl_dp.client")

IDENTITY_FILE = "secagg-identity.pem"
"""A node's signing key, beside its ledger."""

RECEIPTS_FOLDER = "receipts"


def receipt_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Write the run's receipt after a message, if the node's ledger has charged anything to it.

    `numpy_client_app` has it built in, right inside the owner's policy. A receipt that can't be
    written is said in the node's log and changes no answer: the charge is in the ledger.
    """
    try:
        return call_next(message, context)
    finally:
        write_receipt(context)


def write_receipt(context: Context, told: str | None = None) -> str | None:
    """Write the receipt of a run, unless nothing was charged to it.

    Args:
        context: Of the node.
        told: What the server says of its own ledger, a `ServerHead` as JSON text; None: nothing.

    Returns:
        The sealed head for the server, as text; None if there is nothing to seal.
    """
    try:
        place = None if in_simulation() else NodeConfig.of(context.node_config).ledger_path
        if place is None or not Path(place).is_file():
            return None  # a database has no folder for keys
        # With SciPy, for a node that keeps a ledger alone.
        from fl_dp.ledger import NodeLedger
        from fl_dp.ledger.run_receipt import RunReceipt, SealedHead, ServerHead

        with NodeLedger.read(place) as ledger:
            if not any(each.use and each.use.run == context.run_id for each in ledger.uses):
                return None
            file = receipt_file(place, context.run_id)
            server = None if told is None else ServerHead.from_json(told)
            if file.is_file():
                known = RunReceipt.from_json(file.read_text(encoding="utf-8")).server
                # What a server said once it can't unsay by saying less.
                if known is not None and (server is None or server.entries <= known.entries):
                    server = known
            identity = Identity.load_or_create(Path(place).parent / IDENTITY_FILE)
            receipt = RunReceipt.of(ledger, identity, context.run_id, server)
            private_folder(file.parent)
            write_text(file, receipt.to_json())
            return SealedHead.of(ledger.anchor, identity, context.run_id).to_json()
    except (OSError, ValueError, RuntimeError):
        logger.exception("no receipt of this run could be written")
        return None


def receipt_file(ledger: str, run: int) -> Path:
    """Return the file of a run's receipt beside a ledger's file."""
    path = Path(ledger)
    return path.parent / RECEIPTS_FOLDER / f"{path.stem}-run-{run}.json"
