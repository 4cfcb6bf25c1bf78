"""A Ray of a benchmark's own, whatever cluster is on the machine or left its address there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def own_ray() -> Iterator[None]:
    """Let a Ray that starts inside the block be new, in a temporary folder of its own."""
    # Paths of Ray's sockets have at most 103 bytes, so the folder is a short one.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own,
        mock.patch.dict(os.environ, {"RAY_ADDRESS": "local", "RAY_TMPDIR": own}),
    ):
        yield
