"""Weights from a local file, checked against their network. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

_SHOWN = 3


def read_weights(file: Path) -> dict[str, Tensor]:
    """The arrays of a safetensors file by their names.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is not a safetensors file, or a number in it is not finite.
    """
    try:
        arrays = load(file.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from error
    for name, array in arrays.items():
        if array.is_floating_point() and not array.isfinite().all():
            raise ValueError(f"{file}: '{name}' has numbers that are not finite")
    return arrays


def set_weights(network: nn.Module, arrays: Mapping[str, Tensor], source: str) -> None:
    """Set a network's weights; nothing is written if any does not fit.

    Raises:
        ValueError: If a name is missing or unknown, or a shape differs.
    """
    state = network.state_dict()
    missing, unknown = sorted(state.keys() - arrays), sorted(arrays.keys() - state)
    wrong = [
        f"'{name}' is {tuple(arrays[name].shape)} and should be {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if name in arrays and arrays[name].shape != tensor.shape
    ]
    problems = {
        "lacks": [f"'{name}'" for name in missing],
        "has unknown": [f"'{name}'" for name in unknown],
        "does not fit:": wrong,
    }
    for verb, names in problems.items():
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ValueError(f"{source} {verb} {', '.join(names[:_SHOWN])}{more}")
    network.load_state_dict(dict(arrays))
