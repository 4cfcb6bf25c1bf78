"""Gradient inversion: images recovered from what a client's training shows.

    >>> from fl_dp.lab.attacks.inversion.attack import LocalTraining, PixelRange
    >>> from fl_dp.lab.attacks.inversion.matching import InvertingGradients
    >>> from fl_dp.lab.attacks.inversion.threats import NoisyUpdate
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
