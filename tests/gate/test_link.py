"""The gate's calls: signed by the node's key, and made again where nobody answers."""

from __future__ import annotations

import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID
from gated_site import NODE, RUN, Server
from owned_clock import OwnedClock

from fl_dp import clock
from fl_dp.gate.link import Link, LinkLost, LinkRefused, NodeKey, NotReached, SignedPost
from fl_dp.protocol.flower_compat import be_in_a_run

Answering = Callable[[BaseHTTPRequestHandler, str, bytes], tuple[int, bytes]]


@contextmanager
def served(answer: Answering, trust: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve calls over HTTP, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, content = answer(self, self.path, body)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *told: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if trust is not None:
        server.socket = trust.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def written(key: Any, file: Path, form: str) -> Path:
    formats = {
        "PEM": (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8),
        "OpenSSH": (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH),
    }
    file.write_bytes(key.private_bytes(*formats[form], serialization.NoEncryption()))
    return file


@pytest.mark.parametrize("form", ["PEM", "OpenSSH"])
def test_each_call_is_signed_by_the_node_s_key_as_flower_s_are(tmp_path: Path, form: str) -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    key = NodeKey(written(private, tmp_path / "node.key", form))
    assert not key.is_own
    told: list[Any] = []

    def answer(handler: BaseHTTPRequestHandler, path: str, body: bytes) -> tuple[int, bytes]:
        told.append((path, body, dict(handler.headers)))
        return 200, b"answer"

    with served(answer) as address:
        assert SignedPost(address, key, None)("get-run", b"body") == b"answer"
    [(path, body, headers)] = told
    assert (path, body) == ("/v1/fleet/get-run", b"body")
    assert headers["content-type"] == "application/protobuf"
    stamp = headers["flwr-timestamp"]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(stamp)) < timedelta(minutes=5)
    assert b64decode(headers["flwr-public-key"]) == key.public
    public = serialization.load_pem_public_key(key.public)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    signature = b64decode(headers["flwr-signature"])
    public.verify(signature, stamp.encode(), ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"another time", ec.ECDSA(hashes.SHA256()))


def test_a_file_without_such_a_key_is_an_error(tmp_path: Path) -> None:
    wrong = written(ed25519.Ed25519PrivateKey.generate(), tmp_path / "node.key", "PEM")
    with pytest.raises(ValueError, match="no key of an elliptic curve"):
        NodeKey(wrong)
    with pytest.raises(OSError):
        NodeKey(tmp_path / "none.key")


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (503, NotReached, "503"),
        (400, LinkRefused, "status 400: b'why'"),
        (401, LinkLost, "compare the clocks"),
    ],
)
def test_what_the_superlink_refuses_is_told_apart(
    status: int, error: type[Exception], said: str
) -> None:
    with (
        served(lambda handler, path, body: (status, b"why")) as address,
        pytest.raises(error, match=said),
    ):
        SignedPost(address, NodeKey(), None)("get-run", b"")


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    def answer(handler: BaseHTTPRequestHandler, path: str, body: bytes) -> tuple[int, bytes]:
        handler.close_connection = True  # without a word, as a server's time-out does
        return 200, b"answer"

    with served(answer) as address:
        post = SignedPost(address, NodeKey(), None)
        assert [post("get-run", b"") for _ in range(3)] == [b"answer"] * 3
    with pytest.raises(NotReached):
        post("get-run", b"")


def test_a_signal_to_end_is_not_lost_between_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised while Python finalizes a response is lost without a word."""

    def interrupted(response: HTTPResponse) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(HTTPResponse, "close", interrupted)
    with served(lambda handler, path, body: (200, b"answer")) as address:
        post = SignedPost(address, NodeKey(), None)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(2):
                post("get-run", b"")


def certificate(folder: Path, *, ends: float = 1.0) -> tuple[Path, ssl.SSLContext]:
    """An authority's certificate that is its server's, too, and ends in so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=3))
        .not_valid_after(now + timedelta(days=ends))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "ca.crt"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, written(key, folder / "server.key", "PEM"))
    return file, context


def test_a_server_whose_certificate_is_not_trusted_gets_no_call(tmp_path: Path) -> None:
    roots, of_server = certificate(tmp_path)
    called: list[str] = []

    def answer(handler: BaseHTTPRequestHandler, path: str, body: bytes) -> tuple[int, bytes]:
        called.append(path)
        return 200, b"answer"

    with served(answer, of_server) as address:
        near = address.replace("127.0.0.1", "localhost")
        with pytest.raises(LinkLost, match="certificate is not trusted"):
            SignedPost(near, NodeKey(), ssl.create_default_context())("get-run", b"")
        assert called == []
        trust = ssl.create_default_context(cafile=roots)
        assert SignedPost(near, NodeKey(), trust)("get-run", b"") == b"answer"


def test_a_certificate_that_has_expired_ends_the_node_with_a_word(tmp_path: Path) -> None:
    roots, of_server = certificate(tmp_path, ends=-0.1)
    with (
        served(lambda handler, path, body: (200, b"answer"), of_server) as address,
        pytest.raises(LinkLost, match="has expired: its operator has to renew it"),
    ):
        trust = ssl.create_default_context(cafile=roots)
        SignedPost(address.replace("127.0.0.1", "localhost"), NodeKey(), trust)("get-run", b"")


@pytest.mark.parametrize(
    ("ends", "ahead", "said"),
    [
        (29.5, 0.0, ["certificate ends on"]),
        (30.5, 0.0, []),
        (30.5, 4.0, ["clock is 2 s ahead of"]),  # at least: a server tells whole seconds
        (29.5, -100.0, ["certificate ends on", "s behind the SuperLink's"]),
    ],
)
def test_a_near_end_of_a_certificate_and_a_wrong_clock_are_said_once_at_the_start(
    ends: float,
    ahead: float,
    said: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = round(time.time())
    monkeypatch.setattr(clock, "date", lambda: now + ahead + 0.5)
    roots, of_server = certificate(tmp_path, ends=ends)

    def answer(handler: BaseHTTPRequestHandler, path: str, body: bytes) -> tuple[int, bytes]:
        handler.date_time_string = lambda *told: formatdate(now, usegmt=True)  # type: ignore[method-assign]  # the server's clock
        return 200, b"answer"

    with served(answer, of_server) as address:
        trust = ssl.create_default_context(cafile=roots)
        post = SignedPost(address.replace("127.0.0.1", "localhost"), NodeKey(), trust)
        for _ in range(2):
            post("get-run", b"")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(said)
    assert all(text in line for text, line in zip(said, lines, strict=True))
    assert post.figures.signs is not None
    assert post.figures.signs.certificate_ends == pytest.approx(time.time() + ends * 86400, abs=60)


def test_a_clock_that_is_an_hour_off_is_why_each_call_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "date", lambda: time.time() + 3600.0)
    with (
        served(lambda handler, path, body: (401, b"why")) as address,
        pytest.raises(LinkLost, match=r"clock is 3,[56]\d\d s ahead of .* by NTP"),
    ):
        SignedPost(address, NodeKey(), None)("get-run", b"")


def test_a_call_is_made_again_for_as_long_as_nobody_answers(owned: OwnedClock) -> None:
    server, silent = Server(), [True] * 5

    def post(name: str, body: bytes) -> bytes:
        if silent:
            silent.pop()
            raise NotReached("nobody is there")
        return server.post(name, body)

    link = Link(post, NodeKey())
    link.join()
    assert link.node_id == NODE
    assert owned.pauses == [3.0] * 5


def test_a_node_that_is_not_let_in_reads_why(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP384R1())

    def post(name: str, body: bytes) -> bytes:
        raise LinkRefused("status 412")

    with pytest.raises(LinkRefused, match=r"not let .* in \(status 412\): register its key there"):
        Link(post, NodeKey(written(private, tmp_path / "node.key", "PEM"))).join()


def test_a_bundle_that_is_not_what_its_run_names_is_refused() -> None:
    be_in_a_run(RUN)
    server = Server()
    link = Link(server.post, NodeKey())
    assert link.run(RUN).fab.fab.content == server.fab
    get_run = server._get_run

    def another(asked: Any) -> Any:
        answer = get_run(asked)
        answer["run"].fab_hash = "0" * 64
        return answer

    server._get_run = another  # type: ignore[method-assign]  # a server that lies
    with pytest.raises(ValueError, match="another hash"):
        link.run(RUN)
