"""Real SuperNodes behind gates, each with its own policy and ledger."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from deployment import Deployment


class GatedDeployment(Deployment):
    """A SuperLink and SuperNodes behind gates, which start apps as their own user."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        """Remember the keys of each site's policy, as Python names them.

        The folder is for logs, policies and ledgers.
        """
        super().__init__(folder)
        self._keys = {f"dp-{name.replace('_', '-')}": value for name, value in keys.items()}

    def ledger_of(self, name: str) -> Path:
        """The file of a site's ledger."""
        return self._folder / name / "ledger.db"

    def exit_status(self, name: str) -> int:
        """Wait until a gate has ended; return its status."""
        return self._nodes.pop(name).wait()

    def _supernode(self, name: str) -> Sequence[str]:
        file = self._folder / f"{name}.yaml"
        self.ledger_of(name).parent.mkdir(exist_ok=True)
        own = {"dp-ledger-path": str(self.ledger_of(name)), "dp-unit-name": name}
        file.write_text(yaml.safe_dump(own | self._keys))
        command = (sys.executable, "-m", "fl_dp", "supernode", "--policy", str(file))
        return (*command, "--cooperative", "--insecure")
