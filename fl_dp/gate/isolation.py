"""Isolation of apps from their gate, found by trying as the apps' user.

A gate bounds what leaves through Flower. An app that reads the ledger, changes the gate's code or
opens a socket of its own needs no Flower. All of these are tried beside each process of the apps'
user.

    >>> attempts = tried(AppUser.named("fl-dp-app-north"), guarded)
    >>> is_isolated(attempts)
    True

Trying needs root, and a gate is not root: root writes the result beside the policy, and a gate
reads it at its start (`write_result`, `found_isolated`).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .app_user import PROCESSES, AppUser, done_beside, rights_of_processes, stand_in

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SOCKETS = "net/unix"  # of a process: sockets of its network namespace, one per line
_LISTENS = 0x10000  # __SO_ACCEPTCON
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # for documentation
_SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
_PATIENCE = 3.0  # seconds for a connection
_LONGEST_RESULT = 10_000


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """Everything that an app must not reach on one machine.

    Attributes:
        secrets: Files of policy, ledger, witness and keys.
        unwritable: Files and folders that are public and must not change.
        home: The gate's Flower folder.
        code: Files and folders with the gate's code.
        superlink: Host and port of the SuperLink. None: unknown.
        runtime_socket: Unix socket of the Runtime API, the one way that apps have. None: a port.
        owner: The gate's user.
    """

    secrets: tuple[Path, ...]
    unwritable: tuple[Path, ...]
    home: Path
    code: tuple[Path, ...]
    superlink: tuple[str, int] | None
    runtime_socket: Path | None
    owner: int


class Attempt(NamedTuple):
    """Something that an app could try.

    Attributes:
        goal: Its aim, as a verb with its object.
        successes: The things it reached. Empty: the machine prevents it.
    """

    goal: str
    successes: tuple[str, ...]


def is_isolated(attempts: Iterable[Attempt]) -> bool:
    """Tell whether every attempt has failed."""
    return not any(attempt.successes for attempt in attempts)


def tried(user: AppUser, guarded: Guarded) -> list[Attempt]:
    """Try everything as the app's user, beside each of its processes; without one, from here.

    Raises:
        PermissionError: This process can't become that user.
        RuntimeError: It could not be tried.
    """
    results: dict[str, dict[str, None]] = {}
    with stand_in(guarded.owner) as gate, ExitStack() as texts:
        trials = _Trials(guarded, gate, list(_texts_of_another(texts)))
        for attempts in done_beside(user, trials.run):
            for goal, successes in attempts:
                results.setdefault(goal, {}).update(dict.fromkeys(successes))
    results["do more than its user may"] = dict.fromkeys(rights_of_processes(user.uid))
    return [Attempt(goal, tuple(successes)) for goal, successes in results.items()]


def code_of_gate() -> tuple[Path, ...]:
    """Paths of this process's code."""
    environment = Path(sys.prefix, "pyvenv.cfg")
    package = Path(__file__).parents[1]
    paths = [*map(Path, filter(None, sys.path)), package, Path(sys.executable), environment]
    return tuple(path for path in paths if path.exists())


def result_file(policy: Path) -> Path:
    """The file with a check's result for the gate with a policy."""
    return policy.with_name(f"{policy.name}.isolation")


def write_result(policy: Path, user: AppUser, guarded: Guarded, attempts: list[Attempt]) -> None:
    """Write the result for the gate that root starts next.

    Raises:
        OSError: It can't be written.
    """
    result = _setting(user, guarded) | {"isolated": is_isolated(attempts)}
    file = result_file(policy)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, 0o644)  # whatever the umask is: the gate is another user
        json.dump(result, stream)


def found_isolated(policy: Path, user: AppUser, guarded: Guarded) -> bool:
    """Tell whether root has found this setting isolated since the machine started."""
    try:
        descriptor = os.open(result_file(policy), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            result = json.loads(file.read(_LONGEST_RESULT))
        expected = _setting(user, guarded) | {"isolated": True}
    except (OSError, ValueError):
        return False
    is_of_root = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_of_root and result == expected and os.getuid() != user.uid


def _setting(user: AppUser, guarded: Guarded) -> dict[str, str | int | bool]:
    """For what a result is valid: one start of the machine, the apps' user, and all guarded."""
    digest = hashlib.sha256(repr(guarded).encode()).hexdigest()
    return {"boot": _BOOT.read_text(), "user": user.uid, "guarded": digest}


class _Trials:
    """Everything that an app may try. Names are looked up before the user changes."""

    def __init__(self, guarded: Guarded, gate: int, texts: list[Path]) -> None:
        self._guarded, self._gate, self._texts = guarded, gate, texts
        self._memory = _memory_of_this_process()
        self._superlink: list[tuple[socket.AddressFamily, tuple[object, ...]]] = []
        if guarded.superlink is not None:
            self._superlink = _addresses(*guarded.superlink)
        self._sockets = dict(_unix_sockets())

    def run(self) -> list[Attempt]:
        guarded = self._guarded
        changed = guarded.secrets + guarded.unwritable
        if guarded.runtime_socket is not None:
            changed += (guarded.runtime_socket.parent,)
        readable = _passing(guarded.secrets, _is_readable)
        replaceable = _passing(changed, _is_replaceable)
        home = _passing([guarded.home], _has_something_open)
        code = _passing(guarded.code, _has_something_open)
        return [
            Attempt("read the policy, the ledger, its witness or the keys", readable),
            Attempt("change or replace one of them", replaceable),
            Attempt("change Flower's folder of the gate", home),
            Attempt("change the gate's code", code),
            Attempt("signal the gate or read its memory", tuple(self._ways_into_gate())),
            Attempt("open a socket to another machine", tuple(self._ways_out())),
            Attempt("talk to another process of this machine", tuple(self._open_sockets())),
            Attempt("read what apps of another site left", tuple(self._left_by_others())),
        ]

    def _ways_into_gate(self) -> Iterator[str]:
        try:
            os.kill(self._gate, 0)
        except OSError:
            pass
        else:
            yield "signals"
        for name in ("environ", "mem"):
            if _is_readable(PROCESSES / str(self._gate) / name):
                yield name

    def _ways_out(self) -> Iterator[str]:
        for family, address in _ELSEWHERE:
            # A datagram socket sends nothing here: the kernel says whether it has a route.
            if _connects(family, socket.SOCK_DGRAM, (address, 9)):
                yield address
        for family, endpoint in self._superlink:
            if _connects(family, socket.SOCK_STREAM, endpoint):
                yield f"the SuperLink at {endpoint[0]}"

    def _left_by_others(self) -> Iterator[str]:
        for text in self._texts:
            if _is_readable(text):
                yield str(text.parent)
        if _memory_of_this_process() == self._memory:
            yield "shared memory of System V"

    def _open_sockets(self) -> Iterator[str]:
        own = dict(_unix_sockets())
        # Names that begin with @ belong to one network namespace alone.
        others = {name: kind for name, kind in self._sockets.items() if not name.startswith("@")}
        for name, kind in sorted((others | own).items()):
            if Path(name) == self._guarded.runtime_socket:
                continue
            address = f"\0{name[1:]}" if name.startswith("@") else name
            if _connects(socket.AF_UNIX, kind, address):
                yield name


def _texts_of_another(files: ExitStack) -> Iterator[Path]:
    """Leave a text in each folder in which all users can, and yield its path."""
    for folder in _SHARED:
        if folder.is_dir() and os.access(folder, os.W_OK):
            descriptor, name = tempfile.mkstemp(dir=folder)
            os.fchmod(descriptor, 0o644)
            os.close(descriptor)
            files.callback(Path(name).unlink)
            yield Path(name)


def _memory_of_this_process() -> str:
    """The namespace of this process's shared memory; empty: this system has none."""
    try:
        return str((PROCESSES / "self" / "ns" / "ipc").readlink())
    except OSError:
        return ""


def _passing(paths: Iterable[Path], test: Callable[[Path], bool]) -> tuple[str, ...]:
    return tuple(str(path) for path in paths if test(path))


def _is_readable(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _is_open(path: Path, status: os.stat_result) -> bool:
    """Tell whether the present user can write, or could give itself the right."""
    return status.st_uid == os.geteuid() or os.access(path, os.W_OK)


def _is_replaceable(path: Path) -> bool:
    """Tell whether the present user can change a file, or replace it."""
    for name in {path, path.resolve()}:
        for ancestor in (name, *name.parents):
            try:
                status = ancestor.stat()
            except OSError:
                continue  # it does not exist, or not even that can be seen
            # In a folder like /tmp users can add names, and can't rename those of others.
            is_far = ancestor not in (name, name.parent)
            is_far_and_sticky = is_far and status.st_mode & stat.S_ISVTX
            if not is_far_and_sticky and _is_open(ancestor, status):
                return True
    return False


def _has_something_open(root: Path) -> bool:
    """Tell whether anything in a folder can be changed, or the folder replaced."""
    if _is_replaceable(root):
        return True
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            try:
                if not path.is_symlink() and _is_open(path, path.stat()):
                    return True
            except OSError:
                continue
    return False


def _connects(family: int, kind: int, address: object) -> bool:
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(_PATIENCE)
            client.connect(address)  # type: ignore[arg-type]  # a text or a pair, by the family
    except OSError:
        return False
    return True


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """A host's addresses; none where its name can't be looked up."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in entries]


def _unix_sockets() -> Iterator[tuple[str, int]]:
    """Name and kind of each Unix socket in the present network that can be connected to."""
    try:
        lines = (PROCESSES / "self" / _SOCKETS).read_text(errors="replace").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) < 8:
            continue  # it has no name
        kind = int(fields[4], 16)
        if kind == socket.SOCK_DGRAM or int(fields[3], 16) & _LISTENS:
            yield fields[7], kind
