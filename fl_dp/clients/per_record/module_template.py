"""A module that is never run: each pass gets its own copy, which is then thrown away.

Whatever a forward pass writes (weights, buffers, attributes, caches, through `.data` or NumPy)
goes with the copy, so no record meets another one in it. The trained parameters lie outside, and
only the optimizer changes them. Globals, closures, caches and generators outside the module are
not covered: code that stores records there shares them between passes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fl_dp.model_modes import set_training_mode

from .own_copies import (
    State,
    copies_of,
    empty_of,
    key_of,
    own_copy_with_states,
    require_own,
    states_of,
)


class ModuleTemplate:
    """A module and, outside of it, its trained parameters.

    Attributes:
        parameters: The trained parameters by name, each once. The optimizer steps on these.
        scales: Names of the weights of its LayerNorms and GroupNorms.
    """

    def __init__(self, module: nn.Module) -> None:
        """Copy a module, which is not changed; at least one parameter must not be frozen.

        Raises:
            ValueError: A part can't be copied, or copies do not take the weights that they are
                given everywhere, or its device lacks float64, in which gradients are summed.
        """
        states: Sequence[State] = states_of(module)
        _require_no_views(module, states)
        self._module, states = own_copy_with_states(module, states)
        set_training_mode(self._module)
        self._generators = [part for _, _, part in states if isinstance(part, torch.Generator)]
        self._empty = empty_of(states)
        self.scales = {
            f"{name}.weight".removeprefix(".")
            for name, part in self._module.named_modules()
            if isinstance(part, nn.LayerNorm | nn.GroupNorm)
        }
        self.parameters = {}
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad:
                self.parameters[name] = nn.Parameter(parameter.detach().clone())
        try:
            self.zeros()
        except TypeError as error:
            raise ValueError(
                f"norms are computed in float64, which {self.device} does not have: train on the "
                "CPU or on CUDA"
            ) from error
        self._require_own_copies(states)

    @property
    def device(self) -> torch.device:
        """The trained parameters' device."""
        return next(iter(self.parameters.values())).device

    def copy(self) -> nn.Module:
        """Return the module in training mode, with its own tensors."""
        return self.copy_with(self._weights())

    def copy_with(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """Return the same with other tensors for parameters and buffers, wherever it holds them.

        Each is used as it is, so that gradients reach it, under `vmap` and `grad`, too.
        """
        named = chain(self._module.named_parameters(), self._module.named_buffers())
        copies: dict[int, Any] = {
            id(value): weights[name] for name, value in named if name in weights
        }
        copies |= copies_of(self._empty)
        # PyTorch can't set a generator's state under `vmap`, which `copy.deepcopy` would do.
        copies |= {id(generator): generator.clone_state() for generator in self._generators}
        module: nn.Module = copy.deepcopy(self._module, copies)
        return module

    def _require_own_copies(self, states: Sequence[State]) -> None:
        """Check that copies share nothing, and take the weights that they are given.

        Raises:
            ValueError: One does not; the text names the part.
        """
        weights = self._weights()
        copied = self.copy_with(weights)
        require_own(copied, states)
        for name, weight in copied.named_parameters():
            if name in weights and weight is not weights[name]:
                raise ValueError(
                    f"a copy of the model can't be given other weights for '{name}', so that each "
                    "step would use the first ones: take the module as it was before torch.jit, "
                    "and leave a __deepcopy__ of its own out"
                )

    def _weights(self) -> dict[str, Tensor]:
        return {name: nn.Parameter(value) for name, value in self.detached().items()}

    def detached(self) -> dict[str, Tensor]:
        """Copies of the trained parameters by name, without gradients."""
        return {name: value.detach().clone() for name, value in self.parameters.items()}

    def buffers_beside(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers, with their names, of the modules that hold some parameters."""
        homes = tuple(name.rpartition(".")[0] for name in names)
        for name, buffer in self._module.named_buffers():
            if name.startswith(homes):
                yield name, buffer

    def zeros(self) -> list[Tensor]:
        """A zero per trained parameter: float64, of its shape, on its device."""
        return [torch.zeros_like(value, dtype=torch.float64) for value in self.parameters.values()]

    def moved(self, scale: float, *, dtype: torch.dtype | None = None) -> ModuleTemplate:
        """Return a template of this module, trained parameters moved at random by a fixed seed.

        Args:
            scale: Standard deviation of the move.
            dtype: The new template's floating-point dtype; None: unchanged.
        """
        module = self.copy()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in self.parameters:
                    move = scale * torch.randn(parameter.shape, generator=generator)
                    parameter.add_(move.to(parameter))
        if dtype is not None:
            module = module.to(dtype)
        return ModuleTemplate(module)

    def write_to(self, module: nn.Module) -> None:
        """Copy the trained parameters into a module of the same names."""
        targets = dict(module.named_parameters())
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                targets[name].copy_(parameter)


def _require_no_views(module: nn.Module, states: Sequence[State]) -> None:
    """Check that trained weights are held as parameters alone.

    Raises:
        ValueError: Another tensor shares their memory; the text names it.
    """
    weights = {name: value for name, value in module.named_parameters() if value.requires_grad}
    memory = {key_of(value) for value in weights.values()}
    of_ours = {id(value) for value in weights.values()}
    for key, path, part in states:
        # Spectral normalisation begins with such a view, which its hook replaces in each pass.
        if key in memory and id(part) not in of_ours and f"{path}_orig" not in weights:
            raise ValueError(
                f"'{path}' is a view of a trained parameter, which a copy would keep at its first "
                "weights: let forward compute it"
            )
