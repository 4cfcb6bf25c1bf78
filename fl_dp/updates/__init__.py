"""One client's update: where its arrays lie in a flat vector, how it is read, clipped and summed."""

from .layout import ArraySpec, RefusedUpdate, VectorLayout, only_array_record

__all__ = ["ArraySpec", "RefusedUpdate", "VectorLayout", "only_array_record"]
