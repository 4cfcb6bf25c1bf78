"""Names that a new app can have: as a folder, for Flower, and as a Python package."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions

_LONGEST = 32  # Flower accepts no longer name of an app
_FORM = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
# What the app imports; other installed packages are looked up.
_NEEDED = {"flwr", "fl_dp", "numpy", "opacus", "pytest", "ray", "scipy", "sklearn", "torch"}
_FOLDERS = {
    "tests": "of its tests",
    **dict.fromkeys(("build", "dist", "runs"), "that git leaves out"),
    **dict.fromkeys(("eggs", "env", "lib", "lib64", "parts", "venv"), "that Flower leaves out"),
}
_PORTS = {f"{port}{number}" for port in ("com", "lpt") for number in range(10)}
_WINDOWS = {"aux", "con", "nul", "prn"} | _PORTS


@dataclass(frozen=True, kw_only=True)
class AppName:
    """One name in its three spellings.

    Attributes:
        folder: The name as somebody wrote it.
        project: For `[project]` and for Flower: lower case with hyphens.
        package: For Python: lower case with underscores.
    """

    folder: str
    project: str
    package: str

    @classmethod
    def of(cls, name: str) -> AppName:
        """Check a name and spell it.

        Raises:
            ValueError: If no app can have it; the text gives the reason and another name.
        """
        if not _FORM.fullmatch(name) or len(name) > _LONGEST:
            raise ValueError(
                f"an app's name has at most {_LONGEST} letters, digits and single hyphens or "
                f"underscores, and starts with a letter, got {name!r}: write {_nearest(name)}"
            )
        package = name.lower().replace("-", "_")
        taken = _taken(package)
        if taken is not None:
            raise ValueError(
                f"'{name}' is {taken}: write another name, for example {package[:28]}-app"
            )
        return cls(folder=name, project=package.replace("_", "-"), package=package)


def _taken(package: str) -> str | None:
    """Return what already has the name of a package; None if nothing does."""
    if keyword.iskeyword(package) or package in ("true", "false", "none"):
        return "a keyword of Python"
    if package in sys.stdlib_module_names:
        return "a module of Python's own library, which the app would hide"
    if package in _FOLDERS:
        return f"a folder of every app, {_FOLDERS[package]}"
    if package in _WINDOWS:
        return "no name for a folder under Windows"
    if package in _NEEDED or package in _installed():
        return "an installed package, which the app would hide"
    return None


@cache
def _installed() -> frozenset[str]:
    return frozenset(module.lower() for module in packages_distributions())


def _nearest(name: str) -> str:
    """Return a name of the right form that resembles one of a wrong form."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    while words and not words[0][0].isalpha():
        words[0] = words[0][1:]
        if not words[0]:
            words = words[1:]
    near = "-".join(words)[:_LONGEST].rstrip("-")
    try:
        if near:
            return AppName.of(near).folder
        return "my-app"
    except ValueError:
        return "my-app"
