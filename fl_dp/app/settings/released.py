"""Settings of what a round releases: weights, metrics, bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fl_dp.option_errors import IncompatibleOptions
from fl_dp.updates.compression_options import CompressionOptions

from .checks import ordered_pair, positive
from .fields import told

if TYPE_CHECKING:
    from fl_dp.updates import Compression


@dataclass(kw_only=True)
class WeightSettings:
    """Weight of each client in the mean.

    Attributes:
        cap: Records that earn the full weight: a client weighs `min(records / cap, 1)`. Null:
            every client weighs 1.
        total: Public sum of all clients' weights, from which the denominator is computed; null
            takes the number of clients. With `capped_denominator`, a lower bound on it.
        capped_denominator: Divide by the cohort's own weight, but at least by its expected part of
            `total`: less bias, for twice the noise.
    """

    cap: float | None = told(None)
    total: float | None = told(None)
    capped_denominator: bool = told(False)

    def __post_init__(self) -> None:
        """Check the values."""
        positive("weights.cap", self.cap)
        positive("weights.total", self.total)
        if self.cap is None and (self.total is not None or self.capped_denominator):
            raise IncompatibleOptions(
                "{weights.total} and {weights.capped_denominator} are about weights: give "
                "{weights.cap}, "
                "the records that earn the full weight"
            )


@dataclass(kw_only=True)
class MetricsSettings:
    """Clients' metrics that each round releases with the model, at no charge of their own.

    Attributes:
        loss: Range `[low, high]` to which each client's loss is clipped; null releases none.
        accuracy: The same for its accuracy, usually `[0, 1]`.
        noise_std: Noise on each sum of metrics, and of the bits of adaptive clipping, both scaled
            to [-1/2, 1/2]; null is 0.05 times the expected cohort, or more, so that they add at
            most 5 % to the noise on updates.
    """

    loss: list[float] | None = told(None)
    accuracy: list[float] | None = told(None)
    noise_std: float | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        ordered_pair("metrics.loss", self.loss)
        ordered_pair("metrics.accuracy", self.accuracy)
        positive("metrics.noise_std", self.noise_std)


@dataclass(kw_only=True)
class CompressionSettings:
    """Fewer bytes on the wire. It costs no privacy; docs/privacy.md says why.

    Attributes:
        up: Of a client's update: `none`, `float16`, `bfloat16`, `quantize` (rounded at random to
            `bits` bits, without bias) or `top_k` (the largest magnitudes alone, quantised; the
            others are lost).
        bits: Bits of each number that is sent, for `quantize` and `top_k`, 1 to 16.
        fraction: Share of the coordinates that `top_k` sends, in (0, 1].
        down: Of the model: `none`, `float16` (values are cut at 65,504) or `bfloat16`.
    """

    up: str = told("none")
    bits: int = told(8)
    fraction: float = told(0.1)
    down: str = told("none")

    def __post_init__(self) -> None:
        """Check the values."""
        try:
            CompressionOptions(**asdict(self))  # they check themselves
        except ValueError as error:
            raise ValueError(f"compression.{error}") from error

    @property
    def compression(self) -> Compression:
        """The same, as the strategy takes it."""
        from fl_dp.updates import Compression  # brings Flower, which a check of settings needs not

        return Compression(**asdict(self))
