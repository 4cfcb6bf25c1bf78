"""Likeness of a recovered image to the true one: MSE, PSNR, SSIM. Pixels lie in [0, 1].

`mean_image` and `nearest_image` guess without an update: a recovery no better than these shows
nothing.

Reference:
    Wang et al. 2004, "Image Quality Assessment: From Error Visibility to Structural Similarity",
        equations 13 to 17.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

_WINDOW = 7  # pixels; every weight is the same, as in the usual implementations' default
_C1, _C2 = 0.01**2, 0.03**2  # for pixels between 0 and 1

Image = NDArray[np.floating]
"""Pixels between 0 and 1, `(channels, height, width)`."""


def mse(image: Image, other: Image) -> float:
    """The pixels' mean squared difference."""
    return float(np.mean((_wide(image) - _wide(other)) ** 2))


def psnr(image: Image, other: Image) -> float:
    """The peak signal-to-noise ratio in decibels; infinite for equal images."""
    error = mse(image, other)
    return math.inf if error == 0.0 else -10.0 * math.log10(error)


def ssim(image: Image, other: Image) -> float:
    """The mean structural similarity over all windows of 7x7 pixels and all channels.

    1 for equal images; about 0 for unrelated ones; below for the reverse.

    Raises:
        ValueError: If a side has fewer than 7 pixels, or the shapes differ.
    """
    if image.shape != other.shape or image.ndim != 3 or min(image.shape[1:]) < _WINDOW:
        raise ValueError(
            f"SSIM needs two images (channels, height, width) with sides of at least {_WINDOW}, "
            f"got {image.shape} and {other.shape}"
        )
    x, y = _windows(image), _windows(other)
    mean_x, mean_y = x.mean((-2, -1)), y.mean((-2, -1))
    var_x = (x * x).mean((-2, -1)) - mean_x**2
    var_y = (y * y).mean((-2, -1)) - mean_y**2
    covariance = (x * y).mean((-2, -1)) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    structure = (2 * covariance + _C2) / (var_x + var_y + _C2)
    return float((luminance * structure).mean())


def matched(recovered: NDArray[np.floating], truth: NDArray[np.floating]) -> NDArray[np.int64]:
    """The index of the recovered image to compare each true one with, int64 `(n,)`.

    Attacks do not know a batch's order. Each of n true images gets one of at least n recovered
    ones, all `(channels, height, width)`, with the least sum of squared differences: in the
    attack's favour.

    Raises:
        ValueError: If there are fewer recovered than true images.
    """
    if len(recovered) < len(truth):
        raise ValueError(f"{len(recovered)} recovered images for {len(truth)} true ones")
    costs = [[mse(image, guess) for guess in recovered] for image in truth]
    _, columns = linear_sum_assignment(np.asarray(costs))
    return columns.astype(np.int64)


def mean_image(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of images `(n, channels, height, width)` of the private ones' kind.

    Of guesses without an update it has the least expected MSE.
    """
    mean: NDArray[np.float32] = images.mean(0, dtype=np.float64).astype(np.float32)
    return mean


def nearest_image(images: NDArray[np.float32], private: Image) -> NDArray[np.float32]:
    """The image with the least MSE to a private one.

    Only an adversary that knows the private image could choose it. So a recovery that beats it
    shows this image, not merely one of its kind.
    """
    differences = images - private.astype(np.float32)
    squares = np.einsum("nchw,nchw->n", differences, differences)
    nearest: NDArray[np.float32] = images[int(squares.argmin())]
    return nearest


def _windows(image: Image) -> NDArray[np.float64]:
    return sliding_window_view(_wide(image), (_WINDOW, _WINDOW), axis=(1, 2))


def _wide(image: Image) -> NDArray[np.float64]:
    return np.asarray(image, dtype=np.float64)
