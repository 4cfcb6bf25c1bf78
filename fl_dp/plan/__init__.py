"""Plans: the releases of a training, their number and their price. No Flower, no torch.

One kind per file; `plan` has the questions that all of them answer.
"""

from .as_json import plan_from_dict
from .banded_noise import Banded
from .buffered import BufferedPlan
from .central import CentralPlan
from .correlated import CorrelatedPlan
from .distributed import DistributedPlan
from .distributed_noise import DistributedNoise, SecureSum
from .distributed_records import DistributedRecordsPlan
from .grouped import GroupedPlan
from .local import LocalPlan
from .plan_base import Plan
from .record_plan import RecordPlan
from .shared_noise_plan import SharedNoisePlan

__all__ = [
    "Banded",
    "BufferedPlan",
    "CentralPlan",
    "CorrelatedPlan",
    "DistributedNoise",
    "DistributedPlan",
    "DistributedRecordsPlan",
    "GroupedPlan",
    "LocalPlan",
    "Plan",
    "RecordPlan",
    "SecureSum",
    "SharedNoisePlan",
    "plan_from_dict",
]
