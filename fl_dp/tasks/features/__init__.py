"""Features: what turns a record into the vector that is trained on, by public means alone."""

from .checkpoint import encoder_module
from .encoder import Encoder
from .patches import Patches
from .public_statistics import PublicStatistics
from .scattering import Scattering

__all__ = ["Encoder", "Patches", "PublicStatistics", "Scattering", "encoder_module"]
