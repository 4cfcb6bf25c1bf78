"""Devices of this machine, and engines that are started on it for one run."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .simulation import simulate
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["simulate"]
