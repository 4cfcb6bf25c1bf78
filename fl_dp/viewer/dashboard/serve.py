"""Server of the dashboard: its address, names and warnings."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

_SECONDS_TO_END = 2  # streams of events would otherwise keep it from ending


@dataclass(frozen=True, kw_only=True)
class Address:
    """Address that the dashboard listens on.

    Attributes:
        host: An address of this machine.
        names: Names or addresses for browsers besides `host`.
        certificate: PEM file of TLS; None: plain HTTP.
        key: PEM file of its private key.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    names: Sequence[str] = ()
    certificate: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Check the address before listening.

        Raises:
            ValueError: If a browser could not reach it, or one of the two TLS files is missing.
            OSError: If a file of TLS can't be read.
        """
        if not 0 < self.port < 65536:
            raise ValueError(f"--port is {self.port}; write a number from 1 to 65535")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS needs both files: write --certificate FILE and --key FILE")
        if self.is_everywhere and not self.names:
            raise ValueError(
                f"--host {self.host} listens on every address: write --name HOST, too, for each "
                "name that browsers reach it by; requests to other names are refused"
            )
        if self.certificate is not None and self.key is not None:
            for file in (self.certificate, self.key):
                if not file.is_file():
                    raise FileNotFoundError(f"there is no file {file}")
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            except ssl.SSLError as error:
                raise ValueError(
                    f"{self.certificate} and {self.key} are no certificate with its key: "
                    f"{error.reason}"
                ) from error

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        return self.certificate is not None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        address = _ip(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens on every address of this machine."""
        address = _ip(self.host)
        return address is not None and address.is_unspecified

    @property
    def hosts(self) -> list[str]:
        """The `Host` headers that name it."""
        names = [*self.names]
        if self.is_loopback:
            names += ["127.0.0.1", "localhost", "[::1]"]
        if not self.is_everywhere:
            names.append(_in_url(self.host))
        hosts = [f"{name}:{self.port}" for name in names]
        default = 443 if self.secure else 80
        if self.port == default:
            hosts += names
        return hosts

    @property
    def url(self) -> str:
        """The address for a browser, without the token."""
        scheme = "https" if self.secure else "http"
        name = self.names[0] if self.names else _in_url(self.host)
        return f"{scheme}://{name}:{self.port}/"

    def warnings(self) -> list[str]:
        """Warnings before others can reach it, one line each."""
        if self.is_loopback:
            return []
        warnings = [
            f"{self.host} can be reached from other machines: everybody with the token sees runs, "
            "logs and budgets"
        ]
        if not self.secure:
            warnings.append(
                "without TLS, everybody on the way reads the token: write --certificate and --key, "
                "or stay on 127.0.0.1 and reach it through ssh -L"
            )
        return warnings


def listening_socket(address: Address) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: If the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"nothing can listen on {address.host}:{address.port} ({error.strerror}): choose "
            "another --port or --host"
        ) from error
    return listener


def serve(site: ASGIApp, address: Address, listener: socket.socket) -> None:
    """Answer requests until Ctrl-C."""
    config = uvicorn.Config(
        site,
        access_log=False,  # addresses of pages name runs
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # a header would choose where guesses are counted
        ws="none",
        timeout_graceful_shutdown=_SECONDS_TO_END,
        limit_concurrency=200,
        ssl_certfile=None if address.certificate is None else str(address.certificate),
        ssl_keyfile=None if address.key is None else str(address.key),
    )
    uvicorn.Server(config).run(sockets=[listener])


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
