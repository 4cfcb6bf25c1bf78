"""Rules for the norm that bounds an update: fixed, one per layer, or following a quantile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, get_args

from fl_dp.arguments import Arguments
from fl_dp.option_errors import require_positive

from .adaptive_clipping import AdaptiveClipping
from .clipping import joint_clipping_norm


@dataclass(frozen=True, kw_only=True)
class FixedClipping(Arguments):
    """One L2 bound on the whole update, the same in every round.

    Attributes:
        norm: L2 bound on one unit's whole update, in the model's units (L1 with Laplace noise);
            where it adapts, of the first round.
    """

    kind: ClassVar[str] = "fixed"
    norm: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the norm is not positive and finite.
        """
        super().__post_init__()
        require_positive(norm=self.norm)

    @property
    def first_norms(self) -> tuple[float, ...]:
        """Bounds of the first round."""
        return (self.norm,)


@dataclass(frozen=True, kw_only=True)
class PerLayerClipping(Arguments):
    """One L2 bound per floating-point array, equal in all rounds (McMahan et al. 2018, 3).

    The whole's sensitivity is the root of the sum of their squares.

    Attributes:
        norms: One bound per floating-point array, in the model's order.
    """

    kind: ClassVar[str] = "per-layer"
    norms: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If there is no bound, or one is not positive and finite.
        """
        super().__post_init__()
        joint_clipping_norm(self.norms)

    @classmethod
    def evenly(cls, norm: float, num_layers: int) -> PerLayerClipping:
        """Share a joint bound evenly: `norm / sqrt(num_layers)` each.

        Raises:
            ValueError: If the norm is not positive and finite, or there is no layer.
        """
        # num_layers squares of norm / sqrt(num_layers) add up to norm^2.
        return cls(norms=(norm / num_layers**0.5,) * num_layers)

    @property
    def first_norms(self) -> tuple[float, ...]:
        """Bounds of the first round."""
        return self.norms


Clipping: TypeAlias = FixedClipping | PerLayerClipping | AdaptiveClipping

DEFAULT_CLIPPING = AdaptiveClipping(norm=0.1, target_quantile=0.5, learning_rate=1.0)
"""The default bound on an update: the updates' median norm, found during training.

It starts as in Andrew et al. 2021, below most norms: a bound that is too small only slows training
down, one that is too large drowns the model in noise. It moves five times as fast as theirs (by a
factor of up to 1.65 per round): ten rounds reach norms from 0.01 to 5, thirty norms up to 100.
"""


def require_clipping(clipping: object) -> None:
    """Refuse everything but the three rules.

    A user's own rule can't be charged: no check shows that it bounds what it claims to, and a
    ledger can't distinguish it from another of the same name.

    Raises:
        TypeError: With what to write instead.
    """
    if type(clipping) in get_args(Clipping):
        return
    instead = "see docs/extending.md#clipping for what can be changed"
    if isinstance(clipping, int | float):
        instead = f"for a fixed norm write clipping_norm={clipping}"
    raise TypeError(
        "clipping must be FixedClipping, PerLayerClipping or AdaptiveClipping itself, got "
        f"{type(clipping).__name__}: {instead}"
    )
