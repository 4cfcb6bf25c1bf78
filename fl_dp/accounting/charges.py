"""The charge of each mechanism: the one place where noise meets accounting."""

from __future__ import annotations

from fl_dp.mechanisms import (
    ClientScheme,
    ExponentialMechanism,
    GaussianMechanism,
    GridExponentialMechanism,
    LaplaceMechanism,
    client_scheme,
)

from .budget import NeighboringRelation
from .events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    PrivacyEvent,
    ZcdpEvent,
)


def event_of(mechanism: ClientScheme | ExponentialMechanism, *, draws: int = 1) -> PrivacyEvent:
    """Return what one release of `mechanism` over all units is charged as.

    Args:
        mechanism: Any mechanism of `fl_dp.mechanisms`.
        draws: For the exponential mechanism, how many are selected at once.

    Raises:
        TypeError: If the mechanism is not one of ours.
    """
    match mechanism:
        case GaussianMechanism(noise_multiplier=z):
            return GaussianEvent(noise_multiplier=z)
        case LaplaceMechanism(noise_multiplier=scale):
            return LaplaceEvent(noise_multiplier=scale)
        case GridExponentialMechanism():
            return ZcdpEvent(rho=mechanism.zcdp_rho)
        case ExponentialMechanism(epsilon=epsilon, one_coordinate=alone):
            return ExponentialEvent(epsilon=epsilon, draws=draws, one_coordinate=alone)
        case _:
            raise TypeError(f"no charge is known for a {type(mechanism).__name__}")


def calibrate_client_scheme(
    name: str,
    target_epsilon: float,
    target_delta: float,
    *,
    participations: int,
    clipping_norm: float,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> ClientScheme:
    """Return the client scheme whose messages together spend the target: a fair comparison.

    Privacy: for one client over at most `participations` messages, against the server, which sees
    each of them and who sent it; sampling amplifies nothing here.

    Args:
        name: `gaussian`, `laplace` or `exponential`.
        target_epsilon: Positive and finite.
        target_delta: In (0, 1).
        participations: Cap on the messages of one client.
        clipping_norm: Bound on each message before the noise, L1 for `laplace`, else L2.
        neighboring_relation: Zero-out (against silence) or replace-one (against any other data).

    Raises:
        ValueError: If an argument is out of range.
    """
    from .calibration import calibrate_noise  # a node charges, and pays for no calibration

    if participations < 1:
        raise ValueError(f"participations must be at least 1, got {participations}")

    def build(noise_multiplier: float) -> ClientScheme:
        return client_scheme(name, noise_multiplier=noise_multiplier, clipping_norm=clipping_norm)

    noise_multiplier = calibrate_noise(
        lambda noise: {event_of(build(noise)): participations},
        target_epsilon,
        target_delta,
        neighboring_relation=neighboring_relation,
        what=f"in {participations} participations",
    )
    return build(noise_multiplier)
