"""The lock file says all that is installed, exactly, and each of them finds what it needs in it."""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
# A package, and the hashes of its files on the lines that go on from it.
LINES = [
    line
    for line in LOCK.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    if not line.startswith("#")
]
ENVIRONMENT = {"pip"}  # an environment begins with it
PINNED = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2].split()[0] for line in LINES
}


def test_each_line_is_one_exact_version_from_an_index_with_the_hashes_of_its_files() -> None:
    exact = re.compile(r"[a-z0-9-]+==[a-z0-9.!]+( +--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in LINES if not exact.fullmatch(line.strip())] == []
    assert len(PINNED) == len(LINES)


def test_a_file_of_another_hash_is_not_installed(tmp_path: Path) -> None:
    """What `make setup` and the image call, with a package whose file is not that of its hash."""
    project = tmp_path / "project"
    (project / "of_mine").mkdir(parents=True)
    (project / "of_mine/__init__.py").touch()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "of-mine"\nversion = "1.0"\n'
    )
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    made = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(project)]
    subprocess.run([*pip, *made], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")

    def installed(digest: str) -> subprocess.CompletedProcess[str]:
        lock = tmp_path / "requirements.lock"
        lock.write_text(f"of-mine==1.0 \\\n    --hash=sha256:{digest}\n")
        words = ["install", "--no-index", "--find-links", str(tmp_path), "--target"]
        command = [*pip, *words, str(tmp_path / digest[:8]), *OPTIONS, str(lock)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert installed(sha256(wheel.read_bytes()).hexdigest()).returncode == 0
    refused = installed("0" * 64)
    assert refused.returncode != 0
    assert "hash" in refused.stderr.lower()


OPTIONS = ["--no-deps", "--require-hashes", "-r"]


@pytest.mark.parametrize("file", ["Makefile", "deploy/Dockerfile"])
def test_every_set_up_asks_for_the_hashes(file: str) -> None:
    text = (LOCK.parent / file).read_text(encoding="utf-8")
    assert text.count("-r requirements.lock") == 1
    assert f"{' '.join(OPTIONS)} requirements.lock" in text


@pytest.mark.parametrize("name", sorted(PINNED))
def test_a_package_finds_all_that_it_needs_in_the_lock_file(name: str) -> None:
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed on this platform")
    missing = []
    for text in installed.requires or []:
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        if needed.name in ENVIRONMENT:
            continue
        pinned = PINNED.get(canonicalize_name(needed.name))
        if pinned is None or not needed.specifier.contains(pinned, prereleases=True):
            missing.append(text)
    assert missing == []
