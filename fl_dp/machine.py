"""What this process may use of its machine: memory and processors, a container's limits included.

    >>> processors(), free_memory()
    (2, 8049356800)

Linux's control groups limit a container, a systemd unit or a batch job, in two versions: 2 has one
tree of groups, 1 one tree per kind of limit. A group is limited by those above it, too. The kernel
describes them in "Control Group v2" and "Memory Resource Controller".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")
_GROUPS = Path("sys/fs/cgroup")


def free_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory free without swapping; None where no file says so (macOS).

    Args:
        root: Folder of `proc` and `sys`.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    free = 1024 * int(kilobytes)
    for group in _own_groups("memory", root):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # this version's files are missing, or "max"
                room = int(_text(group / limit)) - int(_text(group / usage))
                free = min(free, max(0, room + _entry(group / "memory.stat", cache)))
    return free


def processors(root: Path = _ROOT) -> int:
    """Number of processors that this process may use, at least 1.

    Args:
        root: Folder of `proc` and `sys`.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        count = os.cpu_count() or 1
    for group in _own_groups("cpu", root):
        with suppress(OSError, ValueError):  # version 1 has other files; "max" is no limit
            quota, period = map(int, _text(group / "cpu.max").split())
            count = min(count, quota // period)
        with suppress(OSError, ValueError):
            quota = int(_text(group / "cpu.cfs_quota_us"))
            if quota >= 0:  # -1: no limit
                count = min(count, quota // int(_text(group / "cpu.cfs_period_us")))
    return max(1, count)


def _own_groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's groups with that kind of limit, and of all groups above them.

    A container may see its own group as the root of the tree, or under a name that only its host
    has. The folders that exist are the right ones in both cases.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = _text(root / "proc/self/cgroup").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue  # another kind of limit; version 2 names none
        tree = root / _GROUPS / (controller if controllers else "")
        name = Path(path.lstrip("/"))
        yield from (tree / part for part in (name, *name.parents))


def _entry(file: Path, name: str) -> int:
    """A number of a file of names and numbers; 0 without it."""
    pairs = (line.split() for line in _text(file).splitlines())
    return next((int(value) for key, value in pairs if key == name), 0)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()
