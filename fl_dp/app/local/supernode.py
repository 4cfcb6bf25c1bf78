"""Flower's SuperNode for one user of this machine: what others send over loopback is refused.

    python -m fl_dp.app.local.supernode --superlink 192.0.2.1:8000 --root-certificates ca.crt ...

A SuperNode hands its messages to client processes over a port of loopback, and asks nobody who he
is. Another user of the machine could take a message and answer it in the node's name; here he is
refused, as by `fl_dp.app.local.superlink`. All options are those of `flower-supernode`.
"""

from __future__ import annotations

from fl_dp.protocol.flower_compat import supernode_behind
from fl_dp.protocol.flower_versions import FlowerChanged

from .superlink import OwnUserOnly, users_can_be_told_apart


def main() -> None:
    """Run `flower-supernode` with the command line's options, behind the guard.

    Raises:
        SystemExit: If this system does not say who connects to a port, or Flower has no such
            command any more.
    """
    if not users_can_be_told_apart():
        raise SystemExit(
            "error: this system does not say who connects to a port, so that other users of this "
            "machine could answer for the node: use a machine of its own, and `flower-supernode`"
        )
    try:
        flower_supernode = supernode_behind(OwnUserOnly)
    except FlowerChanged as changed:
        raise SystemExit(f"error: {changed}") from None
    flower_supernode()


if __name__ == "__main__":
    main()
