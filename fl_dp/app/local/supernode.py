"""Flower's SuperNode for one user of this machine: what others send over loopback is refused.

    python -m fl_dp.app.local.supernode --superlink 192.0.2.1:8000 --root-certificates ca.crt ...

A SuperNode hands its messages to client processes over a port of loopback, and asks nobody who he
is. Another user of the machine could take a message and answer it in the node's name; here he is
refused, as by `fl_dp.app.local.superlink`. All options are those of `flower-supernode`.
"""

from __future__ import annotations

from typing import Any

from fl_dp.protocol.flower_versions import parts_of_flower

from .superlink import App, OwnUserOnly, users_can_be_told_apart


def main() -> None:
    """Run `flower-supernode` with the command line's options, behind the guard.

    Raises:
        SystemExit: If this system does not say who connects to a port.
    """
    import uvicorn

    with parts_of_flower():
        from flwr.supernode.cli import flower_supernode

    if not users_can_be_told_apart():
        raise SystemExit(
            "error: this system does not say who connects to a port, so that other users of this "
            "machine could answer for the node: use a machine of its own, and `flower-supernode`"
        )
    configured = uvicorn.Config

    def guarded(app: App, **options: Any) -> uvicorn.Config:
        # A header must not say who the other end is.
        return configured(OwnUserOnly(app), **options | {"proxy_headers": False})

    uvicorn.Config = guarded  # type: ignore[assignment,misc]  # Flower has no hook for it
    flower_supernode()


if __name__ == "__main__":
    main()
