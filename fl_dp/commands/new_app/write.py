"""Writing of a new app: the template's files with its name in them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import fl_dp
from fl_dp.files import full_disk_named

from .app_names import AppName

_TEMPLATE = Path(__file__).parent / "template"
_PACKAGE = "private_app"
_IMPORTED = f"{__package__}.template.{_PACKAGE}"  # what the template's tests import
_GIT_IGNORES = "gitignore"


def write_app(name: str, parent: Path) -> Path:
    """Write a new Flower app into a folder of its own inside `parent`, and return that folder.

    Raises:
        ValueError: If no app can have the name.
        OSError: If such a folder exists, or it can't be made; nothing was written.
    """
    spelt = AppName.of(name)
    if not parent.is_dir():
        raise NotADirectoryError(f"there is no folder {parent}: make it, or write another --dir")
    folder = parent / spelt.folder
    try:
        folder.mkdir()  # from here on the folder is ours
    except FileExistsError:
        raise FileExistsError(
            f"there is {folder} already, and nothing was written: write another name or --dir"
        ) from None
    try:
        for file, text in app_files(spelt):
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with full_disk_named(parent):
                target.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def app_files(name: AppName) -> Iterator[tuple[Path, str]]:
    """Yield the files of an app: their paths in it, and their texts."""
    values = {
        "name": name.project,
        "package": name.package,
        "bounds": _bounds(fl_dp.__version__),
        "source": _source(),
    }
    for source in sorted(_TEMPLATE.rglob("*")):
        if source.suffix not in (".py", ".txt"):
            continue
        text = source.read_text(encoding="utf-8")
        # Python is checked and typed in the template; other files would be taken for the library's.
        if source.suffix == ".py":
            text = text.replace(_IMPORTED, name.package)
        else:
            text = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)
        yield _target(source.relative_to(_TEMPLATE), name), text


def _target(source: Path, name: AppName) -> Path:
    parts = [name.package if part == _PACKAGE else part for part in source.parts]
    target = Path(*parts)
    if target.suffix == ".txt":
        target = target.with_suffix("")
    if target.name == _GIT_IGNORES:
        return target.with_name(f".{target.name}")
    return target


_SOURCE = """
[tool.uv.sources]
# fl-dp was installed from here. Without this line, it comes from a package index.
fl-dp = {{ path = {path} }}
"""


def _source() -> str:
    """Return the lines by which Flower's installer finds an fl-dp that is on no index.

    They name the wheel or the checkout from which this fl-dp was installed, so that no other
    package of that name is taken. Empty if it came from an index.
    """
    for package in distributions(name="fl-dp"):
        origin = urlsplit(json.loads(package.read_text("direct_url.json") or "{}").get("url", ""))
        if origin.scheme == "file":
            return _SOURCE.format(path=json.dumps(url2pathname(origin.path)))
    return ""


def _bounds(version: str) -> str:
    """Return bounds on versions: from this minor version to before the next one."""
    major, minor = version.split(".")[:2]
    following = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f">={major}.{minor},<{following}"
