"""Modes: one class for each place where noise can enter a round."""

from ..message_exchange import Ask
from .base import Cohort, Mode, Released, RoundFailed
from .buffered_mode import BufferedMode
from .central_mode import CentralMode
from .client_noise_mode import ClientNoiseMode, client_noise_of
from .planned import ChargedRound
from .secure_sum_mode import SecureSumMode
from .unprotected_mode import UnprotectedMode

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
