"""All uses of parts of Flower, its engine's Ray and its web server that may move.

Only this file and a gate's messages (`fl_dp/gate/flower_wire.py`) import parts that Flower's
documentation leaves out; a test checks every import. Each use says what it relies on and what to
do when that moves. A failed import raises `FlowerChanged`, from `flower_versions.py`: it can be
caught when this file fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flwr.app import Message

from .flower_versions import FlowerChanged, parts_of_flower

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# Relies on: the codes of error replies, and the type of mods. Moved: import them from there.
with parts_of_flower():
    from flwr.clientapp.typing import Mod as Mod
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.supercore.task_identity import TaskIdentity

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
WebApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI app, as Flower's SuperLink and SuperNode serve one."""


def be_in_a_run(run_id: int = 1) -> None:
    """Let this process make messages though Flower did not start it for a run."""
    # Relies on: a Message takes run and sender from this class. Moved: set what it reads instead.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1


def give_id(message: Message, message_id: str) -> None:
    """Give a message the id that Flower would on its way."""
    # Relies on: the private field behind `metadata.message_id`. Moved: set the field it reads.
    message.metadata.__dict__["_message_id"] = message_id
    if message.metadata.message_id != message_id:
        raise FlowerChanged("metadata.message_id does not read _message_id")


def is_simulation(grid: object) -> bool:
    """Tell whether a grid is that of Flower's simulation engine, whose nodes all run one app."""
    # Relies on: its class's name. Moved: write the new one, or simulated rounds take no window.
    return type(grid).__name__ == "InMemoryGrid"


def is_engine_s_worker() -> bool:
    """Tell whether this process is a worker of Flower's simulation engine.

    A worker is an actor of the engine's own class. A process that starts Ray itself, as an app may
    at a real node, is none; nor are that app's workers.
    """
    # Relies on: the engine's module, and Ray's private name for what made an actor. Moved:
    # simulated nodes count as real, which costs comfort and no protection; write the new names.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    process = ray.get_runtime_context()
    if process.get_actor_id() is None:
        return False
    constructor = getattr(process.current_actor, "_ray_actor_creation_function_descriptor", None)
    engine = "flwr.simulation.ray_transport.ray_actor"
    return getattr(constructor, "module_name", None) == engine


def superlink_behind(guard: Callable[[WebApp], WebApp] | None) -> Callable[[], None]:
    """`flower-superlink`'s main with its web app behind a guard; None: no guard."""
    # Relies on: it calls `uvicorn.run(app, ...)`. Moved: the guard's own path goes unanswered and
    # `fl-dp run` does not start; patch what it calls instead.
    import uvicorn

    with parts_of_flower():
        from flwr.superlink.cli import flower_superlink

    # Relies on: without these, Flower before 1.43 opens no other port. Moved: remove this.
    for variable in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(variable, None)  # such a port has no guard
    if guard is not None:
        run = uvicorn.run

        def run_guarded(app: WebApp, **options: Any) -> None:
            # A header must not set the address of the other end.
            run(guard(app), **options | {"proxy_headers": False})

        uvicorn.run = run_guarded  # type: ignore[assignment]  # Flower has no hook for it
    return flower_superlink


def supernode_behind(guard: Callable[[WebApp], WebApp]) -> Callable[[], None]:
    """`flower-supernode`'s main with its web app behind a guard, which wraps it."""
    # Relies on: it makes a `uvicorn.Config(app, ...)`. Moved: tests/deploy says so; patch what it
    # calls instead.
    import uvicorn

    with parts_of_flower():
        from flwr.supernode.cli import flower_supernode

    configured = uvicorn.Config

    def guarded(app: WebApp, **options: Any) -> uvicorn.Config:
        # A header must not set the address of the other end.
        return configured(guard(app), **options | {"proxy_headers": False})

    uvicorn.Config = guarded  # type: ignore[assignment,misc]  # Flower has no hook for it
    return flower_supernode


def parsed_config(text: str) -> dict[str, Any]:
    """Flower's reading of the text of `--node-config`."""
    # Relies on: the reader of `flower-supernode`. Moved: import what that command calls.
    with parts_of_flower():
        from flwr.common.config import parse_config_args

    return dict(parse_config_args([text]))


def bundle_name_and_version(file: Path | bytes) -> tuple[str, str]:
    """The name `publisher/name` and the version of a bundle that `flwr build` wrote.

    `file` is the bundle's file, or its bytes.
    """
    # Relies on: the readers of `flwr install`. Moved: read pyproject.toml in the bundle.
    with parts_of_flower():
        from flwr.common.config import get_fab_config, get_metadata_from_config

    name, version = get_metadata_from_config(get_fab_config(file))
    return name, version


def signature_of(key: Ed25519PrivateKey, digest: bytes, signed_at: int) -> bytes:
    """The signature of a bundle's digest that Flower's SuperNodes verify."""
    # Relies on: the primitives of Flower's check. Moved: import what the SuperNode verifies with.
    with parts_of_flower():
        from flwr.supercore.primitives.asymmetric_ed25519 import (
            create_message_to_sign,
            sign_message,
        )

    return sign_message(key, create_message_to_sign(digest, signed_at))
