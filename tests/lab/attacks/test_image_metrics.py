"""Likeness of images: numbers that a hand can compute."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fl_dp.lab.attacks.inversion.image_metrics import (
    matched,
    mean_image,
    mse,
    nearest_image,
    psnr,
    ssim,
)

CHECKERED = (np.indices((7, 7)).sum(0) % 2)[np.newaxis].astype(np.float32)  # 24 of 49 are one


def test_a_tenth_of_the_range_everywhere_is_20_decibels() -> None:
    image = np.full((1, 8, 8), 0.4)
    assert mse(image, image + 0.1) == pytest.approx(0.01)
    assert psnr(image, image + 0.1) == pytest.approx(20.0)
    assert psnr(image, image) == math.inf


def test_ssim_of_a_chequered_image_and_its_negative_is_as_computed_by_hand() -> None:
    # One window: means 24/49 and 25/49, both variances 600/2401, covariance -600/2401.
    c1, c2 = Fraction(1, 10_000), Fraction(9, 10_000)
    products, squares = Fraction(1200, 2401), Fraction(24**2 + 25**2, 2401)
    by_hand = (products + c1) / (squares + c1) * (c2 - products) / (products + c2)
    assert float(by_hand) == pytest.approx(-0.995575, abs=1e-6)
    assert ssim(CHECKERED, 1.0 - CHECKERED) == pytest.approx(float(by_hand), rel=1e-9)


def test_recovered_images_are_matched_so_that_their_error_is_least() -> None:
    truth = np.stack([np.full((1, 8, 8), value) for value in (0.0, 0.5, 1.0)])
    recovered = np.stack([np.full((1, 8, 8), value) for value in (0.9, 0.3, 0.1, 0.6)])
    assert matched(recovered, truth).tolist() == [2, 3, 0]
    with pytest.raises(ValueError, match="2 recovered images for 3 true ones"):
        matched(recovered[:2], truth)


def test_a_prior_guesses_the_mean_or_the_nearest_image() -> None:
    images = np.stack([np.full((1, 8, 8), value, np.float32) for value in (0.0, 0.25, 0.5)])
    assert mean_image(images) == pytest.approx(0.25)
    assert nearest_image(images, np.full((1, 8, 8), 0.4)) == pytest.approx(0.5)
