"""Terms of a secure sum over ten clients."""

from __future__ import annotations

from typing import Any

from fl_dp.mechanisms import Segment
from fl_dp.secagg import SumTerms

SEGMENTS = (Segment("updates", 5, 100.0, 900.0, 0.5), Segment("count", 1, 2.5, 30.0, 1.0))


def terms(n: int = 10, **changes: Any) -> SumTerms:
    usual: dict[str, Any] = {
        "run": 2**64 - 1,
        "number": 3,
        "purpose": "train",
        "directory": "0a" * 32,
        "content": "0b" * 32,
        "cohort": tuple(range(n)),
        "committee": tuple(range(n)),
        "threshold": -(-4 * n // 5),
        "least": -(-9 * n // 10),
        "degree": n,
        "colluding": 1,
        "cross_check": False,
        "segments": SEGMENTS,
        "bits": 16,
        "noise_scale": 33.3,
        "sampling_rate": 0.1,
        "reply_after": 20.0,
    }
    return SumTerms(**usual | changes)
