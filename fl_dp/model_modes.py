"""Training mode of a PyTorch module whose frozen parts are constants."""

from __future__ import annotations

from torch import nn


def set_training_mode(module: nn.Module) -> None:
    """Put a module in training mode, as its author means it.

    A module that is in training mode already stays as it is: parts that the author put in `eval()`
    keep their mode, as the BatchNorm of a frozen part does. Of a module in `eval()`, as after a
    measurement, only parts whose parameters are all frozen keep it.
    """
    if not module.training:
        _wake(module)


def _wake(module: nn.Module) -> None:
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        return
    module.training = True
    for part in module.children():
        _wake(part)
