"""Events of mechanisms: one release of each as plain data, without interpretation.

A mechanism returns its own event (`GaussianMechanism.event`), so the charge can't differ from what
runs. Events of sampled cohorts are in `fl_dp/accounting/events.py`.

Multipliers are relative to the most that one unit moves when its contribution is left out: the
clipping norm, under zero-out and add-or-remove neighbours. Accountants convert them for other
relations; no event is ever rescaled by hand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import ClassVar, TypeAlias

from fl_dp.arguments import Arguments
from fl_dp.option_errors import require_count, require_positive, require_rate


@dataclass(frozen=True, kw_only=True)
class Checked(Arguments):
    """Checks each field by its name, which means the same in every event and every sampling.

    A field whose name is not listed is a count; one that is None by default may be left out.
    """

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        super().__post_init__()
        optional = {field.name for field in fields(self) if field.default is None}
        for name, value in asdict(self).items():
            if value is None and name in optional:
                continue
            if name in ("noise_multiplier", "epsilon", "rho"):
                require_positive(**{name: value})
            elif name == "sampling_rate":
                require_rate(**{name: value})
            elif name != "one_coordinate":
                require_count(**{name: value})


@dataclass(frozen=True, kw_only=True)
class GaussianEvent(Checked):
    """Gaussian noise on a sum over all units.

    Attributes:
        noise_multiplier: Noise standard deviation on the sum over its L2 sensitivity.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class LaplaceEvent(Checked):
    """Laplace noise on a sum over all units.

    Attributes:
        noise_multiplier: Noise scale `b` (not its standard deviation, `b * sqrt(2)`) on the sum
            over the sum's L1 sensitivity. Pure epsilon is its inverse.
    """

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class ExponentialEvent(Checked):
    """Draws of the exponential mechanism, or of any other of that bounded range.

    Attributes:
        epsilon: Range of one draw's log-likelihood ratio: one draw is epsilon-DP and
            `epsilon ** 2 / 8`-zCDP (Dong, Durfee and Rogers 2020).
        draws: Number of draws without replacement (the top of one set of Gumbel scores).
        one_coordinate: Whether a unit moves one score alone: the release of all noisy scores then
            bounds that of the top ones.
    """

    kind: ClassVar[str] = "exponential"
    epsilon: float
    draws: int = 1
    one_coordinate: bool = False


@dataclass(frozen=True, kw_only=True)
class ZcdpEvent(Checked):
    """Any release known to be `rho`-zCDP (Bun and Steinke 2016), and nothing more.

    Attributes:
        rho: The parameter; a Gaussian of noise multiplier z has `1 / (2 z^2)`.
    """

    kind: ClassVar[str] = "zcdp"
    rho: float


MechanismEvent: TypeAlias = GaussianEvent | LaplaceEvent | ExponentialEvent | ZcdpEvent
"""One release of a mechanism over all units."""
