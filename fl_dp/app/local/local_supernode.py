"""Flower's SuperNode for one user of this machine: it refuses others' requests on loopback.

    python -m fl_dp.app.local.local_supernode --superlink 192.0.2.1:8000 ...

A SuperNode hands messages to client processes over a loopback port, and checks nobody. Another
user of the machine could take a message and answer it in the node's name. Such requests are
refused here, as by `fl_dp.app.local.superlink`. Options are those of `flower-supernode`.

Where Flower's own would wait without a word, or end as if all was well, this one ends with status
2 and a line: the SuperLink's certificate has expired, or its clock is another one. All that it
started ends with it.
"""

from __future__ import annotations

import argparse
import logging
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fl_dp import clock
from fl_dp.gate.superlink_signs import LinkLost, NotReached, Signs, look
from fl_dp.gate.tied import Tied
from fl_dp.protocol.flower_compat import supernode_behind
from fl_dp.protocol.flower_versions import FlowerChanged

from .processes import descendants, kill_all
from .superlink import OwnUserOnly, users_can_be_told_apart

logger = logging.getLogger("flwr.fl_dp.client")

_LOOKS = 60.0  # seconds between two looks at the SuperLink


def superlink_parser() -> argparse.ArgumentParser:
    """Those of Flower's options that say how a SuperLink is reached."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--superlink")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates", type=Path)
    return parser


def main() -> None:
    """Run `flower-supernode` with the command line's options, behind the guard.

    Raises:
        SystemExit: This system does not say who connects to a port, or Flower no longer has such
            a command, or the SuperLink can't be trusted, or refuses this machine's clock.
    """
    try:
        flower_supernode = guarded_supernode()
        _watch(sys.argv[1:])
    except (FlowerChanged, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    except LinkLost as lost:
        print(f"error: {lost}", file=sys.stderr)
        raise SystemExit(2) from None
    # Flower has no hook for it, and its SuperExec may outlive it.
    subprocess.Popen = Tied  # type: ignore[misc]  # a subclass in its class's place
    try:
        flower_supernode()
    finally:
        kill_all(descendants(os.getpid()))


def _watch(options: list[str]) -> None:
    """Look at the SuperLink now, and go on looking, if it has TLS.

    Raises:
        LinkLost: It can't be trusted, or refuses this machine's clock.
        OSError: The trusted certificates can't be read.
    """
    try:
        asked, _ = superlink_parser().parse_known_args(options)
    except argparse.ArgumentError:
        return  # Flower says what is wrong
    if asked.insecure or asked.superlink is None:
        return
    trust = ssl.create_default_context(cafile=asked.root_certificates)
    for line in _seen(asked.superlink, trust).cautions():
        logger.warning("%s", line)
    arguments = (asked.superlink, trust)
    threading.Thread(target=_keep_looking, args=arguments, name="signs", daemon=True).start()


def _seen(address: str, trust: ssl.SSLContext) -> Signs:
    try:
        signs = look(address, trust)
    except NotReached:
        return Signs()  # Flower tries again
    signs.require_clock()
    return signs


def _keep_looking(address: str, trust: ssl.SSLContext) -> NoReturn:
    while True:
        clock.sleep(_LOOKS)
        try:
            _seen(address, trust)
        except LinkLost as lost:
            logger.error("this SuperNode ends: %s", lost)
            kill_all(descendants(os.getpid()))
            os._exit(2)


def guarded_supernode() -> Callable[[], None]:
    """Main function of `flower-supernode`, whose Runtime API only this process's user reaches.

    Raises:
        FlowerChanged: Flower no longer has such a command.
        OSError: This system does not say who connects to a port.
    """
    if not users_can_be_told_apart():
        raise OSError(
            "this system does not say who connects to a port, so that other users of this machine "
            "could answer for the node: use a machine of its own, and `flower-supernode`"
        )
    return supernode_behind(OwnUserOnly)


if __name__ == "__main__":
    main()
