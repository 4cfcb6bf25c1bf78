"""Scattering transform of images: order 2, Morlet wavelets, two scales, eight angles; no training.

    >>> Scattering((1, 28, 28))(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 81, 7, 7])

Filters, padding and the order of the channels are those of kymatio 0.3.0.

References:
    Bruna and Mallat 2013, "Invariant Scattering Convolution Networks".
    Tramer and Boneh 2021, "Differentially Private Learning Needs Better Features (or Much More
        Data)": these features under a linear model trained by DP-SGD.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

ANGLES = 8
STRIDE = 4
"""Pixels of the image per pixel of the result, along either axis."""

_SMALLEST = 8  # for smaller images the padding would be wider than the image
_NEGLIGIBLE = 1e-12  # of a filter: denormal numbers would take most of the time
_PI = 3.1415  # kymatio's constant in the norm of a filter


class Scattering(nn.Module):
    """Scattering transform of images of one shape, image by image."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        """Make the filters for images `(channels, height, width)`, sides of at least 8.

        Raises:
            ValueError: If the shape is another.
        """
        super().__init__()
        self._input_shape = require_images(input_shape)
        padded = [side // STRIDE * STRIDE + 2 * STRIDE for side in input_shape[1:]]
        margins = [(p - side, side) for p, side in zip(padded, input_shape[1:], strict=True)]
        # The last axis first, as torch orders them.
        self._pad: list[int] = []
        for margin, _ in reversed(margins):
            self._pad += [margin // 2, (margin + 1) // 2]
        for scale in range(2):
            bank = np.stack([_morlet(padded, scale, angle) for angle in range(ANGLES)])
            self.register_buffer(f"wavelets_{scale}", torch.tensor(bank, dtype=torch.float32))
            for axis, side in enumerate(padded):
                smooth = torch.tensor(_smoothing(side, scale), dtype=torch.float32)
                self.register_buffer(f"smoothing_{scale}_{axis}", smooth)

    def forward(self, images: Tensor) -> Tensor:
        """Transform images, float32 `(n, channels, height, width)`.

        Returns:
            Float32 `(n, 81 * channels, height // 4, width // 4)`.
        """
        if images.shape[1:] != self._input_shape:
            raise ValueError(
                f"records are of shape {tuple(images.shape[1:])}; these filters are for "
                f"{self._input_shape}"
            )
        padded = functional.pad(images, self._pad, mode="reflect")
        fourier = torch.fft.fft2(padded).unsqueeze(2)
        fine = torch.fft.ifft2(fourier * self.wavelets_0).abs()
        coarse = torch.fft.ifft2(_halved(fourier * self.wavelets_1)).abs()
        moduli = torch.fft.fft2(fine)
        second = torch.fft.ifft2(_halved(moduli.unsqueeze(3) * self.wavelets_1)).abs()
        smooth = [
            self._smoothed(padded.unsqueeze(2), 0),
            self._smoothed(fine, 0),
            self._smoothed(torch.cat([coarse, second.flatten(2, 3)], dim=2), 1),
        ]
        return torch.cat(smooth, dim=2).flatten(1, 2)

    def _smoothed(self, maps: Tensor, scale: int) -> Tensor:
        rows, columns = (self.get_buffer(f"smoothing_{scale}_{axis}") for axis in range(2))
        return rows @ maps @ columns.T


def require_images(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of records, if they can be transformed.

    Raises:
        ValueError: If they are no images with sides of at least 8.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < _SMALLEST:
        raise ValueError(
            f"records are of shape {input_shape}; scattering needs (channels, height, width) with "
            f"sides of at least {_SMALLEST}"
        )
    return input_shape


def _halved(fourier: Tensor) -> Tensor:
    """Take every second sample along both axes, in the Fourier domain."""
    upper, lower = fourier.chunk(2, dim=-2)
    left, right = (upper + lower).chunk(2, dim=-1)
    return (left + right) / 4


def _gabor(padded: list[int], scale: int, theta: float, frequency: float) -> NDArray[np.complex128]:
    """A periodic Gaussian times a plane wave, of `padded` samples."""
    sigma, slant = 0.8 * 2**scale, 4.0 / ANGLES
    cosine, sine = math.cos(theta), math.sin(theta)
    total = np.zeros(padded, np.complex128)
    rows, columns = np.indices(padded)
    for shift in np.ndindex(5, 5):
        y, x = (
            axis + (step - 2) * side
            for axis, step, side in zip((rows, columns), shift, padded, strict=True)
        )
        along, across = cosine * y + sine * x, slant * (cosine * x - sine * y)
        total += np.exp(-(along**2 + across**2) / (2 * sigma**2) + 1j * frequency * along)
    normed: NDArray[np.complex128] = total / (2 * _PI * sigma**2 / slant)
    return normed


def _morlet(padded: list[int], scale: int, angle: int) -> NDArray[np.float64]:
    """A wavelet of mean zero in the Fourier domain, where it is real."""
    theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    wave = _gabor(padded, scale, theta, 3 / 4 * math.pi / 2**scale)
    envelope = _gabor(padded, scale, theta, 0.0)
    fourier = np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real
    return np.where(np.abs(fourier) < _NEGLIGIBLE, 0.0, fourier)


def _smoothing(side: int, scale: int) -> NDArray[np.float64]:
    """A matrix that smooths one axis, keeps every fourth sample and drops the margin.

    The padded image has `side` samples; a map has as many at scale 0, half as many at scale 1.
    """
    sigma = 1.6
    shifts = np.arange(side)[:, None] + side * np.arange(-2, 3)
    fourier = np.fft.fft(np.exp(-(shifts**2) / (2 * sigma**2)).sum(axis=1)).real
    fourier /= math.sqrt(2 * _PI * sigma**2)
    length = side >> scale
    if scale:  # kymatio keeps the low band and cuts the rest
        fourier = np.concatenate([fourier[: side // 4], fourier[side - side // 4 :]])
    kernel = np.fft.ifft(fourier).real
    step = STRIDE >> scale
    samples = np.arange(1, side // STRIDE - 1) * step
    rows: NDArray[np.float64] = kernel[(samples[:, None] - np.arange(length)) % length]
    return rows
