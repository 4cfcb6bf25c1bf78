"""Models that come with the app."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .build import build_model, get_arrays, set_arrays
    from .fit import MODELS, TRAINED_FACTORS
    from .low_rank import LowRankLinear, add_low_rank, factor_of_round, train_factor
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "MODELS",
    "TRAINED_FACTORS",
    "LowRankLinear",
    "add_low_rank",
    "build_model",
    "factor_of_round",
    "get_arrays",
    "set_arrays",
    "train_factor",
]
