"""Ways for updates and models to travel: names and ranges alone, without what encodes them."""

from __future__ import annotations

from dataclasses import dataclass

NARROW_FORMATS = ("float16", "bfloat16")
"""Formats that the model may travel down in and updates up; half a float32."""

MOST_BITS = 16

UPLINKS = ("none", *NARROW_FORMATS, "quantize", "top_k")
DOWNLINKS = ("none", *NARROW_FORMATS)


@dataclass(frozen=True, kw_only=True)
class CompressionOptions:
    """Options of the encoding of updates and models.

    Attributes:
        up: Of updates: `none`; `float16` or `bfloat16`, rounded to nearest; `quantize`, rounded at
            random to `bits` bits a number, right on average; `top_k`, the largest magnitudes alone,
            quantised. What `top_k` leaves out is lost.
        bits: Bits of each number that is sent under `quantize` and `top_k`, 1 to 16.
        fraction: Share of the coordinates that `top_k` sends, in (0, 1].
        down: Of models: `none`, `float16` (what is beyond 65,504 is cut) or `bfloat16`. The server
            keeps its exact model; an update is relative to the model that clients got.
    """

    up: str = "none"
    bits: int = 8
    fraction: float = 0.1
    down: str = "none"

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a name is unknown or a number is out of range.
        """
        if self.up not in UPLINKS:
            raise ValueError(f"up must be one of {', '.join(UPLINKS)}, got '{self.up}'")
        if self.down not in DOWNLINKS:
            raise ValueError(f"down must be one of {', '.join(DOWNLINKS)}, got '{self.down}'")
        if not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"bits must lie in [1, {MOST_BITS}], got {self.bits}")
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(
                f"fraction must lie in (0, 1], got {self.fraction}: write for example 0.1 to send "
                "a tenth of the coordinates"
            )
