"""Training mode of a PyTorch module whose frozen parts are constants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def set_training_mode(module: nn.Module) -> None:
    """Put a module in training mode, as its author means it; see `parts_in_training`."""
    parts = set(parts_in_training(module))
    for part in module.modules():
        part.training = part in parts


def parts_in_training(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a module that training puts in training mode, itself included.

    Of a module in training mode these are the parts that are in it already: what the author put in
    `eval()` keeps its mode, as the BatchNorm of a frozen part does. Of a module in `eval()`, as
    after a measurement, they are all but those whose parameters are all frozen.
    """
    if module.training:
        yield from (part for part in module.modules() if part.training)
        return
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        return
    yield module
    for part in module.children():
        yield from parts_in_training(part)


@contextmanager
def modes_back(module: nn.Module) -> Iterator[None]:
    """Give each part of a module its mode back at the end of a block."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training
