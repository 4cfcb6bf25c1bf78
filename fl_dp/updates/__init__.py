"""Clients' updates: the layout of arrays in a flat vector, and reading, clipping and summing.

They may know Flower's arrays and the mechanisms; no message, no ledger.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .bundle_sum import BundleSum
    from .compression import Compression
    from .layout import RefusedUpdate, VectorLayout, only_array_record
    from .shared_part import SharedPart
else:
    # With Flower, which the settings can do without (`compression_options.py`).
    __getattr__ = lazy_exports(
        __name__,
        {
            "BundleSum": "bundle_sum",
            "Compression": "compression",
            "RefusedUpdate": "layout",
            "VectorLayout": "layout",
            "only_array_record": "layout",
            "SharedPart": "shared_part",
        },
    )

__all__ = [
    "BundleSum",
    "Compression",
    "RefusedUpdate",
    "SharedPart",
    "VectorLayout",
    "only_array_record",
]
