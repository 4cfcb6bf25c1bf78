"""How far encoding is, for a log: an encoder of one's own can take many minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Part = TypeVar("Part", bound=Sized)

PROGRESS = logging.getLogger("flwr.fl_dp.client.features")

_TOLD_EVERY = 30.0  # seconds: what takes less says nothing


def told(parts: Iterable[Part], many: int, what: str) -> Iterator[Part]:
    """Yield parts as they are made, and say twice a minute how far they are.

    Args:
        parts: Each of as many records as its length.
        many: How many records there are in all.
        what: They are, in the plural.
    """
    began = said = time.monotonic()
    done = 0
    for part in parts:
        yield part
        done += len(part)
        now = time.monotonic()
        if now - said >= _TOLD_EVERY and done < many:
            said, left = now, (now - began) * (many - done) / done
            PROGRESS.info("%d of %d %s, about %d min left", done, many, what, 1 + left / 60)
