"""Progress of encoding, for a log: a user's own encoder can take many minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Part = TypeVar("Part", bound=Sized)

PROGRESS = logging.getLogger("flwr.fl_dp.client.features")

_LOGGED_EVERY = 30.0  # seconds; shorter work logs nothing


def logged(parts: Iterable[Part], total: int, noun: str) -> Iterator[Part]:
    """Yield parts as they are made, and log the progress twice a minute.

    The length of a part is its number of records, `total` that of all. `noun` is their name in the
    log, in the plural.
    """
    began = last_logged = time.monotonic()
    done = 0
    for part in parts:
        yield part
        done += len(part)
        now = time.monotonic()
        if now - last_logged >= _LOGGED_EVERY and done < total:
            last_logged, seconds_left = now, (now - began) * (total - done) / done
            PROGRESS.info(
                "%d of %d %s, about %d min left", done, total, noun, 1 + seconds_left / 60
            )
