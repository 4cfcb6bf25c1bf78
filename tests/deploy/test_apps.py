"""Apps that are signed without a hub: Flower's own SuperNode checks the signatures, not us."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apps
import keys
import pytest
import yaml
from flwr.supercore.fab import Fab
from flwr.superlink.servicer.control import control_handlers
from flwr.supernode.start_client_internal import _verify_fab

PROJECT = """\
[project]
name = "wards"
version = "{version}"
description = "Wards"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "us"

[tool.flwr.app.components]
serverapp = "wards.server:app"
clientapp = "wards.client:app"
"""


def bundle(folder: Path, version: str, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"us.wards.{version.replace('.', '-')}.abcdef01.fab"
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("pyproject.toml", PROJECT.format(version=version) + more)
    return file


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.make_signer(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "apps"


@pytest.fixture
def hub(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A shelf that Flower's SuperLink takes for its hub."""
    place.mkdir()
    with apps.shelf(place, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/v1"
        monkeypatch.setattr(control_handlers, "FLWR_SUPERGRID_API_URL", address)
        yield address
        server.shutdown()


def fetched(spec: str) -> Fab:
    """Fetch a bundle as Flower's SuperLink does before a run."""
    content, verifications, _ = control_handlers._get_remote_fab(None, spec)
    return Fab("", content, verifications)


def trusted(*key_files: Path) -> dict[str, str]:
    lines = "\n".join(keys.trusted_line(keys.load_signer(key).public_key()) for key in key_files)
    entities: dict[str, str] = yaml.safe_load(lines)
    return entities


def test_a_node_takes_a_bundle_that_a_trusted_key_has_signed(
    place: Path, key: Path, hub: str
) -> None:
    apps.sign(bundle(place, "0.1.0"), key)
    fab = fetched("@us/wards==0.1.0")
    assert fab.verifications["valid_license"]
    assert _verify_fab(fab, trusted(key))


def test_a_node_refuses_one_that_somebody_else_has_signed_or_nobody(
    place: Path, key: Path, tmp_path: Path, hub: str
) -> None:
    keys.make_signer(tmp_path / "stranger")
    bundle(place, "0.1.0")
    assert not _verify_fab(fetched("@us/wards==0.1.0"), trusted(key))
    apps.sign(bundle(place, "0.1.0"), tmp_path / "stranger")
    assert not _verify_fab(fetched("@us/wards==0.1.0"), trusted(key))


def test_a_node_refuses_one_that_was_changed_after_it_was_signed(
    place: Path, key: Path, hub: str
) -> None:
    apps.sign(bundle(place, "0.1.0"), key)
    bundle(place, "0.1.0", more="# the ledger is left out\n")
    assert not _verify_fab(fetched("@us/wards==0.1.0"), trusted(key))


def test_several_people_sign_and_one_of_them_again(
    place: Path, key: Path, tmp_path: Path, hub: str
) -> None:
    keys.make_signer(tmp_path / "second")
    file = bundle(place, "0.1.0")
    for signer in (key, tmp_path / "second", key):
        signed = apps.sign(file, signer)
    assert len(signed.signatures) == 2
    for signer in (key, tmp_path / "second"):
        assert _verify_fab(fetched("@us/wards==0.1.0"), trusted(signer))


def test_without_a_version_the_newest_is_handed_out(place: Path, key: Path, hub: str) -> None:
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        apps.sign(bundle(place, version), key)
    assert fetched("@us/wards").content == bundle(place, "0.10.0").read_bytes()


def test_an_app_that_is_not_there_is_not_found_with_the_versions_that_are(
    place: Path, hub: str
) -> None:
    bundle(place, "0.1.0")
    for spec in ("@us/wards==0.2.0", "@us/other"):
        with pytest.raises(Exception, match="FAB download link"):
            fetched(spec)
    asked = json.dumps({"app_id": "@us/wards", "app_version": "0.2.0"}).encode()
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{hub}/hub/fetch-fab", data=asked)
    assert json.load(told.value)["detail"] == {"available_app_versions": ["0.1.0"]}


def test_a_bundle_that_is_still_being_copied_is_an_answer_too(
    place: Path, key: Path, hub: str
) -> None:
    apps.sign(bundle(place, "0.1.0"), key)
    (place / "half.fab").write_bytes(b"PK")
    asked = json.dumps({"app_id": "@us/wards"}).encode()
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{hub}/hub/fetch-fab", data=asked)
    assert (told.value.code, json.load(told.value)["detail"]) == (500, "a bundle can't be read")


@pytest.mark.parametrize("asked", [b"", b"[]", b"x" * 10_001])
def test_a_request_of_another_form_is_refused(hub: str, asked: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{hub}/hub/fetch-fab", data=asked)
    assert told.value.code == 400


@pytest.mark.parametrize("name", ["../key", "%2e%2e/key", "x.fab"])
def test_nothing_but_bundles_of_the_folder_leaves(hub: str, key: Path, name: str) -> None:
    root = hub.removesuffix("/v1")
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{root}/bundles/{name}")
    assert told.value.code == 404


def test_a_file_that_is_no_bundle_is_not_signed(tmp_path: Path, key: Path) -> None:
    file = tmp_path / "x.fab"
    file.write_text("x")
    with pytest.raises(SystemExit, match=r"error: .*no bundle"):
        apps.main(["sign", str(file), "--key", str(key)])


def test_broken_signatures_beside_a_bundle_are_told(place: Path, key: Path) -> None:
    file = bundle(place, "0.1.0")
    broken: Any
    for broken in ("{}", "3", "["):
        file.with_name(f"{file.name}.signatures.json").write_text(broken)
        with pytest.raises(ValueError):
            apps.ShelvedApp.read(file)
