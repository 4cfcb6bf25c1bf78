"""Features: what turns a record into the vector that is trained on, by public means alone."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .checkpoint import encoder_module
    from .encoder import Encoder
    from .public_statistics import PublicStatistics
    from .scattering import Scattering
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["Encoder", "PublicStatistics", "Scattering", "encoder_module"]
