"""Features: encoders of records to vectors for training, by public means only."""

from .encoder import Encoder
from .own_encoder import encoder_module
from .patches import Patches
from .public_statistics import PublicStatistics
from .scattering import Scattering
from .sentences import Sentences, encoder_files
from .words import Words

__all__ = [
    "Encoder",
    "Patches",
    "PublicStatistics",
    "Scattering",
    "Sentences",
    "Words",
    "encoder_files",
    "encoder_module",
]
