"""Mechanisms: clipping, noise and the randomness behind them. NumPy only, no Flower."""

from .adaptive_clipping import (
    AdaptiveClipping,
    default_bit_noise_std,
    update_noise_multiplier,
)
from .banded_stream import (
    COEFFICIENT_ONE,
    BandedGaussianMechanism,
    BandedStream,
    banded_noise_scale,
    column_norm,
    require_coefficients,
)
from .bundle import GaussianBundle, ScalarMetric
from .clipping import (
    Norm,
    capped_denominator_sensitivity,
    clip_by_norm,
    joint_clipping_norm,
    l1_norm,
    l2_norm,
)
from .clipping_rules import (
    DEFAULT_CLIPPING,
    Clipping,
    FixedClipping,
    PerLayerClipping,
    clipping_from_dict,
    clipping_to_dict,
    require_clipping,
)
from .discrete_gaussian import DiscreteGaussian
from .exponential import ExponentialMechanism
from .gaussian import GaussianMechanism
from .grid import least_noise_multiplier
from .grid_exponential import GridExponentialMechanism
from .laplace import DiscreteLaplace, LaplaceMechanism
from .noise_share import LEAST_NOISE_SCALE, ExactShare, NoiseShare, Segment
from .noise_stream import NoiseStream, WhiteStream
from .randomness import SecureRandom
from .schemes import ClientScheme, client_scheme

__all__ = [
    "COEFFICIENT_ONE",
    "DEFAULT_CLIPPING",
    "LEAST_NOISE_SCALE",
    "AdaptiveClipping",
    "BandedGaussianMechanism",
    "BandedStream",
    "ClientScheme",
    "Clipping",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExactShare",
    "ExponentialMechanism",
    "FixedClipping",
    "GaussianBundle",
    "GaussianMechanism",
    "GridExponentialMechanism",
    "LaplaceMechanism",
    "NoiseShare",
    "NoiseStream",
    "Norm",
    "PerLayerClipping",
    "ScalarMetric",
    "SecureRandom",
    "Segment",
    "WhiteStream",
    "banded_noise_scale",
    "capped_denominator_sensitivity",
    "client_scheme",
    "clip_by_norm",
    "clipping_from_dict",
    "clipping_to_dict",
    "column_norm",
    "default_bit_noise_std",
    "joint_clipping_norm",
    "l1_norm",
    "l2_norm",
    "least_noise_multiplier",
    "require_clipping",
    "require_coefficients",
    "update_noise_multiplier",
]
