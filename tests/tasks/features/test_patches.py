"""Patches are what their formula says, window by window, and are drawn of public images alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.features import Encoder, Patches, PublicStatistics, Scattering

SHAPE, SIDE, COUNT = (2, 9, 8), 3, 5


@pytest.fixture
def images() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(60, *SHAPE)).astype(np.float32)


def by_hand(
    image: NDArray[np.float64], state: dict[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The formula in loops: window by window, filter by filter, region by region."""
    _, height, width = image.shape
    rows, columns = height - SIDE + 1, width - SIDE + 1
    similar = np.zeros((COUNT, rows, columns))
    for y in range(rows):
        for x in range(columns):
            window = image[:, y : y + SIDE, x : x + SIDE].ravel()
            window = (window - window.mean()) / np.sqrt(window.var() + state["spread"])
            white = (window - state["mean"]) @ state["whitening"]
            similar[:, y, x] = white @ state["filters"] / np.sqrt(white @ white + state["faint"])
    found = np.zeros((2 * COUNT, 3, 3))
    for place in np.ndindex(3, 3):
        down, across = (
            slice(at * length // 3, -(-(at + 1) * length // 3))
            for at, length in zip(place, (rows, columns), strict=True)
        )
        for number in range(COUNT):
            region = similar[number, down, across]
            for offset, sign in ((0, 1), (COUNT, -1)):
                excess = np.maximum(sign * region - state["threshold"], 0.0)
                found[(number + offset, *place)] = np.sqrt(excess.mean())
    return found


def test_an_image_becomes_what_the_formula_says(images: NDArray[np.float32]) -> None:
    patches = Patches(SHAPE, side=SIDE, count=COUNT).fitted(images)
    state = {name: each.double().numpy() for name, each in patches.state_dict().items()}
    found = patches(torch.from_numpy(images[:4])).numpy()
    assert found.shape == (4, 2 * COUNT, 3, 3)
    wanted = np.stack([by_hand(image.astype(np.float64), state) for image in images[:4]])
    assert np.count_nonzero(wanted) > wanted.size / 2
    np.testing.assert_allclose(found**2, wanted**2, atol=1e-6)
    # What the comparison must notice: the two signs exchanged.
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found**2, np.roll(wanted, COUNT, axis=1) ** 2, atol=1e-3)


def test_scattering_stands_beside_with_as_much_variance(images: NDArray[np.float32]) -> None:
    images = np.repeat(images, 3, axis=0)[:, :, :8]
    both = Patches((2, 8, 8), side=SIDE, count=COUNT, scattering=True).fitted(images)
    alone = Patches((2, 8, 8), side=SIDE, count=COUNT).fitted(images)
    given = torch.from_numpy(images)
    found, compared = both(given), alone(given).flatten(1)
    torch.testing.assert_close(found[:, : 18 * COUNT], compared)
    scattered = torch.nn.functional.group_norm(Scattering((2, 8, 8))(given), 27).flatten(1)
    torch.testing.assert_close(found[:, 18 * COUNT :], both.weight * scattered)
    variances = [part.var(dim=0).sum() for part in found.split([18 * COUNT, scattered.shape[1]], 1)]
    assert float(variances[0] / variances[1]) == pytest.approx(1.0, rel=1e-3)


def test_filters_are_white_public_windows_and_a_third_of_comparisons_count() -> None:
    images = np.asarray(load_dataset("digits").features(slice(0, 200)), np.float32)
    patches = Patches((1, 8, 8), side=3, count=40).fitted(images)
    np.testing.assert_allclose(patches.filters.norm(dim=0), 1.0, atol=1e-5)
    windows = patches._standardised(patches._windows(torch.from_numpy(images))).flatten(0, 1)
    active = patches._similarities(windows).abs() > patches.threshold
    assert float(active.float().mean()) == pytest.approx(0.3, abs=0.03)
    # White up to what is added to each direction; constant windows are no direction.
    white = ((windows - patches.mean) @ patches.whitening).T.cov()
    assert 0.5 < float(torch.linalg.eigvalsh(white)[1:].median()) < 1.1


def test_a_public_image_that_is_no_number_counts_for_nothing(images: NDArray[np.float32]) -> None:
    broken = np.concatenate([images, np.full_like(images[:1], np.nan)])
    first, second = (
        Patches(SHAPE, side=SIDE, count=COUNT).fitted(each) for each in (images, broken)
    )
    assert torch.equal(first.filters, second.filters)


def test_statistics_of_other_features_are_refused(images: NDArray[np.float32]) -> None:
    of_scattering = PublicStatistics(mean=torch.zeros(90))
    with pytest.raises(ValueError, match=r"features\.statistics lacks 'faint'"):
        Encoder(Patches(SHAPE, side=SIDE, count=COUNT), statistics=of_scattering)
    found = Encoder(Patches(SHAPE, side=SIDE, count=COUNT)).fitted(images).statistics
    with pytest.raises(ValueError, match=r"features\.statistics does not fit: 'filters'"):
        Encoder(Patches(SHAPE, side=SIDE, count=COUNT + 1), statistics=found)
    with pytest.raises(ValueError, match="they belong to other features"):
        Encoder(Scattering((2, 9, 8)), statistics=found)(images[:1])
