"""What a process may use of its machine: made-up folders of Linux, with and without containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_dp.machine import free_memory, processors

GIB = 1 << 30
V1_NONE = 9223372036854771712  # "no limit" of version 1
V2, V1 = "0::{}", "5:cpu,cpuacct:{0}\n4:memory:{0}"


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)


def linux(folder: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A root with 64 GiB free, this process's groups, and files of the trees of groups."""
    written = {
        "proc/meminfo": f"MemTotal: 134217728 kB\nMemAvailable:   {64 * GIB // 1024} kB\n",
        "proc/self/cgroup": cgroup,
    } | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in written.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    return folder


def v2(group: str, *, limit: str = "max", used: int = 0, cpu: str = "max 100000") -> dict[str, str]:
    return {
        f"{group}memory.max": limit,
        f"{group}memory.current": str(used),
        f"{group}memory.stat": f"anon 7\ninactive_file {GIB}\nactive_file 5",
        f"{group}cpu.max": cpu,
    }


def v1(group: str, *, limit: int = V1_NONE, used: int = 0, quota: int = -1) -> dict[str, str]:
    return {
        f"memory/{group}memory.limit_in_bytes": str(limit),
        f"memory/{group}memory.usage_in_bytes": str(used),
        f"memory/{group}memory.stat": f"inactive_file 9\ntotal_inactive_file {GIB}",
        f"cpu/{group}cpu.cfs_quota_us": str(quota),
        f"cpu/{group}cpu.cfs_period_us": "100000",
    }


@pytest.mark.parametrize(
    ("cgroup", "files", "gibibytes", "count"),
    [
        ("", {}, 64, 16),
        (V2.format("/"), v2(""), 64, 16),
        (V2.format("/"), v2("", limit=str(8 * GIB), used=3 * GIB, cpu="200000 100000"), 6, 2),
        (V2.format("/docker/1"), v2("", limit=str(8 * GIB), cpu="250000 100000"), 9, 2),
        (V2.format("/a.slice/b"), v2("a.slice/", limit=str(2 * GIB)) | v2("a.slice/b/"), 3, 16),
        (V2.format("/a/b"), v2("a/", cpu="400000 100000") | v2("a/b/", cpu="50000 100000"), 64, 1),
        (V2.format("/"), v2("", limit=str(2 * GIB), used=5 * GIB), 0, 16),
        (V1.format("/"), v1(""), 64, 16),
        (V1.format("/"), v1("", limit=4 * GIB, used=GIB, quota=300000), 4, 3),
        (V1.format("/docker/1"), v1("", limit=4 * GIB, quota=300000), 5, 3),
        (V1.format("/docker/1"), v1("docker/1/", limit=4 * GIB, quota=300000), 5, 3),
        (V2.format("/other"), v2("docker/1/", limit=str(GIB), cpu="100000 100000"), 64, 16),
        ("1:name=systemd:/\n" + V2.format("/"), v2("", limit=str(7 * GIB)), 8, 16),
    ],
)
def test_limits_of_a_process_s_groups_and_of_those_above_count(
    cgroup: str, files: dict[str, str], gibibytes: int, count: int, tmp_path: Path
) -> None:
    root = linux(tmp_path, cgroup, files)
    assert free_memory(root) == gibibytes * GIB
    assert processors(root) == count


def test_what_no_file_says_is_unknown(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    assert processors(tmp_path) == 16


def test_here_something_is_left() -> None:
    free = free_memory()
    assert free is None or free > 0
    assert processors() >= 1


def test_every_question_is_asked_of_one_module() -> None:
    """No other file asks the system, which knows nothing of a container."""
    root = Path(__file__).resolve().parents[2]
    asks = ("cpu_count", "sched_getaffinity", "/meminfo")
    files = [*(root / "fl_dp").rglob("*.py"), *(root / "strategies").rglob("*.py")]
    asking = [
        file.relative_to(root).as_posix()
        for file in files
        if any(word in file.read_text(encoding="utf-8") for word in asks)
    ]
    assert asking == ["fl_dp/machine.py"]


def test_a_system_without_file_locks_is_told_so_by_the_first_import() -> None:
    script = "import sys; sys.modules['fcntl'] = None; import fl_dp.accounting"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: fl-dp runs on Linux and macOS") and "WSL 2" in last
    assert "During handling" not in ended.stderr
