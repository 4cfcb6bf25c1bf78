"""Flower's SuperNode for one user of this machine: what others send over loopback is refused.

    python -m fl_dp.app.local.supernode --superlink 192.0.2.1:8000 --root-certificates ca.crt ...

A SuperNode hands its messages to client processes over a port of loopback, and asks nobody who he
is. Another user of the machine could take a message and answer it in the node's name; here he is
refused, as by `fl_dp.app.local.superlink`. All options are those of `flower-supernode`.
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
        SystemExit: If this system does not say who connects to a port, or Flower has no such
            command any more.
    """
    try:
        flower_supernode = supernode_for()
    except (FlowerChanged, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    flower_supernode()


def supernode_for(user: int | None = None, *, socket: Path | None = None) -> Callable[[], None]:
    """Return `flower-supernode`'s main, whose Runtime API one user reaches.

    Args:
        user: Its number; None: this process's own user.
        socket: Unix socket at which the Runtime API is served in place of a port. Who may open it
            is what its folder says.

    Raises:
        FlowerChanged: If Flower has no such command any more.
        OSError: If this system does not say who connects to a port.
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
