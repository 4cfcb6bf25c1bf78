"""Random patches of public images as filters: no training and no labels.

    >>> patches = Patches((3, 32, 32), side=6, count=512).fitted(public_images)
    >>> patches(images).shape
    torch.Size([5, 1024, 3, 3])

Each window of an image is standardised, whitened as public windows are, and compared with randomly
drawn public windows. Similarity and dissimilarity beyond a threshold are averaged over nine
regions.

References:
    Coates and Ng 2011, "The Importance of Encoding Versus Training with Sparse Coding and Vector
        Quantization": random patches, whitened, with a two-sided soft threshold.
    Thiry et al. 2021, "The Unreasonable Effectiveness of Patches in Deep Convolutional Kernels
        Methods": the same without labels, and what it is worth.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .scattering import Scattering

REGIONS = 3
"""Regions of an image along either axis."""

_SEED = 0
_WINDOWS = 100_000  # of public images, from which the whitening is computed
_FLAT = 0.01  # of the windows' mean variance, added to each variance
_BUSY = 10.0  # times that: windows with less variance serve neither as filters nor for whitening
_RIDGE = 0.1  # added to the variance of each direction before it is made 1
_FAINT = 0.01  # of the windows' mean square norm, added to each
_ACTIVE = 0.3  # share of comparisons beyond the threshold, on public windows
_GROUPS = 27  # of scattering's channels, each standardised within its image
_WEIGHED = 1000  # public images, by which scattering gets as much variance as comparisons


class Patches(nn.Module):
    """Compares an image's windows with public ones, image by image."""

    spread: Tensor
    mean: Tensor
    whitening: Tensor
    faint: Tensor
    filters: Tensor
    threshold: Tensor
    pooling: Tensor
    weight: Tensor

    def __init__(
        self, input_shape: tuple[int, ...], *, side: int, count: int, scattering: bool = False
    ) -> None:
        """Reserve the filters; `fitted` or `load_state_dict` fills them.

        Args:
            input_shape: `(channels, height, width)`.
            side: Side of a window, in pixels.
            count: Number of filters.
            scattering: Whether to add scattering coefficients.

        Raises:
            ValueError: If such images have no windows for every region.
        """
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < side + REGIONS - 1:
            raise ValueError(
                f"records are of shape {input_shape}; patches of {side} pixels need (channels, "
                f"height, width) with sides of at least {side + REGIONS - 1}"
            )
        self._input_shape, self._side = input_shape, side
        size = input_shape[0] * side**2
        for name, shape in (
            ("spread", ()),
            ("mean", (size,)),
            ("whitening", (size, size)),
            ("faint", ()),
            ("filters", (size, count)),
            ("threshold", ()),
        ):
            self.register_buffer(name, torch.zeros(shape))
        rows, columns = (length - side + 1 for length in input_shape[1:])
        windows = torch.eye(rows * columns).reshape(-1, rows, columns)
        pooling = functional.adaptive_avg_pool2d(windows, REGIONS).flatten(1).T.contiguous()
        self.register_buffer("pooling", pooling, persistent=False)
        self._scattering = Scattering(input_shape) if scattering else None
        if scattering:
            self.register_buffer("weight", torch.zeros(()))

    def fitted(self, public: NDArray[Any]) -> Patches:
        """Return filters and thresholds from public images; the same images give the same ones.

        Args:
            public: Numbers `(n, *input_shape)`; images with a number that is not finite are left
                out.

        Raises:
            ValueError: If fewer windows have some contrast than there are filters.
        """
        patches, generator = deepcopy(self), torch.Generator().manual_seed(_SEED)
        images = torch.from_numpy(np.asarray(public, np.float32))
        images = images[images.flatten(1).isfinite().all(dim=1)]
        windows_each = -(-_WINDOWS // max(len(images), 1))
        drawn = []
        for [windows] in map(patches._windows, torch.split(images, 1)):
            chosen = torch.randint(len(windows), (windows_each,), generator=generator)
            drawn.append(windows[chosen])
        windows = torch.cat([torch.empty(0, len(patches.mean)), *drawn])
        variances = windows.var(dim=1, correction=0)
        patches.spread = _FLAT * variances.mean()
        standardised = patches._standardised(windows)
        busy = standardised[variances > _BUSY * patches.spread]
        count = patches.filters.shape[1]
        if len(busy) < count:
            raise ValueError(
                f"{len(images)} public images have {len(busy)} windows of some contrast among "
                f"{len(windows)}, and features.count={count}: write fewer, or more public images"
            )
        patches.mean = busy.mean(dim=0)
        values, axes = torch.linalg.eigh((busy - patches.mean).T.cov(correction=0))
        patches.whitening = axes / torch.sqrt(values.clamp_min(0.0) + _RIDGE) @ axes.T
        whitened = (busy - patches.mean) @ patches.whitening
        patches.faint = _FAINT * whitened.square().sum(dim=1).mean()
        chosen = whitened[torch.randperm(len(whitened), generator=generator)[:count]]
        patches.filters = functional.normalize(chosen).T.contiguous()
        sample = torch.randperm(len(windows), generator=generator)[:4096]
        similar = patches._similarities(standardised[sample])
        rank = int((1.0 - _ACTIVE) * similar.numel())
        patches.threshold = similar.abs().flatten().sort().values[rank]
        if patches._scattering is not None:
            some = images[:_WEIGHED]
            compared = patches._comparisons(some).var(dim=0).sum().sqrt()
            scattered = patches._scattered(some).var(dim=0).sum().sqrt()
            patches.weight = compared / scattered
        return patches

    def forward(self, images: Tensor) -> Tensor:
        """Compare images, float32 `(n, channels, height, width)`.

        Returns:
            Float32 `(n, 2 * count, 3, 3)`; with scattering `(n, d)`.
        """
        if images.shape[1:] != self._input_shape:
            raise ValueError(
                f"records are of shape {tuple(images.shape[1:])}; these filters are for "
                f"{self._input_shape}"
            )
        compared = self._comparisons(images)
        if self._scattering is None:
            return compared
        return torch.cat([compared.flatten(1), self.weight * self._scattered(images)], dim=1)

    def _comparisons(self, images: Tensor) -> Tensor:
        # One by one on a CPU: similarities of several would leave its cache.
        together = 1 if images.is_cpu else 64
        starts = range(0, len(images), together)
        return torch.cat([self._compared(images[at : at + together]) for at in starts])

    def _scattered(self, images: Tensor) -> Tensor:
        assert self._scattering is not None
        parts = [self._scattering(images[at : at + 16]) for at in range(0, len(images), 16)]
        return functional.group_norm(torch.cat(parts), _GROUPS).flatten(1)

    def _compared(self, images: Tensor) -> Tensor:
        similar = self._similarities(self._standardised(self._windows(images)))
        beyond = functional.softshrink(similar, self.threshold.item())
        difference = self.pooling @ beyond
        sizes = self.pooling @ beyond.abs_()  # in place: a new array takes longer than its sums
        halves = torch.cat([sizes + difference, sizes - difference], dim=2) / 2
        maps = halves.clamp_min_(0.0).sqrt_().transpose(1, 2)
        return maps.reshape(len(images), -1, REGIONS, REGIONS)

    def _windows(self, images: Tensor) -> Tensor:
        """Windows `(n, windows, numbers)` of images."""
        return functional.unfold(images, self._side).transpose(1, 2)

    def _standardised(self, windows: Tensor) -> Tensor:
        """Bring windows to mean 0 and variance 1; windows of little contrast stay below."""
        centred = windows - windows.mean(dim=-1, keepdim=True)
        return centred / torch.sqrt(centred.square().mean(dim=-1, keepdim=True) + self.spread)

    def _similarities(self, standardised: Tensor) -> Tensor:
        """The cosines of windows and filters; smaller for faint windows."""
        whitened = (standardised - self.mean) @ self.whitening
        square = whitened.square().sum(dim=-1, keepdim=True)
        return whitened / torch.sqrt(square + self.faint) @ self.filters
