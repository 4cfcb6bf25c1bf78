"""Every kind of noise, by the name that it is written with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_dp.accounting import NoiseSchedule, PlateauSchedule
from fl_dp.documents import known_kind

from .correlation import Banded
from .distributed_noise import DistributedNoise, SecureSum
from .noise import CentralNoise, ClientNoise, Noise

_KINDS: dict[str, type[Noise]] = {
    each.kind: each for each in (CentralNoise, ClientNoise, DistributedNoise)
}


def noise_from_dict(fields: Mapping[str, Any]) -> Noise:
    """Return the noise that `to_dict` described.

    Raises:
        ValueError: If the kind is unknown to this version.
    """
    given = dict(fields)
    kind = known_kind(_KINDS, given.pop("kind"), of="noise")
    given["schedule"] = NoiseSchedule.from_dict(given["schedule"])
    if given.get("plateau") is not None:
        given["plateau"] = PlateauSchedule(**given["plateau"])
    if given.get("correlation") is not None:
        given["correlation"] = Banded.from_dict(given["correlation"])
    if "secure_sum" in given:
        given["secure_sum"] = SecureSum(**given["secure_sum"])
        del given["slack"]  # follows from the rest
    return kind(**given)
