"""Clients' updates: where arrays lie in a flat vector, how they are read, clipped and summed."""

from .arrays import ArrayForm, array_of, values_of
from .batch_norm import with_sound_variances
from .clipped_sum import ClippedSum, PlainSum
from .compression import Compression, array_bytes, sum_bytes, update_in
from .layout import ArraySpec, RefusedUpdate, VectorLayout, only_array_record
from .narrow import widen

__all__ = [
    "ArrayForm",
    "ArraySpec",
    "ClippedSum",
    "Compression",
    "PlainSum",
    "RefusedUpdate",
    "VectorLayout",
    "array_bytes",
    "array_of",
    "only_array_record",
    "sum_bytes",
    "update_in",
    "values_of",
    "widen",
    "with_sound_variances",
]
