"""Plans: what a training will release, how often, and at what price. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .privacy_plan import PlanOptions, PrivacyPlan
    from .record_plan import RecordPlan
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["PlanOptions", "PrivacyPlan", "RecordPlan"]
