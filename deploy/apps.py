"""Signed apps without Flower Hub: sign a bundle, and hand it to a SuperLink with its signatures.

    flwr build
    python deploy/apps.py sign fl-dp.fl-dp.0-1-0.2b8e0f31.fab --key reviewer.key
    python deploy/apps.py serve /srv/fl-dp/apps --port 9093
    FLWR_SUPERGRID_API_URL=http://127.0.0.1:9093/v1 flower-superlink ...
    flwr run @fl-dp/fl-dp==0.1.0 production --stream

A SuperNode with `--trusted-entities` runs only bundles that one of the named keys has signed. It
checks that itself: neither this shelf nor the SuperLink has to be trusted. Flower fetches signed
bundles only from Flower Hub, whose address is a variable; this answers there. A bundle's bytes are
the same whoever builds it from the same files, so reviewers sign what they have built themselves.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zipfile import BadZipFile

from keys import load_signer, signer_id

from fl_dp.files import write_text
from fl_dp.protocol.flower_compat import bundle_name_and_version, signature_of

logger = logging.getLogger(__name__)

_SIGNATURES = ".signatures.json"
_LONGEST_REQUEST = 10_000
_ASKED = "/v1/hub/fetch-fab"  # by Flower's SuperLink, with the name of an app


@dataclass(frozen=True, kw_only=True)
class ShelvedApp:
    """A bundle and who signed it.

    Attributes:
        app_id: Its name for `flwr run`, as `@publisher/name`.
        version: As `0.1.0`.
        signatures: As Flower's SuperNodes check them.
    """

    file: Path
    app_id: str
    version: str
    signatures: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, file: Path) -> ShelvedApp:
        """Read a bundle, and the signatures beside it, if any.

        Raises:
            ValueError: If it is no bundle, or its signatures can't be read.
        """
        try:
            name, version = bundle_name_and_version(file)
        except (BadZipFile, KeyError, TypeError) as error:
            raise ValueError(f"{file} is no bundle that `flwr build` wrote") from error
        beside = _signatures_of(file)
        signed = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else []
        if not isinstance(signed, list) or not all(isinstance(each, dict) for each in signed):
            raise ValueError(f"{beside} holds no list of signatures")
        return cls(file=file, app_id=f"@{name}", version=version, signatures=tuple(signed))


def sign(file: Path, key_file: Path) -> ShelvedApp:
    """Sign a bundle of `flwr build` with the signer's secret key.

    The signature goes into a file beside it, among those of others.

    Raises:
        OSError: If bundle or key can't be read.
        ValueError: If the key is of another kind or the file is no bundle.
    """
    key = load_signer(key_file)
    name, signed_at = signer_id(key.public_key()), int(time.time())
    digest = hashlib.sha256(file.read_bytes()).digest()
    signature = base64.urlsafe_b64encode(signature_of(key, digest, signed_at)).decode()
    of_others = [
        each for each in ShelvedApp.read(file).signatures if each.get("public_key_id") != name
    ]
    new = {"public_key_id": name, "signature": signature, "signed_at": signed_at}
    write_text(_signatures_of(file), json.dumps([*of_others, new], indent=2) + "\n", public=True)
    return ShelvedApp.read(file)


def apps_in(folder: Path) -> Iterator[ShelvedApp]:
    """A folder's bundles, the newest versions first."""
    apps = [ShelvedApp.read(file) for file in folder.glob("*.fab")]
    return iter(sorted(apps, key=lambda app: _as_numbers(app.version), reverse=True))


def shelf(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server on loopback that hands out a folder's bundles.

    Nothing there is secret. A bundle that somebody else puts in its place has no signature that a
    node takes.
    """
    return ThreadingHTTPServer(("127.0.0.1", port), partial(_Shelf, folder))


class _Shelf(BaseHTTPRequestHandler):
    """Answers a SuperLink's questions: where a bundle is, who signed it, and its bytes."""

    timeout = 60

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self._folder = folder
        super().__init__(*arguments)

    def do_POST(self) -> None:
        """Say where a bundle is and who signed it."""
        try:
            length = int(self.headers.get("Content-Length", "0"))
            if self.path != _ASKED or not 0 < length <= _LONGEST_REQUEST:
                raise ValueError
            asked = json.loads(self.rfile.read(length))
            name, version = str(asked["app_id"]), asked.get("app_version")
        except (ValueError, TypeError, KeyError, AttributeError):
            self._answer(HTTPStatus.BAD_REQUEST, {"detail": "no request of a SuperLink"})
            return
        try:
            apps = [app for app in apps_in(self._folder) if app.app_id == name]
        except (OSError, ValueError) as error:  # a bundle that is still being copied, or is none
            logger.error("%s", error)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"detail": "a bundle can't be read"})
            return
        found = [app for app in apps if version in (None, app.version)]
        if not found:
            versions = [app.version for app in apps]
            self._answer(HTTPStatus.NOT_FOUND, {"detail": {"available_app_versions": versions}})
            return
        # By the address that was asked, which is loopback whatever a header says.
        assert isinstance(self.server, ThreadingHTTPServer)
        host, port = self.server.server_address[:2]
        self._answer(
            HTTPStatus.OK,
            {
                "fab_url": f"http://{host!s}:{port}/bundles/{found[0].file.name}",
                "verifications": list(found[0].signatures),
            },
        )

    def do_GET(self) -> None:
        """Send a bundle."""
        name = unquote(self.path).removeprefix("/bundles/")
        if not re.fullmatch(r"[\w.+-]+\.fab", name) or not (self._folder / name).is_file():
            self._answer(HTTPStatus.NOT_FOUND, {"detail": "no such bundle"})
            return
        self._send(HTTPStatus.OK, "application/octet-stream", (self._folder / name).read_bytes())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Note a request."""
        logger.info(format, *arguments)

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(document).encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _signatures_of(file: Path) -> Path:
    return file.with_name(file.name + _SIGNATURES)


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def main(arguments: Sequence[str] | None = None) -> None:
    """Sign a bundle, or hand out a folder's until stopped."""
    parser = argparse.ArgumentParser(description="Signed apps without Flower Hub")
    asked = parser.add_subparsers(dest="asked", required=True)
    signing = asked.add_parser("sign", help="sign a bundle")
    signing.add_argument("bundle", type=Path)
    signing.add_argument("--key", type=Path, required=True, help="made by `keys.py signer`")
    serving = asked.add_parser("serve", help="hand bundles out to a SuperLink of this machine")
    serving.add_argument("folder", type=Path)
    serving.add_argument("--port", type=int, default=9093, help="of loopback (default: 9093)")
    given = parser.parse_args(arguments)
    try:
        if given.asked == "sign":
            app = sign(given.bundle, given.key)
            print(f"{app.app_id}=={app.version}: signatures {len(app.signatures)}")
            return
        for app in apps_in(given.folder):
            print(f"{app.app_id}=={app.version}: signatures {len(app.signatures)}", flush=True)
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        with shelf(given.folder, given.port) as server:
            server.serve_forever()
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
