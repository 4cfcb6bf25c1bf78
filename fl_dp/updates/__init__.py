"""Clients' updates: where arrays lie in a flat vector, how they are read, clipped and summed."""

from .arrays import ArrayForm, array_of, values_of
from .clipped_sum import ClippedSum, PlainSum
from .layout import ArraySpec, RefusedUpdate, VectorLayout, only_array_record

__all__ = [
    "ArrayForm",
    "ArraySpec",
    "ClippedSum",
    "PlainSum",
    "RefusedUpdate",
    "VectorLayout",
    "array_of",
    "only_array_record",
    "values_of",
]
