"""Plans: what a training will release, how often, and at what price. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .correlation import Banded
    from .distributed_noise import DistributedNoise, SecureSum
    from .hosting import Hosting
    from .noise import CentralNoise, ClientNoise, Noise
    from .options import PlanArguments
    from .privacy_plan import PrivacyPlan
    from .record_plan import RecordPlan
    from .release import Release
    from .shared_bundle import SharedBundle
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Banded",
    "CentralNoise",
    "ClientNoise",
    "DistributedNoise",
    "Hosting",
    "Noise",
    "PlanArguments",
    "PrivacyPlan",
    "RecordPlan",
    "Release",
    "SecureSum",
    "SharedBundle",
]
