"""Flower's SuperNode for one user of this machine: it refuses others' requests on loopback.

    python -m fl_dp.app.local.local_supernode --superlink 192.0.2.1:8000 ...

A SuperNode hands messages to client processes over a loopback port, and checks nobody. Another
user of the machine could take a message and answer it in the node's name. Such requests are
refused here, as by `fl_dp.app.local.superlink`. Options are those of `flower-supernode`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

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
        flower_supernode = supernode_for()
    except (FlowerChanged, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    flower_supernode()


def supernode_for(user: int | None = None, *, socket: Path | None = None) -> Callable[[], None]:
    """Main function of `flower-supernode`, whose Runtime API only one user reaches.

    Args:
        user: The user's id. None: this process's user.
        socket: Unix socket for the Runtime API in place of a port. Its folder's permissions say
            who may open it.

    Raises:
        FlowerChanged: Flower no longer has such a command.
        OSError: This system does not say who connects to a port.
    """
    if socket is not None:
        return supernode_behind(lambda app: app, socket=socket)
    if not users_can_be_told_apart():
        raise OSError(
            "this system does not say who connects to a port, so that other users of this machine "
            "could answer for the node: use a machine of its own, and `flower-supernode`"
        )
    return supernode_behind(partial(OwnUserOnly, user=user))


if __name__ == "__main__":
    main()
