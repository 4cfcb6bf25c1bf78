"""Mechanisms: clipping, noise and the randomness behind them. NumPy only, no Flower."""

from .clipping import clip_by_norm, l2_norm
from .discrete_gaussian import DiscreteGaussian
from .gaussian import GaussianMechanism
from .randomness import SecureRandom

__all__ = ["DiscreteGaussian", "GaussianMechanism", "SecureRandom", "clip_by_norm", "l2_norm"]
