"""Randomness that is the same in every run: a test's keys and seeds come from its name.

A test of noise raises a false alarm now and then, and would fail an unrelated change. Fresh draws,
like the product's, come by

    FL_DP_FRESH=1 python -m pytest tests/strategies
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable
from itertools import count

import numpy as np

from fl_dp.mechanisms import randomness

Key = Callable[[], bytes]

FRESH = "FL_DP_FRESH" in os.environ

system_key: Key = randomness._fresh_key
"""What keys the product's streams."""


def keys_named(name: str) -> Key:
    """A source of keys: the name's first, its second, and so on."""
    numbers, own = count(), os.getpid()

    def key() -> bytes:
        if os.getpid() != own:
            return system_key()  # a fork's count would go on where its parent's goes on, too
        return hashlib.sha256(f"{name}/{next(numbers)}".encode()).digest()

    return key


def fix_draws(name: str) -> Key:
    """Key all draws from here on by a name; return what keyed them before."""
    before: Key = randomness._fresh_key
    if FRESH:
        use_keys(system_key)
        return before
    use_keys(keys_named(name))
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    return before


def use_keys(key: Key) -> None:
    """Key the streams that draw for the first time from here on."""
    randomness._fresh_key = key
