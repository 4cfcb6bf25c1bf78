"""Gradient inversion: images recovered from what a client's training shows.

    >>> step = LocalTraining(learning_rate=0.1)
    >>> threat = NoisyUpdate(training=step, clipping_norm=0.5, noise_multiplier=0.01)
    >>> seen = threat.observe(model, [records], seed=0)
    >>> [recovered] = InvertingGradients().recover(
    ...     [seen], input_shape=(1, 28, 28), pixels=PixelRange((0.0,), (1.0,)), seed=0
    ... )

A `ThreatModel` says what the adversary sees, and makes it with the mechanisms that fl-dp trains
with. An `Attack` makes images of it. `image_metrics` compares these with the true ones, beside what
an adversary that sees no update would guess.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .analytic import AnalyticInversion, recovered_labels
    from .attack import Attack, ClientRecords, LocalTraining, Observation, PixelRange, Recovered
    from .matching import DeepLeakage, InvertingGradients
    from .threats import (
        DPSGDUpdate,
        NoisyUpdate,
        RawUpdate,
        ReleasedModel,
        ThreatModel,
        UpdateSum,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "AnalyticInversion",
    "Attack",
    "ClientRecords",
    "DPSGDUpdate",
    "DeepLeakage",
    "InvertingGradients",
    "LocalTraining",
    "NoisyUpdate",
    "Observation",
    "PixelRange",
    "RawUpdate",
    "Recovered",
    "ReleasedModel",
    "ThreatModel",
    "UpdateSum",
    "recovered_labels",
]
