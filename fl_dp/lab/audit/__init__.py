"""Audits: the least privacy loss that what was released is proof of, beside the one claimed."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .bounds import (
        Confusion,
        clopper_pearson,
        epsilon_lower_bound,
        gaussian_epsilon_of,
        gdp_lower_bound,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Confusion",
    "clopper_pearson",
    "epsilon_lower_bound",
    "gaussian_epsilon_of",
    "gdp_lower_bound",
]
