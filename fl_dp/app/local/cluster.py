"""The Ray cluster that a simulation may join, and its resources.

Ray runs what anybody sends who reaches its ports, and does not say whose it is. So a cluster is
joined only from one of its machines, by the address of the Ray process that this user started
there. The system tells that address; Ray would try a wrong one for two minutes.

    python -P -m fl_dp.app.local.cluster HOST:PORT     its machines' resources, as JSON
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from .devices import Machine, workers_on
from .launch import environment_of_children
from .superlink import FOLDER_VARIABLE

_PROCESSES = Path("/proc")
_RAYLET = b"raylet"  # Ray's process on each machine of a cluster
_ADDRESS = b"--gcs-address="
_TOKEN = b"RAY_AUTH_MODE=token"
_PATIENCE = 120.0


@dataclass(frozen=True, kw_only=True)
class ClusterMember:
    """A machine of a cluster.

    Attributes:
        host: Its address within the cluster.
        cpus: Processors that Ray hands out.
        gpus: GPUs that Ray hands out.
    """

    host: str
    cpus: float
    gpus: float

    def worker_slots(self, num_gpus: float) -> int:
        """How many workers fit, each with `num_gpus`: a share of a GPU, or whole ones."""
        if num_gpus > 0:
            return min(int(self.cpus), workers_on(self.gpus, num_gpus))
        return int(self.cpus)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster that this machine belongs to.

    Attributes:
        address: Its head's host and port.
        members: Its machines.
        has_token: Whether it asks for Ray's token.
    """

    address: str
    members: tuple[ClusterMember, ...]
    has_token: bool

    @property
    def machine(self) -> Machine:
        """Its machines as one; Ray manages their memory."""
        cpus = sum(int(member.cpus) for member in self.members)
        gpus = sum(int(member.gpus) for member in self.members)
        return Machine(cpus=max(1, cpus), free_memory=None, gpus=gpus)

    @property
    def summary(self) -> str:
        """Its description in one line."""
        machines = "1 machine" if len(self.members) == 1 else f"{len(self.members)} machines"
        hosts = ", ".join(f"{member.host} ({member.cpus:g} CPUs)" for member in self.members[:8])
        more = ", ..." if len(self.members) > 8 else ""
        return f"the Ray cluster {self.address} has {machines}: {hosts}{more}"

    @property
    def caution(self) -> str | None:
        """One line, if anybody who reaches its ports can run programs on its machines."""
        if self.has_token:
            return None
        return (
            f"the Ray cluster {self.address} asks for no token: whoever reaches its ports runs "
            "programs as you on each of its machines and reads the data there; start it with "
            "RAY_AUTH_MODE=token (docs/gpu.md)"
        )


@lru_cache
def cluster_at(asked: str) -> Cluster:
    """The cluster that `simulation.ray_address` means, with its resources.

    Raises:
        ValueError: No Ray of this user here belongs to it, or it can't be joined.
    """
    address, has_token = own_address(asked)
    answer = subprocess.run(
        [sys.executable, "-P", "-m", __name__, address],
        env=environment_of_children(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    try:
        result: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        result = {"error": " ".join(answer.stderr.split()[-40:])}
    if "error" in result:
        raise ValueError(f"the Ray cluster {address} can't be joined: {result['error']}")
    members = tuple(ClusterMember(**member) for member in result["members"])
    return Cluster(address=address, members=members, has_token=has_token)


def own_address(asked: str, processes: Path = _PROCESSES) -> tuple[str, bool]:
    """Address of this user's Ray cluster here, and whether it has a token.

    Args:
        asked: `auto`, or host and port.
        processes: Folder where the system shows processes.

    Raises:
        ValueError: There is none, several, or another one.
    """
    clusters = dict(_own_raylets(processes))
    host, _, port = asked.rpartition(":")
    name = asked if asked in clusters else f"{_resolved(host)}:{port}"
    meant = clusters
    if asked != "auto":
        meant = {name: clusters[name]} if name in clusters else {}
    if len(meant) == 1:
        return next(iter(meant.items()))
    raise ValueError(
        f"simulation.ray_address={asked} is {len(meant) or 'none'} of the Ray clusters that you "
        f"have started on this machine (there is: {', '.join(sorted(clusters)) or 'none'}): name "
        "one of them, or join one first by ray start --head or ray start --address=HOST:PORT; "
        "pip install 'fl-dp[simulation]' brings Ray"
    )


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def _own_raylets(processes: Path) -> Iterator[tuple[str, bool]]:
    """Yield each of this user's Ray clusters: its address, and whether it has a token."""
    if not processes.is_dir():
        return
    for folder in processes.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            mine = folder.stat().st_uid == os.getuid()
            if not mine or Path(os.fsdecode(words[0])).name != os.fsdecode(_RAYLET):
                continue
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is somebody else's
            continue
        if any(line.startswith(os.fsencode(FOLDER_VARIABLE)) for line in environment):
            continue  # of a run of fl-dp, which does not share it
        for word in words:
            if word.startswith(_ADDRESS):
                yield word[len(_ADDRESS) :].decode(), _TOKEN in environment


def code_digest() -> str:
    """SHA-256 of this fl-dp installation, equal for a wheel and a checkout."""
    import fl_dp
    import fl_dp.strategies

    files: dict[str, Path] = {}
    for package in (fl_dp, fl_dp.strategies):
        folder = Path(str(package.__file__)).parent
        root = folder.parent if package is fl_dp.strategies else folder
        files |= {path.relative_to(root).as_posix(): path for path in folder.rglob("*.py")}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()


def ray() -> Any:
    """Ray, whose type hints are incomplete."""
    return import_module("ray")


def join(address: str) -> None:
    """Make this process a cluster's driver.

    Raises:
        ValueError: That fails; the reason is one line.
    """
    try:
        ray().init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(reason) from error


def members() -> list[ClusterMember]:
    """Machines of the cluster that this process has joined."""
    return [
        ClusterMember(
            host=str(node["NodeManagerAddress"]),
            cpus=float(node["Resources"].get("CPU", 0.0)),
            gpus=float(node["Resources"].get("GPU", 0.0)),
        )
        for node in ray().nodes()
        if node["Alive"]
    ]


def main() -> None:
    """Print the resources of a cluster's machines."""
    try:
        join(sys.argv[1])
        result: dict[str, Any] = {"members": [asdict(member) for member in members()]}
    except ValueError as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
