"""Flower's SuperNode for one user of this machine: it refuses others' requests on loopback.

    python -m fl_dp.app.local.local_supernode --superlink 192.0.2.1:8000 ...

A SuperNode hands messages to client processes over a loopback port, and checks nobody. Another
user of the machine could take a message and answer it in the node's name. Such requests are
refused here, as by `fl_dp.app.local.superlink`. Options are those of `flower-supernode`.
"""

from __future__ import annotations

from collections.abc import Callable

from fl_dp.protocol.flower_compat import supernode_behind
from fl_dp.protocol.flower_versions import FlowerChanged

from .superlink import OwnUserOnly, users_can_be_told_apart


def main() -> None:
    """Run `flower-supernode` with the command line's options, behind the guard.

    Raises:
        SystemExit: This system does not say who connects to a port, or Flower no longer has such
            a command.
    """
    try:
        flower_supernode = guarded_supernode()
    except (FlowerChanged, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    flower_supernode()


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
