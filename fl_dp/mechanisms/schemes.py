"""Local noise schemes, which a client applies to its vector before sending it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.option_errors import OptionError

from .clipping import Norm
from .gaussian import GaussianMechanism
from .grid_exponential import GridExponentialMechanism
from .laplace import LaplaceMechanism
from .mechanism_events import MechanismEvent
from .randomness import SecureRandom


class ClientScheme(Protocol):
    """Clips one unit's vector and makes it private: not even the server sees it plainly."""

    @property
    def noise_multiplier(self) -> float:
        """The noise relative to `clipping_norm`, as each scheme defines it."""
        ...

    @property
    def clipping_norm(self) -> float:
        """Bound on the vector's norm, in its units."""
        ...

    @property
    def clipping(self) -> Norm:
        """The norm that `clipping_norm` bounds."""
        ...

    @property
    def noise_std(self) -> float:
        """Standard deviation of the message for a coordinate that is zero."""
        ...

    def event(self) -> MechanismEvent:
        """The event that one message is charged as."""
        ...

    def privatize(self, update: ArrayLike, rng: SecureRandom) -> NDArray[np.float64]:
        """The private vector, float64 in the update's shape and units."""
        ...


SCHEMES = {
    "gaussian": GaussianMechanism,
    "laplace": LaplaceMechanism,
    "exponential": GridExponentialMechanism,
}
"""Client schemes by their names, which are those of `privacy.scheme`."""


def client_scheme(
    name: str, *, noise_multiplier: float, clipping_norm: float, levels: int | None = None
) -> ClientScheme:
    """Build a local noise scheme by its name.

    Privacy: the class's own statement, for one vector, zero-out neighbours, against anyone who sees
    the message: `"gaussian"` and `"exponential"` are `1 / (2 noise_multiplier^2)`-zCDP for a vector
    clipped in L2, `"laplace"` is `1 / noise_multiplier`-DP for one clipped in L1.

    Args:
        name: One of `SCHEMES`.
        noise_multiplier: The noise, divided by `clipping_norm`.
        clipping_norm: Bound on the vector's norm, in its units.
        levels: Points of the `"exponential"` grid, without effect on its promise; None: its
            default.

    Raises:
        ValueError: If there is no such scheme, a number is not positive and finite, or the scheme
            has no grid of that many points.
    """
    if name not in SCHEMES:
        raise OptionError(
            f"there is no client scheme {name!r}: write one of {', '.join(SCHEMES)}",
            option="scheme",
        )
    if levels is not None:
        if name != "exponential":
            raise OptionError(
                f"only the exponential scheme has levels, not {name!r}: leave it out",
                option="levels",
            )
        return GridExponentialMechanism(
            noise_multiplier=noise_multiplier, clipping_norm=clipping_norm, levels=levels
        )
    scheme: ClientScheme = SCHEMES[name](
        noise_multiplier=noise_multiplier, clipping_norm=clipping_norm
    )
    return scheme
