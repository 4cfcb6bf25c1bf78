"""Features: encoders of records to vectors for training, by public means only."""

from .encoder import Encoder
from .hashed_words import HashedWords
from .own_encoder import encoder_module
from .patches import Patches
from .public_statistics import PublicStatistics
from .scattering import Scattering
from .sentence_encoder import Sentences, encoder_files

__all__ = [
    "Encoder",
    "HashedWords",
    "Patches",
    "PublicStatistics",
    "Scattering",
    "Sentences",
    "encoder_files",
    "encoder_module",
]
