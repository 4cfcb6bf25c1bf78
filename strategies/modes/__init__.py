"""Modes: one class for each place where noise can enter a round."""

from ..exchange import Ask
from .base import Cohort, Mode, Released, RoundFailed
from .buffered import BufferedMode
from .central import CentralMode
from .client_noise import ClientNoiseMode, client_noise_of
from .planned import ChargedRound
from .secure_sum import SecureSumMode
from .unprotected import UnprotectedMode

__all__ = [
    "Ask",
    "BufferedMode",
    "CentralMode",
    "ChargedRound",
    "ClientNoiseMode",
    "Cohort",
    "Mode",
    "Released",
    "RoundFailed",
    "SecureSumMode",
    "UnprotectedMode",
    "client_noise_of",
]
