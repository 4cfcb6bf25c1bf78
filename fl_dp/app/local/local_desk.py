"""The desk of a gate, which the site's SuperNode takes for its SuperLink.

    python -m fl_dp.app.local.local_desk --gate /run/fl-dp-north/gate.sock --socket fleet.sock

It needs no file but the two sockets. Over a port of loopback one user alone gets answers.
"""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path

from fl_dp.gate.desk_server import serve_desk

from .superlink import OwnUserOnly

_AGAIN = 0.2  # seconds until the gate is looked for again


def desk_parser() -> argparse.ArgumentParser:
    """The options of a desk."""
    parser = argparse.ArgumentParser(description="The desk between a gate and a SuperNode.")
    parser.add_argument("--gate", required=True, type=Path, help="the gate's Unix socket")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=Path, help="a Unix socket for the SuperNode")
    where.add_argument("--listening", type=int, help="a descriptor that listens on loopback")
    return parser


def main() -> None:
    """Serve until the gate is gone.

    Raises:
        SystemExit: The socket can't be made.
    """
    asked = desk_parser().parse_args()
    while not asked.gate.exists():
        time.sleep(_AGAIN)
    if asked.listening is not None:
        serve_desk(asked.gate, socket.socket(fileno=asked.listening), OwnUserOnly)
        return
    asked.socket.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(asked.socket))
        asked.socket.chmod(0o660)  # its folder says who may open it
        listening.listen(64)
    except OSError as error:
        raise SystemExit(f"error: {asked.socket}: {error}") from None
    serve_desk(asked.gate, listening, lambda app: app)


if __name__ == "__main__":
    main()
