"""Keys and certificates that Flower takes, readable by their owner alone, never overwritten."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import keys
import pytest
import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supernode.cli.flower_supernode import (
    _try_obtain_trusted_entities,
    _validate_public_keys_ed25519,
)

NAMES = ("superlink.example.org", "192.0.2.1")


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def shake_hands(folder: Path, trusted: Path, name: str) -> None:
    """Connect by TLS as a node would."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.pem", folder / "server.key")
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        context = ssl.create_default_context(cafile=str(trusted))
        with here, context.wrap_socket(here, server_hostname=name):
            pass
    finally:
        server.join()


def test_a_node_that_trusts_the_authority_reaches_the_server_under_its_names(
    tmp_path: Path,
) -> None:
    authority = keys.make_server(tmp_path / "tls", NAMES, days=10)
    for name in (*NAMES, "localhost", "127.0.0.1"):
        shake_hands(tmp_path / "tls", authority, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "tls", authority, "elsewhere.example.org")
    other = keys.make_server(tmp_path / "other", NAMES, days=10)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "tls", other, NAMES[0])


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    keys.make_server(tmp_path / "tls", NAMES, days=10)
    keys.make_node(tmp_path / "node.key")
    keys.make_signer(tmp_path / "reviewer.key")
    assert mode_of(tmp_path / "tls") == 0o700
    for name in ("tls/ca.key", "tls/server.key", "node.key", "reviewer.key"):
        assert mode_of(tmp_path / name) == 0o600, name


def test_what_is_there_is_kept_and_a_renewed_server_keeps_its_authority(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    keys.make_server(folder, NAMES, days=10)
    authority, server = (folder / "ca.crt").read_bytes(), (folder / "server.pem").read_bytes()
    with pytest.raises(FileExistsError, match="--renew"):
        keys.make_server(folder, NAMES, days=10)
    keys.make_server(folder, NAMES, days=10, renew=True)
    assert (folder / "ca.crt").read_bytes() == authority
    assert (folder / "server.pem").read_bytes() != server
    shake_hands(folder, folder / "ca.crt", NAMES[0])

    for make in (keys.make_node, keys.make_signer):
        file = tmp_path / make.__name__
        make(file)
        known = file.read_bytes()
        with pytest.raises(FileExistsError, match="kept"):
            make(file)
        assert file.read_bytes() == known


@pytest.mark.parametrize("days", [0, 10**9])
def test_a_certificate_of_no_days_or_beyond_its_authority_is_refused(
    tmp_path: Path, days: int
) -> None:
    with pytest.raises(ValueError, match="--days must lie between 1 and"):
        keys.make_server(tmp_path / "tls", NAMES, days=days)
    assert not (tmp_path / "tls").exists()


# What the library says of one with a passphrase depends on whether bcrypt is installed.
@pytest.mark.parametrize("said", [None, TypeError("locked"), UnsupportedAlgorithm("Need bcrypt")])
def test_a_key_with_a_passphrase_or_of_no_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Exception | None
) -> None:
    def refuse(*_: object, **__: object) -> None:
        assert said is not None
        raise said

    (tmp_path / "key").write_text("no key")
    if said is not None:
        monkeypatch.setattr(keys, "load_ssh_private_key", refuse)
    with pytest.raises(ValueError, match="key is no key without a passphrase"):
        keys.load_signer(tmp_path / "key")


def test_an_authority_without_its_key_is_refused(tmp_path: Path) -> None:
    keys.make_server(tmp_path, NAMES, days=10)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ValueError, match="put back the other one"):
        keys.make_server(tmp_path, NAMES, days=10, renew=True)


def test_flower_registers_a_node_s_key(tmp_path: Path) -> None:
    assert try_load_public_key(keys.make_node(tmp_path / "node.key"))


def test_flower_takes_a_signer_s_line_and_the_name_follows_from_the_key(tmp_path: Path) -> None:
    keys.make_signer(tmp_path / "key")
    public = keys.load_signer(tmp_path / "key").public_key()
    trusted = tmp_path / "trusted.yaml"
    trusted.write_text(keys.trusted_line(public) + "\n")
    entities = _try_obtain_trusted_entities(trusted)
    assert entities == yaml.safe_load(trusted.read_text())
    assert entities is not None
    _validate_public_keys_ed25519(entities)
    [name] = entities
    assert name == keys.signer_id(public)
    assert load_ssh_public_key(entities[name].encode()) == public


def test_a_key_of_another_kind_signs_nothing(tmp_path: Path) -> None:
    keys.make_node(tmp_path / "node.key")
    with pytest.raises(ValueError, match="no Ed25519 key"):
        keys.load_signer(tmp_path / "node.key")


def test_the_commands_say_what_has_to_be_carried_and_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.main(["server", str(tmp_path / "tls"), "--name", "superlink.example.org"])
    assert str(tmp_path / "tls" / "ca.crt") in capsys.readouterr().out
    keys.main(["node", str(tmp_path / "node.key")])
    assert str(tmp_path / "node.key.pub") in capsys.readouterr().out
    keys.main(["signer", str(tmp_path / "reviewer.key")])
    [line] = yaml.safe_load(capsys.readouterr().out).values()
    assert line.startswith("ssh-ed25519 ")
    with pytest.raises(SystemExit, match=r"error: .*node.key is there already"):
        keys.main(["node", str(tmp_path / "node.key")])
    with pytest.raises(SystemExit):
        keys.main(["server", str(tmp_path / "tls")])
    assert "--name" in capsys.readouterr().err
