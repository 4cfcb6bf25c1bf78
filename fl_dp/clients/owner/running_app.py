"""The app of this process, as far as a `ClientApp` can know it, and rules for allowed apps.

Flower tells a `ClientApp` nothing about its bundle. It unpacks the bundle into a folder of the
SuperNode, `$FLWR_HOME/apps/PUBLISHER.NAME.VERSION.HASH`, and loads the app from there. Publisher,
name and version are in the folder's `pyproject.toml`, the first eight digits of the bundle's
SHA-256 in the folder's name. This file reads these, not the server's statement on the run.

It distinguishes apps that include this check. A malicious app would leave it out;
`--trusted-entities` helps against that. A rule allows some of the apps signed by a trusted key.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_APPS = "apps"  # Flower's folder of unpacked bundles
_HASH_DIGITS = 8  # of the bundle's hash in the name of its folder
_HEX = frozenset("0123456789abcdef")
_OPERATOR = re.compile("[<>=!~]")


@dataclass(frozen=True, kw_only=True)
class RunningApp:
    """An app as its folder at the node shows it.

    Attributes:
        name: `publisher/name`.
        fab_hash: First hexadecimal digits of its bundle's SHA-256: eight, or all.
    """

    name: str
    version: str
    fab_hash: str

    def __str__(self) -> str:
        """The app as an owner writes it."""
        return f"{self.name}=={self.version}@{self.fab_hash}"


def running_app() -> RunningApp | None:
    """The app that Flower loaded into this process; None if that can't be seen.

    It can't if the app came in no bundle, as when one process plays all nodes.
    """
    # Flower puts the folder of the app that it loads first.
    folder = next((path for path in map(Path, sys.path) if path.parent.name == _APPS), None)
    if folder is None:
        return None
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        name = f"{project['tool']['flwr']['app']['publisher']}/{project['project']['name']}"
        version = str(project["project"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    digits = folder.name.rpartition(".")[2]
    if len(digits) != _HASH_DIGITS or not _is_hex(digits) or not name.isprintable():
        return None
    return RunningApp(name=name, version=version, fab_hash=digits)


@dataclass(frozen=True, kw_only=True)
class AppRule:
    """Apps that an owner allows: a name, perhaps some versions, perhaps one bundle.

    Attributes:
        text: The rule as the owner wrote it.
        name: `publisher/name`.
        versions: Allowed versions; an empty set allows all.
        fab_hash: First digits of the bundle's SHA-256, eight or more; empty: any bundle.
    """

    text: str
    name: str
    versions: SpecifierSet
    fab_hash: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `publisher/name`, `publisher/name>=1.2,<2` or `publisher/name==1.2.0@3f2a9c01`.

        Raises:
            ValueError: It is none of these.
        """
        app, at, digest = text.partition("@")
        name = _OPERATOR.split(app, maxsplit=1)[0]
        versions = app[len(name) :]
        publisher, slash, project = name.partition("/")
        if not (slash and publisher and project) or "/" in project or not name.isprintable():
            raise ValueError(
                f"an app is publisher/name, as in hospital/heart>=1.2,<2; got '{text}'"
            )
        if at and (len(digest) < _HASH_DIGITS or not _is_hex(digest)):
            raise ValueError(
                f"behind @ stand the first {_HASH_DIGITS} or more hexadecimal digits of the "
                f"bundle's SHA-256, in small letters; got '{text}'"
            )
        try:
            allowed = SpecifierSet(versions)
        except InvalidSpecifier:
            raise ValueError(
                f"versions are written as >=1.2,<2 or ==1.2.0 without spaces; got '{text}'"
            ) from None
        return cls(text=text, name=name, versions=allowed, fab_hash=digest)

    def allows(self, app: RunningApp) -> bool:
        """Tell whether an app is allowed; one with an unreadable version is not."""
        # An app's folder shows eight digits, and the bundle itself all of them.
        digits = min(len(self.fab_hash), len(app.fab_hash))
        if app.name != self.name or self.fab_hash[:digits] != app.fab_hash[:digits]:
            return False
        try:
            return self.versions.contains(Version(app.version), prereleases=True)
        except InvalidVersion:
            return False


def rules_in(value: object) -> tuple[AppRule, ...]:
    """Read rules: a text with spaces between them, or a list of texts.

    Raises:
        ValueError: There is none, or one can't be read.
    """
    texts = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise ValueError(f"write one or more apps, as in hospital/heart>=1.2,<2; got {value!r}")
    return tuple(AppRule.parse(str(rule).strip()) for rule in texts)


def _is_hex(text: str) -> bool:
    return set(text) <= _HEX
