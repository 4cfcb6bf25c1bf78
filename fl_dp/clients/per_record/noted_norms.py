"""LayerNorm and GroupNorm of all records at once, as `noted_layers` runs other layers.

What is noted are each record's gradients of scale and shift themselves, as these are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .clipped_gradients import summed_in


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Inputs `(n, ..., *weight.shape)`.

    Attributes:
        weight: The scale.
        epsilon: Added to each variance.
        bias: The shift; None: it has none.
    """

    weight: Tensor
    epsilon: float
    bias: Tensor | None = None

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return outputs, means and reciprocals of standard deviations."""
        outputs: tuple[Tensor, ...] = torch.native_layer_norm(
            inputs, self.weight.shape, self.weight, self.bias, self.epsilon
        )
        return outputs

    def to_inputs(self, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
        """The inputs' gradient, for the outputs'."""
        gradients: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
            gradient, inputs, self.weight.shape, mean, rstd, self.weight, None, _INPUTS_ALONE
        )
        return gradients[0]

    def noted(
        self, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each record's gradients of scale and shift, `(n, *weight.shape)`."""
        shape = self.weight.shape
        normalized = torch.native_layer_norm(inputs, shape, None, None, self.epsilon)[0]
        scales, shifts = (
            part.reshape(len(inputs), -1, *shape).sum(1, dtype=summed_in(gradient))
            for part in (gradient * normalized, gradient)
        )
        return scales, shifts


@dataclass(frozen=True, eq=False)
class GroupNorm:
    """Inputs `(n, images, channels, ...)`. See `LayerNorm`."""

    weight: Tensor
    groups: int
    epsilon: float
    bias: Tensor | None = None

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return outputs, means and reciprocals of standard deviations."""
        images = _images(inputs)
        outputs, *statistics = torch.native_group_norm(
            images, self.weight, self.bias, *_sizes(images), self.groups, self.epsilon
        )
        # No view, which a model could not write into.
        return torch.ops.aten._unsafe_view(outputs, inputs.shape), *statistics

    def to_inputs(self, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
        """The inputs' gradient, for the outputs'."""
        images = _images(inputs)
        about = (mean, rstd, self.weight, *_sizes(images), self.groups, _INPUTS_ALONE)
        gradients: tuple[Tensor, ...] = torch.ops.aten.native_group_norm_backward(
            _images(gradient), images, *about
        )
        return gradients[0].view(inputs.shape)

    def noted(
        self, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each record's gradients of scale and shift, `(n, channels)`."""
        dtype, (count, images) = summed_in(gradient), inputs.shape[:2]
        products, sums = (
            part.reshape(*mean.shape, -1, inputs.shape[3:].numel()).sum(3, dtype=dtype)
            for part in (gradient * inputs, gradient)
        )
        scales = (products - mean[..., None] * sums) * rstd[..., None]
        if images > 1:
            scales, sums = (part.view(count, images, -1).sum(1) for part in (scales, sums))
        return scales.view(count, -1), sums.view(count, -1)


_INPUTS_ALONE = (True, False, False)
"""Of the inputs', the scale's and the shift's gradient, which ones a kernel computes."""


def _images(rows: Tensor) -> Tensor:
    return rows.flatten(0, 1).contiguous()


def _sizes(images: Tensor) -> tuple[int, int, int]:
    return len(images), images.shape[1], images.shape[2:].numel()


def read_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[LayerNorm, Tensor, Tensor | None]:
    """Return the layer, its inputs and its shift, of a call of PyTorch's function."""
    input, weight = _cast(input, weight)
    return LayerNorm(weight, eps), input, bias


def read_group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[GroupNorm, Tensor, Tensor | None]:
    """Return the layer, its inputs and its shift, of a call of PyTorch's function."""
    input, weight = _cast(input, weight)
    return GroupNorm(weight, num_groups, eps), input, bias


def _cast(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as autocast would give them to the kernel: on a CPU as they are."""
    kind, weight = inputs.device.type, weight.detach()
    if kind != "cpu" and torch.is_autocast_enabled(kind) and inputs.dtype != torch.float64:
        return inputs.float(), weight.float()
    return inputs, weight
