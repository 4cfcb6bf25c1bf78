"""Isolation of apps from their gate: what an app could do around it, found by trying as its user.

A gate bounds what leaves through Flower. An app that reads the ledger, changes the gate's code or
opens a socket of its own needs no Flower. Each of that is tried beside each process of the app's
user.

    >>> attempts = tried(AppUser.named("fl-dp-app-north"), guarded)
    >>> is_isolated(attempts)
    True

Trying needs root, and a gate has no root. Root therefore leaves the result beside the policy, where
a gate finds it at its start (`write_result`, `found_isolated`).
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

from .app_user import PROCESSES, AppUser, done_beside, rights_of_processes, stand_in

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SOCKETS = "net/unix"  # of a process: sockets of its network namespace, one a line
_LISTENS = 0x10000  # __SO_ACCEPTCON
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # documentation's
_PATIENCE = 3.0  # seconds for a connection
_LONGEST_RESULT = 10_000


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What an app must not reach on one machine.

    Attributes:
        secrets: Files of the policy, the ledger, its witness and the keys.
        unwritable: Files and folders that are public and must stay as they are.
        home: Flower's own folder of the gate.
        code: Files and folders with the gate's code.
        superlink: Host and port of the SuperLink; None: it is not known.
        runtime_socket: Unix socket of the Runtime API, the one way that apps have; None: a port.
        owner: User of the gate.
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
        goal: What it tries, as a verb with its object.
        successes: What it got at; empty: the machine prevents it.
    """

    goal: str
    successes: tuple[str, ...]


def is_isolated(attempts: Iterable[Attempt]) -> bool:
    """Tell whether every attempt has failed."""
    return not any(attempt.successes for attempt in attempts)


def tried(user: AppUser, guarded: Guarded) -> list[Attempt]:
    """Try everything as the app's user, beside each of its processes; without one, from here.

    Args:
        user: Whom the child becomes.
        guarded: What is tried.

    Raises:
        PermissionError: If this process can't become that user.
        RuntimeError: If it could not be tried.
    """
    found: dict[str, dict[str, None]] = {}
    with stand_in(guarded.owner) as gate:
        trials = _Trials(guarded, gate)
        for attempts in done_beside(user, trials.run):
            for goal, successes in attempts:
                found.setdefault(goal, {}).update(dict.fromkeys(successes))
    found["do more than its user may"] = dict.fromkeys(rights_of_processes(user.uid))
    return [Attempt(goal, tuple(successes)) for goal, successes in found.items()]


def code_of_gate() -> tuple[Path, ...]:
    """Return where the code of this process lies."""
    environment = Path(sys.prefix, "pyvenv.cfg")
    package = Path(__file__).parents[1]
    places = [*map(Path, filter(None, sys.path)), package, Path(sys.executable), environment]
    return tuple(place for place in places if place.exists())


def result_file(policy: Path) -> Path:
    """Return where the result of a check lies for the gate with a policy."""
    return policy.with_name(f"{policy.name}.isolation")


def write_result(policy: Path, user: AppUser, guarded: Guarded, attempts: list[Attempt]) -> None:
    """Leave the result for the gate that root starts next.

    Raises:
        OSError: If it can't be written.
    """
    result = asdict(_Setting.of(user, guarded)) | {"isolated": is_isolated(attempts)}
    file = result_file(policy)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        os.fchmod(descriptor, 0o644)  # whatever the umask is: the gate is another user
        json.dump(result, written)


def found_isolated(policy: Path, user: AppUser, guarded: Guarded) -> bool:
    """Tell whether root has checked this setting since the machine started, and it was in force."""
    try:
        descriptor = os.open(result_file(policy), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            result = json.loads(file.read(_LONGEST_RESULT))
        expected = asdict(_Setting.of(user, guarded)) | {"isolated": True}
    except (OSError, ValueError):
        return False
    is_of_root = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_of_root and result == expected and os.getuid() != user.uid


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """What a result holds for: this start of the machine, and these users and places."""

    boot: str
    user: int
    home: str
    runtime_socket: str

    @classmethod
    def of(cls, user: AppUser, guarded: Guarded) -> Self:
        return cls(
            boot=_BOOT.read_text(),
            user=user.uid,
            home=str(guarded.home),
            runtime_socket=str(guarded.runtime_socket),
        )


class _Trials:
    """All that an app is thought to try. Names are looked up before the user changes."""

    def __init__(self, guarded: Guarded, gate: int) -> None:
        self._guarded, self._gate = guarded, gate
        self._superlink: list[tuple[socket.AddressFamily, tuple[object, ...]]] = []
        if guarded.superlink is not None:
            self._superlink = _addresses(*guarded.superlink)
        self._sockets = dict(_unix_sockets())

    def run(self) -> list[Attempt]:
        guarded = self._guarded
        changed = guarded.secrets + guarded.unwritable
        if guarded.runtime_socket is not None:
            changed += (guarded.runtime_socket.parent,)
        return [
            Attempt(
                "read the policy, the ledger, its witness or the keys",
                _those(guarded.secrets, _is_readable),
            ),
            Attempt("change or replace one of them", _those(changed, _is_replaceable)),
            Attempt(
                "change Flower's folder of the gate", _those([guarded.home], _has_something_open)
            ),
            Attempt("change the gate's code", _those(guarded.code, _has_something_open)),
            Attempt("signal the gate or read its memory", tuple(self._ways_into_gate())),
            Attempt("open a socket to another machine", tuple(self._ways_out())),
            Attempt("talk to another process of this machine", tuple(self._open_sockets())),
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
            # Sends nothing: the kernel says whether it has a way there.
            if _connects(family, socket.SOCK_DGRAM, (address, 9)):
                yield address
        for family, place in self._superlink:
            if _connects(family, socket.SOCK_STREAM, place):
                yield f"the SuperLink at {place[0]}"

    def _open_sockets(self) -> Iterator[str]:
        own = dict(_unix_sockets())
        # Names that begin with @ are those of one network alone.
        others = {name: kind for name, kind in self._sockets.items() if not name.startswith("@")}
        for name, kind in sorted((others | own).items()):
            if Path(name) == self._guarded.runtime_socket:
                continue
            place = f"\0{name[1:]}" if name.startswith("@") else name
            if _connects(socket.AF_UNIX, kind, place):
                yield name


def _those(paths: Iterable[Path], test: Callable[[Path], bool]) -> tuple[str, ...]:
    return tuple(str(path) for path in paths if test(path))


def _is_readable(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _is_open(path: Path, status: os.stat_result) -> bool:
    """Tell whether the present user can write, or could allow itself to."""
    return status.st_uid == os.geteuid() or os.access(path, os.W_OK)


def _is_replaceable(path: Path) -> bool:
    """Tell whether the present user can change a file, or put another one in its place."""
    for name in {path, path.resolve()}:
        for place in (name, *name.parents):
            try:
                status = place.stat()
            except OSError:
                continue  # not there, or not even that can be seen
            # In a folder like /tmp nobody renames what is another's, but can add to it.
            is_far_and_sticky = place not in (name, name.parent) and status.st_mode & stat.S_ISVTX
            if not is_far_and_sticky and _is_open(place, status):
                return True
    return False


def _has_something_open(place: Path) -> bool:
    """Tell whether anything inside a folder can be changed, or the folder be replaced."""
    if _is_replaceable(place):
        return True
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = Path(folder, name)
            try:
                if not path.is_symlink() and _is_open(path, path.stat()):
                    return True
            except OSError:
                continue
    return False


def _connects(family: int, kind: int, place: object) -> bool:
    try:
        with socket.socket(family, kind) as asking:
            asking.settimeout(_PATIENCE)
            asking.connect(place)  # type: ignore[arg-type]  # a text or a pair, by the family
    except OSError:
        return False
    return True


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Return the addresses of a host; none where its name can't be looked up."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, place) for family, _, _, _, place in found]


def _unix_sockets() -> Iterator[tuple[str, int]]:
    """Yield name and kind of each Unix socket in the present network that can be connected to."""
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
