"""Models for images, tables and tokens.

None has batch statistics: BatchNorm would mix records. One record's gradient would no longer be
its own, and clipping would not bound its influence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fl_dp.tasks.fit import require_fit
from fl_dp.tasks.models.resnet import ResNet18
from fl_dp.tasks.models.transformer import Transformer

_CELLS = {"gru": "DPGRUCell", "lstm": "DPLSTMCell"}
_EMBEDDING = 8


class Recurrent(nn.Module):
    """A recurrent layer, GRU or LSTM, over tokens `(n, length)`, int64, that scores the next one.

    torch's own layers run all steps in one kernel, without per-record gradients; Opacus' cells go
    step by step. Opacus' layers are not used: inside another module their state has every weight
    twice, under two names.

    References:
        Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings": the next character of a
            play from the 80 before it, with an embedding of 8 dimensions.
    """

    def __init__(self, cell: str, vocabulary_size: int, num_classes: int, hidden: int) -> None:
        """Make the layers with weights from torch's global generator.

        Tokens are below `vocabulary_size`.

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
        if self.cell.has_cell_state:
            state = state[0]
        logits: Tensor = self.head(state)
        return logits


def _cell_class(cell: str) -> type[nn.Module]:
    try:
        cells = import_module("opacus.layers.dp_rnn")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the model '{cell}' is built on Opacus, which is not installed: "
            "pip install 'fl-dp[torch]'"
        ) from error
    cell_class: type[nn.Module] = getattr(cells, _CELLS[cell])
    return cell_class


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: int = 64,
    vocabulary_size: int | None = None,
    seed: int,
) -> nn.Module:
    """Build a model on the CPU; its initial weights depend on the seed only.

    Args:
        name: "logistic" (one linear layer, starting at zero), "mlp" (two hidden layers), "cnn"
            (two convolutions with GroupNorm and one hidden layer), "resnet18" (`ResNet18`); for
            tokens "gru" or "lstm" (`Recurrent`) or "transformer" (`Transformer`).
        input_shape: Shape of one record, channels first, e.g. `(1, 28, 28)`; for tokens
            `(length,)`.
        num_classes: Number of outputs; 1 predicts a number.
        hidden: Width of the hidden layers of "mlp" and "cnn", channels of the first stage of
            "resnet18", size of the hidden state of "gru" and "lstm", width of "transformer".
        vocabulary_size: Number of tokens; None for numbers.
        seed: At least 0. The global random state does not change.

    Returns:
        A module in training mode, from float32 `(n, *input_shape)`, or int64 tokens, to logits
        `(n, num_classes)`. In that mode "transformer" has one column more if classes are tokens.

    Raises:
        ValueError: If the name is unknown, a number is out of range, or the model does not take
            such records: "cnn" and "resnet18" need sides of at least 8.
        ModuleNotFoundError: If Opacus is missing for "gru" or "lstm", or transformers for
            "transformer".
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
