"""Real SuperNodes behind gates, each with its own policy and ledger."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from deployment import Deployment, free_port
from wards import ROOT


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

    def _at_site(self, name: str) -> Sequence[str]:
        """Options that say where the SuperNode runs."""
        del name
        return ("--cooperative",)

    def _supernode(self, name: str) -> Sequence[str]:
        file = self._folder / f"{name}.yaml"
        self.ledger_of(name).parent.mkdir(exist_ok=True)
        own = {"dp-ledger-path": str(self.ledger_of(name)), "dp-unit-name": name}
        file.write_text(yaml.safe_dump(own | self._keys))
        command = (sys.executable, "-m", "fl_dp", "supernode", "--policy", str(file))
        return (*command, *self._at_site(name), "--insecure")


class DeploymentApart(GatedDeployment):
    """The same with a desk and an unchanged `flower-supernode` of their own, as units have them.

    All is one user, as tests are, and a SuperNode that ends is started again.
    """

    def __init__(self, folder: Path, *, flower: Path, **keys: Any) -> None:
        """Take the SuperNode from the folder `flower` of executables; see `GatedDeployment`."""
        super().__init__(folder, **keys)
        self._flower = flower
        self._sockets = Path(tempfile.mkdtemp(prefix="fl-dp-"))  # their names have to be short

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop all that was started."""
        super().__exit__(kind, error, traceback)
        shutil.rmtree(self._sockets)

    def join(
        self,
        name: str,
        node_config: Mapping[str, str | int | float],
        *,
        through: int | None = None,
    ) -> None:
        """Start a gate, its desk and a SuperNode; the gate alone gets the SuperLink's port."""
        super().join(name, {}, through=through)
        python, port = (sys.executable, "-P"), str(free_port())
        gate, fleet = self._sockets / f"{name}.gate", self._sockets / f"{name}.fleet"
        desk = ("-m", "fl_dp.app.local.local_desk", "--gate", str(gate), "--socket", str(fleet))
        self._nodes[f"{name} desk"] = self._start(f"{name} desk", *python, *desk)
        node = [str(self._flower / "flower-supernode"), "--insecure", "--superlink"]
        node += [f"127.0.0.1:{port}", "--port", str(free_port())]
        node += ["--node-config", self._words(node_config)]
        relay = (str(ROOT / "deploy" / "relay.py"), "--socket", str(fleet), "--port", port, "--")
        path = f"PATH={self._flower}{os.pathsep}{self._environment['PATH']}"
        again = ("/bin/sh", "-c", 'while :; do "$@"; sleep 1; done', "sh", "/usr/bin/env", path)
        started = self._start(f"{name} supernode", *again, *python, *relay, *node)
        self._nodes[f"{name} supernode"] = started

    def _at_site(self, name: str) -> Sequence[str]:
        return ("--app-user", "nobody", "--desk-socket", str(self._sockets / f"{name}.gate"))
