"""Local training and evaluation of a task, one unit at a time or many together."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .device_data import DeviceData
    from .local import evaluate, train_locally
    from .together import UnitData, train_together
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["DeviceData", "UnitData", "evaluate", "train_locally", "train_together"]
