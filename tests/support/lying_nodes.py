"""Nodes that lie in secure sums, and otherwise run our own app with its keys and ledger.

A lie holds while its node answers a message, and changes what the node's own code makes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.app import Message
from secure_nodes import SecureNodes

from fl_dp.secagg import client, sum_node
from fl_dp.secagg.member import open_bundles
from fl_dp.secagg.shares import split

Lie = Callable[[], AbstractContextManager[Any]]


def random_shares() -> AbstractContextManager[Any]:
    """As a client: shares of nothing, to everybody."""

    def garbage(secret: bytes, threshold: int, count: int) -> list[bytes]:
        return [secrets.token_bytes(len(secret)) for _ in range(count)]

    return patch.object(client, "split", garbage)


def wrong_shares_for(*members: int) -> Lie:
    """As a client: wrong shares for some members, by position, so that they look guilty."""

    def framed(secret: bytes, threshold: int, count: int) -> list[bytes]:
        shares = split(secret, threshold, count)
        return [
            secrets.token_bytes(len(share)) if at in members else share
            for at, share in enumerate(shares)
        ]

    return lambda: patch.object(client, "split", framed)


def wrong_commitments() -> AbstractContextManager[Any]:
    """As a client: commitments to other seeds than the shared ones."""
    return patch.object(client, "commitment", lambda *_: secrets.token_bytes(16))


def unreadable_bundles() -> AbstractContextManager[Any]:
    """As a client: bundles that nobody can decrypt."""

    def another(*asked: Any) -> AESGCM:
        return AESGCM(secrets.token_bytes(32))

    return patch.object(client, "bundle_cipher", another)


def answers_wrongly(*places: int, unreadable: bool = False) -> Lie:
    """As a member: wrong shares of some clients, all by default, or that it can't read them."""

    def lied(*asked: Any) -> tuple[dict[int, bytes], tuple[int, ...]]:
        shares, unread = open_bundles(*asked)
        chosen = set(places or shares) & set(shares)
        if unreadable:
            left = {position: share for position, share in shares.items() if position not in chosen}
            return left, tuple(sorted({*unread, *chosen}))
        wrong = {position: secrets.token_bytes(len(shares[position])) for position in chosen}
        return shares | wrong, unread

    return lambda: patch.object(sum_node, "open_bundles", lied)


def both(*lies: Lie) -> Lie:
    """Several lies at once."""

    @contextmanager
    def lied() -> Iterator[None]:
        with ExitStack() as stack:
            for lie in lies:
                stack.enter_context(lie())
            yield

    return lied


class LyingNodes(SecureNodes):
    """Nodes of which some lie, from the first message to the last."""

    def __init__(self, *args: Any, liars: Mapping[int, Lie], **options: Any) -> None:
        super().__init__(*args, **options)
        self.liars = liars

    def __call__(self, message: Message, node: int) -> Message | None:
        lie = self.liars.get(node)
        if lie is None:
            return super().__call__(message, node)
        with lie():
            return super().__call__(message, node)
