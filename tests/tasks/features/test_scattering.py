"""Scattering is kymatio's, image by image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fl_dp.tasks.features.scattering import Scattering

STORED = np.loadtxt(Path(__file__).with_name("kymatio.txt"), dtype=np.float32)


def image(height: int, width: int) -> torch.Tensor:
    """The image that kymatio was given."""
    row, column = np.indices((height, width))
    pixels = ((7 * row * row + 3 * row * column + 5 * column) % 17) / 16
    return torch.tensor(pixels, dtype=torch.float32)[None, None]


def test_coefficients_are_those_of_kymatio() -> None:
    of_small = Scattering((1, 12, 8))(image(12, 8))[0]
    assert of_small.shape == (81, 3, 2)
    np.testing.assert_allclose(of_small.flatten(1), STORED[:, :6], atol=1e-6)
    of_large = Scattering((1, 28, 28))(image(28, 28))[0]
    assert of_large.shape == (81, 7, 7)
    found = of_large[:, [0, 3, 6], [0, 3, 2]]
    np.testing.assert_allclose(found, STORED[:, 6:], atol=1e-6)
    # What the comparison must notice: another order of the angles.
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found.flip(0), STORED[:, 6:], atol=2e-5)


def test_colours_are_transformed_one_by_one() -> None:
    images = torch.rand(2, 3, 9, 10, generator=torch.Generator().manual_seed(0))
    together = Scattering((3, 9, 10))(images)
    alone = [Scattering((1, 9, 10))(images[:, [colour]]) for colour in range(3)]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), atol=1e-6, rtol=0)
