"""Models that come with the app."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .build import build_model, get_arrays, set_arrays
    from .fit import MODELS
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["MODELS", "build_model", "get_arrays", "set_arrays"]
