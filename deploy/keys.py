"""Keys and certificates of a federation: one command for each of its parties.

    python deploy/keys.py server /etc/fl-dp/tls --name superlink.example.org --name 192.0.2.1
    python deploy/keys.py node /etc/fl-dp/north/node.key
    python deploy/keys.py signer reviewer.key

Existing files are kept, and the output names them, so a command can be repeated. Only their
owner can read secret files. They stay where they were made; a command prints last what must be
carried to others.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_dp.files import private_folder, write_text

# Processes that Flower starts beside its SuperLink come by loopback, and check the name, too.
_ALWAYS = ("localhost", "127.0.0.1")
_DAY = timedelta(days=1)
_CA_DAYS = 3650


def make_server(folder: Path, names: Sequence[str], *, days: int, renew: bool = False) -> Path:
    """Make a SuperLink's certificates: `ca.crt` for everybody, `server.pem`, and their keys.

    Args:
        folder: Where they go; made for its owner alone if missing.
        names: DNS names and addresses under which nodes and operators reach the SuperLink.
        days: How long the server's certificate holds.
        renew: Make a new certificate for the server, by the existing authority.

    Returns:
        The authority's certificate, which every node and operator needs.

    Raises:
        FileExistsError: If there is a certificate already, and it is not to be renewed.
        ValueError: If the authority has only one of certificate and key, or the days are out of
            range.
    """
    if not 1 <= days <= _CA_DAYS:
        raise ValueError(f"--days must lie between 1 and the authority's {_CA_DAYS}, got {days}")
    private_folder(folder)
    authority, authority_key = _authority(folder)
    certificate = folder / "server.pem"
    if certificate.exists() and not renew:
        raise FileExistsError(f"{certificate} is there already: add --renew to replace it")
    key = ec.generate_private_key(ec.SECP384R1())
    signed = (
        _certificate(names[0] if names else _ALWAYS[0], authority.subject, key.public_key(), days)
        .add_extension(
            x509.SubjectAlternativeName(
                [_name(each) for each in dict.fromkeys((*names, *_ALWAYS))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    write_text(folder / "server.key", _pem(key))
    write_text(certificate, signed.public_bytes(Encoding.PEM).decode(), public=True)
    return folder / "ca.crt"


def make_node(file: Path) -> Path:
    """Make the key by which a SuperLink knows a SuperNode, as `ssh-keygen -t ecdsa -b 384` does.

    Returns:
        The public half, which the SuperLink's operator registers.
    """
    return _ssh_pair(file, ec.generate_private_key(ec.SECP384R1()))


def make_signer(file: Path) -> Path:
    """Make an app signer's key, as `ssh-keygen -t ed25519` does.

    Returns:
        The public half, which nodes' owners trust.
    """
    return _ssh_pair(file, ed25519.Ed25519PrivateKey.generate())


def load_signer(file: Path) -> ed25519.Ed25519PrivateKey:
    """Read a signer's key.

    Raises:
        ValueError: If it has a passphrase, or is not an Ed25519 key in OpenSSH's format: Flower's
            SuperNodes take no other kind.
    """
    try:
        key = load_ssh_private_key(file.read_bytes(), password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"{file} is no key without a passphrase in OpenSSH's format ({error}): make one by "
            f"`keys.py signer NAME`"
        ) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ValueError(f"{file} is no Ed25519 key: make one by `keys.py signer {file}`")
    return key


def signer_id(key: ed25519.Ed25519PublicKey) -> str:
    """A key's name in signatures and owners' files: it follows from the key."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"fpk_{hashlib.sha256(raw).hexdigest()[:32]}"


def trusted_line(key: ed25519.Ed25519PublicKey) -> str:
    """The key's line of a file for `flower-supernode --trusted-entities`."""
    openssh = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return f'{signer_id(key)}: "{openssh}"'


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A folder's certificate authority; made if there is none."""
    key_file, file = folder / "ca.key", folder / "ca.crt"
    if key_file.exists() != file.exists():
        raise ValueError(f"{folder} has only one of ca.key and ca.crt: put back the other one")
    if key_file.exists():
        known = load_pem_private_key(key_file.read_bytes(), password=None)
        assert isinstance(known, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(file.read_bytes()), known
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fl-dp federation")])
    signs = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    certificate = (
        _certificate("fl-dp federation", name, key.public_key(), _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
                **signs,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_text(key_file, _pem(key))
    write_text(file, certificate.public_bytes(Encoding.PEM).decode(), public=True)
    return certificate, key


def _certificate(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)  # clocks differ
        .not_valid_after(now + days * _DAY)
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _ssh_pair(file: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> Path:
    """Write a key and its public half, NAME.pub, unless they are there."""
    public = file.with_name(f"{file.name}.pub")
    if file.exists():
        raise FileExistsError(f"{file} is there already: it is kept, and {public} with it")
    private_folder(file.parent)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_text(file, secret.decode())
    openssh = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_text(public, f"{openssh.decode()}\n", public=True)
    return public


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what the command line asks for, and say what must be carried where."""
    parser = argparse.ArgumentParser(description="Keys and certificates of a federation")
    party = parser.add_subparsers(dest="party", required=True)
    server = party.add_parser("server", help="certificates of a SuperLink")
    server.add_argument("folder", type=Path)
    server.add_argument(
        "--name", action="append", default=[], help="DNS name or address of it; may be repeated"
    )
    server.add_argument("--days", type=int, default=365, help="how long they hold (default: 365)")
    server.add_argument("--renew", action="store_true", help="replace the server's certificate")
    for name, text in (("node", "key of a SuperNode"), ("signer", "key of who signs apps")):
        party.add_parser(name, help=text).add_argument("file", type=Path)
    asked = parser.parse_args(arguments)
    try:
        if asked.party == "server":
            if not asked.name:
                parser.error("say by --name under which name or address nodes reach the SuperLink")
            made = make_server(asked.folder, asked.name, days=asked.days, renew=asked.renew)
            print(f"for every node and operator: {made}")
        elif asked.party == "node":
            print(f"for the SuperLink's operator, to register: {make_node(asked.file)}")
        else:
            make_signer(asked.file)
            print("for owners of nodes, a line of their --trusted-entities file:", file=sys.stderr)
            print(trusted_line(load_signer(asked.file).public_key()))
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
