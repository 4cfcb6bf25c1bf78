"""Conversion of a PyTorch model's state to arrays, which travel, and back.

>>> arrays = get_arrays(model)
>>> set_arrays(model, list(arrays.values()))
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def distinct_state(model: nn.Module) -> dict[str, Tensor]:
    """A model's state, each tensor once, under the first of its names.

    Under two names a tensor would count twice in a norm and get two noises; the second to arrive
    would overwrite the first.

    Returns:
        Names of `state_dict()`, in its order; tensors share the model's memory, on any device.

    Raises:
        ValueError: Two parameters share memory without being one: both are trained, one is lost.
    """
    state: dict[str, Tensor] = {}
    names: dict[Any, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        memory: Any = id(tensor)
        if tensor.numel() and not tensor.is_meta:
            memory = (tensor.data_ptr(), tensor.shape, tensor.stride())
        first = names.setdefault(memory, name)
        if first == name:
            state[name] = tensor
        elif tensor.requires_grad and tensor is not state[first]:
            raise ValueError(
                f"the parameters '{first}' and '{name}' lie in the same memory and are not one: "
                "tie modules by one parameter, as in decoder.weight = encoder.weight"
            )
    return {name: tensor.detach() for name, tensor in state.items()}


def trained_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the arrays that training moves: parameters that are not frozen, of a tied one one.

    In the order of `distinct_state`. Frozen parameters and buffers are not among them.
    """
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    return tuple(name for name in distinct_state(model) if name in trained)


def sent_names(model: nn.Module, arrays: Collection[object]) -> tuple[str, ...]:
    """Names of as many arrays as were sent: what is trained, else the whole of `distinct_state`."""
    names = trained_names(model)
    return names if len(arrays) == len(names) else tuple(distinct_state(model))


def get_arrays(model: nn.Module, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Copy a model's state from any device to arrays, named and ordered as `names`.

    They are entries of `distinct_state`; by default all of it.

    Raises:
        ValueError: An entry has a dtype that NumPy lacks, such as bfloat16.
    """
    state = distinct_state(model)
    return {name: _numpy(name, state[name]) for name in (state if names is None else names)}


def _numpy(name: str, tensor: Tensor) -> NDArray[Any]:
    try:
        return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format).numpy()
    except TypeError as error:
        raise ValueError(
            f"'{name}' is {tensor.dtype}, which NumPy does not have: write module.float()"
        ) from error


def set_arrays(
    model: nn.Module, arrays: Sequence[NDArray[Any]], names: Sequence[str] | None = None
) -> None:
    """Overwrite a model's state; if an array does not fit, nothing is written.

    Args:
        model: The module to change, on any device.
        arrays: One array per entry, in its shape; values are cast to the entry's dtype. All names
            of a shared tensor get its array.
        names: Entries of `state_dict()`, in the arrays' order; by default `distinct_state`'s.

    Raises:
        ValueError: The number of arrays, a shape, or a dtype's kind (e.g. float for an integer
            entry) differs.
    """
    if names is None:
        state = distinct_state(model)
    else:
        entries = model.state_dict()
        state = {name: entries[name] for name in names}
    if len(arrays) != len(state):
        raise ValueError(
            f"got {len(arrays)} arrays for {len(state)} entries; give one for each of {list(state)}"
        )
    fitting = []
    for (name, tensor), array in zip(state.items(), arrays, strict=True):
        array = np.asarray(array)
        if array.shape != tuple(tensor.shape):
            raise ValueError(
                f"array for {name!r} has shape {array.shape}; give shape {tuple(tensor.shape)}"
            )
        dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        if not np.can_cast(array.dtype, dtype, casting="same_kind"):
            raise ValueError(f"array for {name!r} is {array.dtype}; give {dtype}")
        # torch warns about read-only arrays, as messages bring them, so these are copied.
        fitting.append(torch.from_numpy(np.require(array, dtype, ["C", "W"])))
    with torch.no_grad():
        for tensor, values in zip(state.values(), fitting, strict=True):
            tensor.copy_(values)
