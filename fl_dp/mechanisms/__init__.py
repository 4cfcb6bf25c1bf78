"""Mechanisms: clipping, noise and the randomness behind them. NumPy only, no Flower."""

from .adaptive_clipping import AdaptiveClipping
from .banded_stream import BandedStream
from .bundle import GaussianBundle, ScalarMetric
from .clipping import clip_by_norm
from .clipping_rules import Clipping, FixedClipping, PerLayerClipping
from .exponential import ExponentialMechanism
from .gaussian import GaussianMechanism
from .laplace import LaplaceMechanism
from .noise_share import NoiseShare, Segment
from .noise_stream import NoiseStream, WhiteStream
from .randomness import SecureRandom
from .schemes import ClientScheme, client_scheme

__all__ = [
    "AdaptiveClipping",
    "BandedStream",
    "ClientScheme",
    "Clipping",
    "ExponentialMechanism",
    "FixedClipping",
    "GaussianBundle",
    "GaussianMechanism",
    "LaplaceMechanism",
    "NoiseShare",
    "NoiseStream",
    "PerLayerClipping",
    "ScalarMetric",
    "SecureRandom",
    "Segment",
    "WhiteStream",
    "client_scheme",
    "clip_by_norm",
]
