"""Clients' updates: where arrays lie in a flat vector, how they are read, clipped and summed.

They may know Flower's arrays and the mechanisms; no message, no ledger.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .arrays import ArrayForm, array_of, values_of
    from .batch_norm import running_statistics, with_sound_variances
    from .bundle_sum import BundleSum
    from .clipped_sum import ClippedSum, PlainSum
    from .compression import Compression, array_bytes, sum_bytes, update_in
    from .layout import ArraySpec, RefusedUpdate, VectorLayout, only_array_record
    from .narrow import widen
    from .shared_part import SharedPart, in_order, matching
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "ArrayForm",
    "ArraySpec",
    "BundleSum",
    "ClippedSum",
    "Compression",
    "PlainSum",
    "RefusedUpdate",
    "SharedPart",
    "VectorLayout",
    "array_bytes",
    "array_of",
    "in_order",
    "matching",
    "only_array_record",
    "running_statistics",
    "sum_bytes",
    "update_in",
    "values_of",
    "widen",
    "with_sound_variances",
]
