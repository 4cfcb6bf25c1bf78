"""Plans: what a training will release, how often, and at what price. No Flower, no torch."""

from .arguments import PlanArguments
from .correlation import Banded
from .distributed_noise import DistributedNoise, SecureSum
from .privacy_plan import PrivacyPlan
from .record_plan import RecordPlan

__all__ = ["Banded", "DistributedNoise", "PlanArguments", "PrivacyPlan", "RecordPlan", "SecureSum"]
