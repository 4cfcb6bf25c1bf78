"""The user as whom apps run: work is done in its place, beside each of its processes.

A process's user, namespaces and given rights decide what it may do. A forked child becomes the
user in the namespaces of each of its processes. Their rights are read from `/proc`.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

PROCESSES = Path("/proc")
_NEW_MOUNTS, _NEW_MEMORY, _NEW_NETWORK = 0x00020000, 0x08000000, 0x40000000  # as in CLONE_NEWIPC
_PR_SET_DUMPABLE = 4


class AppUser(NamedTuple):
    """A user of this machine, as whom apps run."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def named(cls, name: str) -> Self:
        """A user by name or number.

        Raises:
            ValueError: There is no such user, or it is root, who may do anything.
        """
        try:
            entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        except KeyError:
            raise ValueError(f"this machine has no user {name!r}: make one for apps") from None
        if entry.pw_uid == 0:
            raise ValueError("apps that run as root can do anything: make a user for them")
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return cls(entry.pw_uid, entry.pw_gid, tuple(groups))


def done_beside(user: AppUser, work: Callable[[], object]) -> Iterator[Any]:
    """Do work as a user, beside each of its processes; without one, from here.

    Args:
        user: The user that a child becomes.
        work: Returns a value that JSON can hold. Its modules have to be imported already: a child
            in another file system loads none.

    Yields:
        The work's result beside each process.

    Raises:
        PermissionError: This process can't become that user.
        RuntimeError: A child failed.
    """
    if os.geteuid() not in (0, user.uid):
        raise PermissionError("only root can try what another user can do: start this with sudo")
    for neighbor in _neighbors(user.uid):
        yield _done_beside(neighbor, user, work)


def rights_of_processes(uid: int) -> Iterator[str]:
    """Yield each way in which a user's process may do more than its user."""
    for status in _processes(uid).values():
        name = status["Name"]
        if int(status["CapPrm"], 16):
            yield f"capabilities of {name}"
        if status["NoNewPrivs"] == "0":
            yield f"programs like sudo, in {name}"


@contextmanager
def stand_in(owner: int) -> Iterator[int]:
    """Run a process of the gate's user, as the gate itself does not run yet, and yield its id."""
    ready, says_ready = os.pipe()
    ends, says_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(says_end)
        _become(AppUser(owner, owner, ()))
        # As after an exec: until then only root may reach a process that changed its user.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)
        os.write(says_ready, b"1")
        os.read(ends, 1)
        os._exit(0)
    try:
        os.close(says_ready)
        os.read(ready, 1)
        yield child
    finally:
        for descriptor in (ready, ends, says_end):
            os.close(descriptor)
        os.waitpid(child, 0)


def _processes(uid: int) -> dict[int, dict[str, str]]:
    statuses = {}
    for folder in PROCESSES.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            lines = (folder / "status").read_text(errors="replace").splitlines()
        except OSError:  # it has ended
            continue
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if str(uid) in status["Uid"].split():
            statuses[int(folder.name)] = status
    return statuses


def _neighbors(uid: int) -> list[int]:
    """One process of a user for each set of namespaces; [0] where there is none."""
    if os.geteuid() != 0:
        return [0]  # only root may enter other namespaces
    processes: dict[tuple[str, ...], int] = {}
    for process in _processes(uid):
        spaces = PROCESSES / str(process) / "ns"
        try:
            own = tuple(str((spaces / name).readlink()) for name in ("net", "mnt", "ipc"))
        except OSError:  # it has ended
            continue
        processes.setdefault(own, process)
    return list(processes.values()) or [0]


def _done_beside(neighbor: int, user: AppUser, work: Callable[[], object]) -> Any:
    """Do work in a child that is another user.

    It enters the namespaces of the process `neighbor`; 0: it stays in those of this process.
    """
    arrives, leaves = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if neighbor:
                _enter(neighbor)
            _become(user)
            with os.fdopen(leaves, "w") as out:
                json.dump(work(), out)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(leaves)
    with os.fdopen(arrives) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"what an app could do was not tried beside process {neighbor}")
    return json.loads(text)


def _enter(process: int) -> None:
    """Enter a process's network, mounts and shared memory."""
    library = ctypes.CDLL(None, use_errno=True)  # os.setns is of Python 3.12
    descriptor = os.pidfd_open(process)
    if library.setns(descriptor, _NEW_MOUNTS | _NEW_MEMORY | _NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.close(descriptor)


def _become(user: AppUser) -> None:
    if os.geteuid() == 0:
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
