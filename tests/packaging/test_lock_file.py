"""The lock file says all that is installed, exactly, and each of them finds what it needs in it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINES = [
    line
    for line in (Path(__file__).resolve().parents[2] / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
]
ENVIRONMENT = {"pip", "setuptools"}  # an environment begins with them, or needs none
PINNED = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LINES}


def test_each_line_is_one_exact_version_from_an_index() -> None:
    exact = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+")
    assert [line for line in LINES if not exact.fullmatch(line)] == []
    assert len(PINNED) == len(LINES)


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
