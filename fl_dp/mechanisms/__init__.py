"""Mechanisms: clipping, noise and the randomness behind them. NumPy only, no Flower."""

from .clipping import Norm, clip_by_norm, clip_per_layer, joint_clipping_norm, l1_norm, l2_norm
from .discrete_gaussian import DiscreteGaussian
from .discrete_laplace import DiscreteLaplace
from .exponential import ExponentialMechanism
from .gaussian import GaussianMechanism
from .grid_exponential import GridExponentialMechanism
from .laplace import LaplaceMechanism
from .randomness import SecureRandom
from .schemes import ClientScheme, client_scheme

__all__ = [
    "ClientScheme",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "GaussianMechanism",
    "GridExponentialMechanism",
    "LaplaceMechanism",
    "Norm",
    "SecureRandom",
    "client_scheme",
    "clip_by_norm",
    "clip_per_layer",
    "joint_clipping_norm",
    "l1_norm",
    "l2_norm",
]
