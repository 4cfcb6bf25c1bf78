"""Gradient inversion: images recovered from what a client's training shows.

    >>> from fl_dp.lab.attacks.inversion.inversion_attack import LocalTraining, PixelRange
    >>> from fl_dp.lab.attacks.inversion.matching import InvertingGradients
    >>> from fl_dp.lab.attacks.inversion.threats import NoisyUpdate
    >>> step = LocalTraining(learning_rate=0.1)
    >>> threat = NoisyUpdate(training=step, clipping_norm=0.5, noise_multiplier=0.01)
    >>> observation = threat.observe(model, [records], seed=0)
    >>> [recovered] = InvertingGradients().recover(
    ...     [observation], input_shape=(1, 28, 28), pixels=PixelRange((0.0,), (1.0,)), seed=0
    ... )

A `ThreatModel` computes the adversary's view, by fl-dp's own mechanisms. An `Attack` recovers
images; `image_metrics` compares them with the true ones, beside guesses without an update.
"""
