"""A run as the gate judges it: its app by the bundle's bytes, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_dp.clients.owner.running_app import RunningApp


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """A run as the gate first received it.

    Attributes:
        config: Configuration that the app gets besides its messages.
        overrides: The part of it that the server set, and not the bundle.
    """

    app: RunningApp
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]
