"""Ray cluster of several machines that a simulation may join: which one, and what it has.

Ray runs what anybody sends who reaches its ports, and tells nobody whose it is. So a cluster is
joined only from one of its own machines, through the Ray process that this user has started there,
and by the very address that this process goes by. That is read from the system, without asking Ray,
which would try a wrong address for two minutes.

    python -P -m fl_dp.app.local.cluster HOST:PORT     what its machines have, as JSON
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

from .devices import Machine
from .launch import environment_of_children
from .superlink import FOLDER_VARIABLE

_PROCESSES = Path("/proc")
_RAYLET = b"raylet"  # the process of Ray that each machine of a cluster has
_ADDRESS = b"--gcs-address="
_TOKEN = b"RAY_AUTH_MODE=token"
_PATIENCE = 120.0


@dataclass(frozen=True, kw_only=True)
class Member:
    """A machine of a cluster.

    Attributes:
        host: Its address within the cluster.
        cpus: Processors that Ray hands out there.
        gpus: GPUs that it hands out there.
    """

    host: str
    cpus: float
    gpus: float

    def places(self, num_gpus: float) -> int:
        """Return how many workers with a share of a GPU, or whole ones, have room there."""
        by_gpus = int(self.gpus / num_gpus) if num_gpus > 0 else int(self.cpus)
        return min(int(self.cpus), by_gpus)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster that this machine belongs to.

    Attributes:
        address: Host and port of its head.
        members: Its machines.
        has_token: Whether it asks for Ray's token.
    """

    address: str
    members: tuple[Member, ...]
    has_token: bool

    @property
    def machine(self) -> Machine:
        """All of its machines as one; Ray keeps their memory."""
        cpus = sum(int(each.cpus) for each in self.members)
        gpus = sum(int(each.gpus) for each in self.members)
        return Machine(cpus=max(1, cpus), free_memory=None, gpus=gpus)

    @property
    def told(self) -> str:
        """One line that says what it is."""
        machines = "1 machine" if len(self.members) == 1 else f"{len(self.members)} machines"
        hosts = ", ".join(f"{each.host} ({each.cpus:g} CPUs)" for each in self.members[:8])
        more = ", ..." if len(self.members) > 8 else ""
        return f"the Ray cluster {self.address} has {machines}: {hosts}{more}"

    @property
    def caution(self) -> str | None:
        """One line if anybody who reaches its ports runs programs on its machines."""
        if self.has_token:
            return None
        return (
            f"the Ray cluster {self.address} asks for no token: whoever reaches its ports runs "
            "programs as you on each of its machines and reads the data there; start it with "
            "RAY_AUTH_MODE=token (docs/gpu.md)"
        )


@lru_cache
def cluster_at(asked: str) -> Cluster:
    """Return the cluster that `simulation.ray_address` means, asked what it has.

    Raises:
        ValueError: If no Ray of this user on this machine belongs to it, or it can't be joined.
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
        said: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = {"error": " ".join(answer.stderr.split()[-40:])}
    if "error" in said:
        raise ValueError(f"the Ray cluster {address} can't be joined: {said['error']}")
    members = tuple(Member(**each) for each in said["members"])
    return Cluster(address=address, members=members, has_token=has_token)


def own_address(asked: str, processes: Path = _PROCESSES) -> tuple[str, bool]:
    """Return the address of the cluster of a Ray of this user here, and if it has a token.

    Args:
        asked: `auto`, or host and port.
        processes: Where the system shows them.

    Raises:
        ValueError: If there is none, several, or another one.
    """
    known = dict(_own_raylets(processes))
    host, _, port = asked.rpartition(":")
    name = asked if asked in known else f"{_resolved(host)}:{port}"
    meant = known if asked == "auto" else {each: known[each] for each in known if each == name}
    if len(meant) == 1:
        return next(iter(meant.items()))
    raise ValueError(
        f"simulation.ray_address={asked} is {len(meant) or 'none'} of the Ray clusters that you "
        f"have started on this machine (there is: {', '.join(sorted(known)) or 'none'}): name one "
        "of them, or join one first by ray start --head or ray start --address=HOST:PORT; "
        "pip install 'fl-dp[simulation]' brings Ray"
    )


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def _own_raylets(processes: Path) -> Iterator[tuple[str, bool]]:
    """Yield the cluster's address, and if it has a token, of each Ray that this user runs."""
    for folder in processes.iterdir() if processes.is_dir() else ():
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
        if any(each.startswith(os.fsencode(FOLDER_VARIABLE)) for each in environment):
            continue  # of a run of fl-dp, which is nobody else's
        addresses = [each[len(_ADDRESS) :] for each in words if each.startswith(_ADDRESS)]
        for address in addresses:
            yield address.decode(), _TOKEN in environment


def code_digest() -> str:
    """Return the SHA-256 of this installation of fl-dp, the same for a wheel and a checkout."""
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
    """Return Ray, which types a part of itself alone."""
    return import_module("ray")


def join(address: str) -> None:
    """Make this process a driver of a cluster.

    Raises:
        ValueError: If that is not possible, in one line.
    """
    try:
        ray().init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ValueError(said) from error


def members() -> list[Member]:
    """Return the machines of the cluster that this process has joined."""
    return [
        Member(
            host=str(each["NodeManagerAddress"]),
            cpus=float(each["Resources"].get("CPU", 0.0)),
            gpus=float(each["Resources"].get("GPU", 0.0)),
        )
        for each in ray().nodes()
        if each["Alive"]
    ]


def main() -> None:
    """Print what the machines of a cluster have."""
    try:
        join(sys.argv[1])
        said: dict[str, Any] = {"members": [asdict(each) for each in members()]}
    except ValueError as error:
        said = {"error": str(error)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
