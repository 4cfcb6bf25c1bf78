"""The user's own encoders: a network that a function makes, with weights from a local file.

Nothing is downloaded or unpickled: weights are safetensors.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from fl_dp.tasks.models.weights import read_weights, set_weights

_TRIES = 4  # more than one, to detect random outputs


def encoder_module(factory: str, file: Path, input_shape: tuple[int, ...]) -> nn.Module:
    """Make a network in `eval()` with its weights.

    Args:
        factory: `package.module:function`; the function has no arguments and returns the network.
        file: Weights under the names of its `state_dict`, safetensors.
        input_shape: Shape of one record.

    Raises:
        OSError: If the file can't be read.
        ImportError: If the module can't be imported.
        ValueError: If the function does not exist or makes no network, the weights are another
            network's, or it does not take such records or mixes a batch's records.
    """
    module, _, name = factory.partition(":")
    make = getattr(import_module(module), name, None)
    network = cast(Callable[[], object], make)() if callable(make) else None
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"features.module={factory} makes no torch.nn.Module: name a function without "
            "arguments that returns one, as package.module:function"
        )
    set_weights(network, read_weights(file), str(file))
    network.eval()
    _require_independent_rows(network, input_shape, factory)
    return network


def _require_independent_rows(
    network: nn.Module, input_shape: tuple[int, ...], factory: str
) -> None:
    """Check that a record's output does not change with another record, to the bit."""
    generator = torch.Generator().manual_seed(0)
    first, second, other = torch.randn(3, *input_shape, generator=generator).unbind()
    with torch.inference_mode():
        try:
            pairs = [torch.stack([first, partner]) for partner in (second, other) * _TRIES]
            outputs = [network(pair) for pair in pairs]
        except RuntimeError as error:  # of shapes, as torch says it
            raise ValueError(
                f"features.module={factory} does not take records of shape {input_shape}: {error}"
            ) from error
    rows = all(
        isinstance(output, Tensor) and output.dim() > 1 and len(output) == 2 for output in outputs
    )
    if not rows or not all(torch.equal(output[0], outputs[0][0]) for output in outputs):
        raise ValueError(
            f"features.module={factory} must give one row for each record, by that record alone: "
            "one that mixes the records of a batch, or draws at random, would break the promise"
        )
