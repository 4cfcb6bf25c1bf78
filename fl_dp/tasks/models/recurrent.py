"""One recurrent layer over tokens, for the next one: GRU and LSTM.

torch's own layers run all steps in one kernel, which gives no per-record gradients. Opacus' cells
take the steps one by one. Their layers are left alone: inside another module their state has every
weight twice, under two names.

References:
    Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings": the next character of a play
        from the 80 before it, with an embedding of 8 dimensions.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor, nn

_CELLS = {"gru": "DPGRUCell", "lstm": "DPLSTMCell"}
_EMBEDDING = 8


class Recurrent(nn.Module):
    """Reads tokens `(n, length)`, int64, and scores what follows from the last hidden state."""

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
