"""Options of the encoding of updates: a file of its own, as settings read it without Flower."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError

NARROW_FORMATS = ("float16", "bfloat16")
"""Formats of half a float32, for models on their way down and updates on their way up."""

MOST_BITS = 16

UPLINKS = ("none", *NARROW_FORMATS, "quantize", "top_k")
DOWNLINKS = ("none", *NARROW_FORMATS)


@dataclass(frozen=True, kw_only=True)
class CompressionOptions(Arguments):
    """Fewer bytes on the wire. It costs no privacy; docs/privacy.md says why.

    Attributes:
        up: Encoding of updates: `none`, `float16`, `bfloat16`, `quantize` (unbiased rounding to
            `bits` bits) or `top_k` (the largest magnitudes alone, quantised).
        bits: Bits per number for `quantize` and `top_k`, 1 to 16.
        fraction: Share of the coordinates that `top_k` sends, in (0, 1].
        down: Encoding of the model: `none`, `float16` (cut at 65,504) or `bfloat16`. The server
            keeps its exact model.
    """

    up: str = "none"
    bits: int = 8
    fraction: float = 0.1
    down: str = "none"

    @property
    def encodes(self) -> bool:
        """Whether updates are encoded."""
        return self.up != "none"

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a name is unknown or a number is out of range.
        """
        super().__post_init__()
        if self.up not in UPLINKS:
            raise OptionError(
                f"compression.up must be one of {', '.join(UPLINKS)}, got '{self.up}'",
                option="compression.up",
            )
        if self.down not in DOWNLINKS:
            raise OptionError(
                f"compression.down must be one of {', '.join(DOWNLINKS)}, got '{self.down}'",
                option="compression.down",
            )
        if not 1 <= self.bits <= MOST_BITS:
            raise OptionError(
                f"compression.bits must lie in [1, {MOST_BITS}], got {self.bits}",
                option="compression.bits",
            )
        if not 0.0 < self.fraction <= 1.0:
            raise OptionError(
                f"compression.fraction must lie in (0, 1], got {self.fraction}: write for "
                "example 0.1 to send a tenth of the coordinates",
                option="compression.fraction",
            )
