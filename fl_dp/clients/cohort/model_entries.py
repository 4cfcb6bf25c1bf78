"""The entries of a model that its training moves, and those that it returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fl_dp.model_arrays import distinct_state


class Entries:
    """The entries of a model that training returns, and those that it moves."""

    def __init__(self, model: nn.Module, names: Sequence[str] | None) -> None:
        """Find them; `names` are to be returned, None: all."""
        state = distinct_state(model)
        floating = [
            (name, state[name])
            for name in (state if names is None else names)
            if state[name].is_floating_point()
        ]
        self.trained = {
            name: parameter.detach()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        wide = any(tensor.dtype == torch.float64 for _, tensor in floating)
        self.dtype = torch.float64 if wide else torch.float32
        self.device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
        self.names = [name for name, _ in floating]
        self.first = self.flat(dict(floating))
        self.columns: dict[str, slice] = {}
        at = 0
        for name, tensor in floating:
            self.columns[name] = slice(at, at + tensor.numel())
            at += tensor.numel()

    def flat(self, state: dict[str, Tensor]) -> Tensor:
        """Entries of one model, `(d,)`, copied."""
        parts = [
            state[name].detach().reshape(-1).to(self.device, self.dtype) for name in self.names
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=self.dtype)

    def leaves(self, rows: int) -> dict[str, nn.Parameter]:
        """The parameters that training moves, with the first model in each row."""
        return {
            name: nn.Parameter(first.repeat(rows, *[1] * first.dim()))
            for name, first in self.trained.items()
        }
