"""The lock file says all that is installed, exactly, and each of them finds what it needs in it."""

from __future__ import annotations

import re
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


OPTIONS = ["--no-deps", "--require-hashes", "-r"]


@pytest.mark.parametrize("file", ["Makefile", "deploy/Dockerfile"])
def test_every_set_up_asks_for_the_hashes(file: str) -> None:
    text = (LOCK.parent / file).read_text(encoding="utf-8")
    assert text.count("-r requirements.lock") == 1
    assert f"{' '.join(OPTIONS)} requirements.lock" in text


def test_each_package_finds_all_that_it_needs_in_the_lock_file() -> None:
    missing = []
    for name in PINNED:
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # not on this platform
        for needed in map(Requirement, requires):
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            if needed.name in ENVIRONMENT:
                continue
            pinned = PINNED.get(canonicalize_name(needed.name))
            if pinned is None or not needed.specifier.contains(pinned, prereleases=True):
                missing.append((name, str(needed)))
    assert missing == []
