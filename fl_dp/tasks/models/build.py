"""Models for images, tables and tokens, and their weights as lists of arrays.

None of them has batch statistics: BatchNorm would mix records, so that one record's gradient is
no longer its own and clipping would not bound its influence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.tasks.fit import require_fit
from fl_dp.tasks.models.resnet import ResNet18
from fl_dp.tasks.models.transformer import Transformer

_CELLS = {"gru": "DPGRUCell", "lstm": "DPLSTMCell"}
_EMBEDDING = 8


class Recurrent(nn.Module):
    """One recurrent layer over tokens `(n, length)`, int64, that scores the next one: GRU or LSTM.

    torch's own layers run all steps in one kernel, which gives no per-record gradients. Opacus'
    cells take the steps one by one. Its layers are left alone: inside another module their state
    has every weight twice, under two names.

    References:
        Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings": the next character of a play
            from the 80 before it, with an embedding of 8 dimensions.
    """

    def __init__(self, cell: str, vocabulary_size: int, num_classes: int, hidden: int) -> None:
        """Make the layers with weights from torch's global generator.

        Args:
            cell: "gru" or "lstm".
            vocabulary_size: Tokens are below this.
            num_classes: Number of logits.
            hidden: Size of the hidden state.

        Raises:
            ModuleNotFoundError: If Opacus is not installed.
        """
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, _EMBEDDING)
        self.cell = _cell_class(cell)(_EMBEDDING, hidden, bias=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(n, num_classes)`."""
        state: Any = None
        for step in self.embedding(tokens).unbind(dim=1):
            state = self.cell(step, state)
        # An LSTM's state is the hidden state and a memory that stays inside the cell.
        logits: Tensor = self.head(state[0] if self.cell.has_cell_state else state)
        return logits


def _cell_class(cell: str) -> type[nn.Module]:
    try:
        cells = import_module("opacus.layers.dp_rnn")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the model '{cell}' is built on Opacus, which is not installed: "
            "pip install 'fl-dp[torch]'"
        ) from error
    found: type[nn.Module] = getattr(cells, _CELLS[cell])
    return found


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: int = 64,
    vocabulary_size: int | None = None,
    seed: int,
) -> nn.Module:
    """Build a model, on the CPU, with initial weights that depend on the seed only.

    Args:
        name: "logistic" (one linear layer, starting at zero), "mlp" (two hidden layers), "cnn"
            (two convolutions with GroupNorm and one hidden layer), "resnet18" (`ResNet18`); for
            tokens "gru" or "lstm" (`Recurrent`) or "transformer" (`Transformer`).
        input_shape: Shape of one record, channels first, e.g. `(1, 28, 28)`; for tokens
            `(length,)`.
        num_classes: Number of outputs; 1 predicts a number.
        hidden: Width of the hidden layers of "mlp" and "cnn", channels of the first stage of
            "resnet18", size of the hidden state of "gru" and "lstm", width of "transformer".
        vocabulary_size: How many tokens there are, for records that are tokens; None for numbers.
        seed: Seed of the initial weights, at least 0. The global random state is left alone.

    Returns:
        A module from float32 `(n, *input_shape)`, or int64 tokens, to logits `(n, num_classes)`, in
        training mode; there "transformer" has one column more.

    Raises:
        ValueError: If the name is unknown, a number is out of its range, the model is for tokens
            and the records are numbers or the reverse, or "cnn" or "resnet18" gets a shape that is
            not (channels, height, width) with sides of at least 8.
        ModuleNotFoundError: If "gru" or "lstm" is asked for without Opacus, or "transformer"
            without transformers.
    """
    require_fit(
        name,
        input_shape=input_shape,
        num_classes=num_classes,
        hidden=hidden,
        vocabulary_size=vocabulary_size,
    )
    if seed < 0:
        raise ValueError(f"seed is {seed}; write at least 0")
    # torch.manual_seed would also reset the accelerators' generators, which are not forked here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if vocabulary_size is not None:
            if name == "transformer":
                return Transformer(vocabulary_size, input_shape[0], num_classes, hidden)
            return Recurrent(name, vocabulary_size, num_classes, hidden)
        return _FOR_NUMBERS[name](input_shape, num_classes, hidden)


def distinct_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state, each tensor once: one of several names under the first of them.

    What travels is made of it. A tensor that travelled under two names would count twice in a norm
    and have two noises, and the second to arrive would undo the first.

    Args:
        model: Any module, on any device.

    Returns:
        Names of `state_dict()`, in its order, and tensors that share memory with the model.

    Raises:
        ValueError: If two parameters lie in the same memory without being one: each would be
            trained, and one of both lost.
    """
    state: dict[str, Tensor] = {}
    names: dict[Any, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        in_memory = tensor.numel() and not tensor.is_meta
        place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if in_memory else id(tensor)
        first = names.setdefault(place, name)
        if first == name:
            state[name] = tensor
        elif tensor.requires_grad and tensor is not state[first]:
            raise ValueError(
                f"the parameters '{first}' and '{name}' lie in the same memory and are not one: "
                "tie modules by one parameter, as in decoder.weight = encoder.weight"
            )
    return {name: tensor.detach() for name, tensor in state.items()}


def get_arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Copy a model's state into arrays.

    Args:
        model: Any module, on any device.

    Returns:
        The names of `distinct_state`, in its order, with arrays that share no memory with it.
    """
    return {name: tensor.cpu().numpy().copy() for name, tensor in distinct_state(model).items()}


def set_arrays(
    model: nn.Module, arrays: Sequence[NDArray[Any]], names: Sequence[str] | None = None
) -> None:
    """Overwrite a model's state; nothing is written if any array does not fit.

    Args:
        model: The module to change, on any device.
        arrays: One array for each entry, in its shape; values are cast to the entry's dtype. Where
            a tensor has several names, all of them have it then.
        names: Which entries of `state_dict()`, in the order of the arrays; those of
            `distinct_state` by default.

    Raises:
        ValueError: If the number of arrays, a shape, or the kind of a dtype (e.g. float for an
            integer entry) differs.
    """
    state = distinct_state(model) if names is None else model.state_dict()
    if names is not None:
        state = {name: state[name] for name in names}
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


def _logistic(input_shape: tuple[int, ...], num_classes: int, hidden: int) -> nn.Module:
    linear = nn.Linear(math.prod(input_shape), num_classes)
    # The loss is convex: zero is as good a start as any, with no random weights to unlearn.
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear)


def _mlp(input_shape: tuple[int, ...], num_classes: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )


def _cnn(input_shape: tuple[int, ...], num_classes: int, hidden: int) -> nn.Module:
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, kernel_size=3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )


def _resnet18(input_shape: tuple[int, ...], num_classes: int, hidden: int) -> nn.Module:
    channels, _, _ = input_shape
    return ResNet18(channels, num_classes, hidden)


_FOR_NUMBERS: dict[str, Callable[[tuple[int, ...], int, int], nn.Module]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet18": _resnet18,
}
