"""A vector is a function of its own record and of public things, and has norm 1 or is zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.features import Encoder, Patches, PublicStatistics, Scattering


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    return np.asarray(load_dataset("digits").features(slice(0, 240)), np.float32)


def plain(name: str) -> Encoder:
    """An encoder before it has seen a public image."""
    if name != "scattering":
        both = name == "both"
        return Encoder(Patches((1, 8, 8), side=3, count=12, scattering=both))
    return Encoder(Scattering((1, 8, 8)), group_norm=27)


@pytest.fixture(scope="module", params=["scattering", "patches", "both"])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def encoder(name: str, images: NDArray[np.float32]) -> Encoder:
    return plain(name).fitted(images[200:], project=20, shrink=5)


def test_vectors_have_norm_one(encoder: Encoder, images: NDArray[np.float32]) -> None:
    vectors = encoder(images)
    assert vectors.shape == (240, 20)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 3e38, 1e30, 0.0])
def test_one_record_changes_one_vector_whatever_is_in_it(
    encoder: Encoder, images: NDArray[np.float32], value: float
) -> None:
    """So whoever adds, removes or changes a record moves a sum over records by that record alone.

    To the bit: sensitivity is what it was for records as they are.
    """
    before = encoder(images[:100])
    changed = images[:100].copy()
    changed[37] = value
    after = encoder(changed)
    others = np.arange(100) != 37
    np.testing.assert_array_equal(after[others], before[others])
    norm = np.linalg.norm(after[37])
    assert norm == pytest.approx(1.0, abs=1e-5) or norm == 0.0
    assert norm == 0.0 or np.isfinite(value)


class Picky(nn.Module):
    """A network of somebody's that looks at what it is given."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.isnan().any():
            raise RuntimeError("no number")
        return images.flatten(1) + 1.0


def test_a_record_that_the_network_fails_on_is_zeros_and_changes_no_other(
    images: NDArray[np.float32],
) -> None:
    encoder = Encoder(Picky())
    before = encoder(images[:40])
    changed = images[:40].copy()
    changed[[3, 38]] = np.nan
    after = encoder(changed)
    assert not after[[3, 38]].any()
    others = np.delete(np.arange(40), [3, 38])
    np.testing.assert_array_equal(after[others], before[others])


def test_a_vector_does_not_depend_on_how_many_records_there_are(
    encoder: Encoder, images: NDArray[np.float32]
) -> None:
    together = encoder(images[:41])
    np.testing.assert_array_equal(encoder(images[:7]), together[:7])
    assert encoder(images[:0]).shape == (0, 20)


def test_threads_change_no_bit(
    encoder: Encoder, images: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors are those of one batch after another in this thread, as no thread shares one."""
    monkeypatch.setattr("fl_dp.tasks.features.encoder.usable_processors", lambda: 3)
    threads = torch.get_num_threads()
    vectors = encoder(images[:100])
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    try:
        alone = [encoder._vectors(some)[:count] for some, count in encoder._batches(images[:100])]
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(vectors, torch.cat(alone).numpy())


class Tiny(nn.Module):
    """A network that shows whether products below the smallest normal number are zero."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        product = torch.full((len(images), 8), 1e-30) * 1e-10
        return torch.cat([torch.ones(len(images), 1), (product != 0.0).float()], dim=1)


def test_denormal_numbers_are_zeros_for_the_network_and_for_nothing_else(
    images: NDArray[np.float32],
) -> None:
    """They would take most of the time; noise of this process is drawn as ever."""
    flushes = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    if not flushes:
        pytest.skip("this processor can't take denormal numbers for zeros")
    np.testing.assert_array_equal(Encoder(Tiny())(images[:40])[:, 1:], 0.0)
    assert (torch.full((8,), 1e-30) * 1e-10 != 0.0).all()
    assert (np.full(8, 1e-300) * 1e-10 != 0.0).all()


def test_records_of_another_shape_are_an_error(encoder: Encoder) -> None:
    with pytest.raises(ValueError):
        encoder(np.zeros((2, 1, 12, 12), np.float32))
    larger = Encoder(Scattering((1, 12, 12)), statistics=encoder.statistics)
    with pytest.raises(ValueError, match="they belong to other features"):
        larger(np.zeros((2, 1, 12, 12), np.float32))


# Public statistics.


def test_directions_are_principal_and_the_first_are_shrunk() -> None:
    vectors = torch.randn(500, 30, generator=torch.Generator().manual_seed(1))
    vectors = vectors * torch.arange(30, 0, -1) + 7.0
    centred = vectors - vectors.mean(dim=0)
    _, deviations, _ = torch.linalg.svd(centred, full_matrices=False)
    found = PublicStatistics.fit(vectors, project=12)
    assert found.applied(vectors).norm(dim=0).tolist() == pytest.approx(
        deviations[:12].tolist(), rel=1e-3
    )
    shrunk = PublicStatistics.fit(vectors, project=12, shrink=5).applied(vectors).norm(dim=0)
    expected = [deviations[4].item()] * 5 + deviations[5:12].tolist()
    assert shrunk.tolist() == pytest.approx(expected, rel=1e-3)
    assert found.applied(vectors).mean(dim=0).abs().max() < 1e-3


def test_they_are_the_same_in_each_process_and_leave_torch_s_generator_alone() -> None:
    vectors = torch.randn(60, 20, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(5)
    first = PublicStatistics.fit(vectors, project=6).directions
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    second = PublicStatistics.fit(vectors, project=6).directions
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


def test_a_public_record_that_is_no_number_counts_for_nothing(
    images: NDArray[np.float32],
) -> None:
    plain = Encoder(Scattering((1, 8, 8)))
    broken = np.concatenate([images[:30], np.full((1, 1, 8, 8), np.nan, np.float32)])
    np.testing.assert_array_equal(
        plain.fitted(broken, project=3)(images), plain.fitted(images[:30], project=3)(images)
    )


def test_a_file_holds_them_for_others(
    tmp_path: Path, name: str, encoder: Encoder, images: NDArray[np.float32]
) -> None:
    assert encoder.statistics is not None
    encoder.statistics.save(tmp_path / "features.safetensors")
    read = PublicStatistics.read(tmp_path / "features.safetensors")
    elsewhere = plain(name).with_statistics(read)
    np.testing.assert_array_equal(elsewhere(images), encoder(images))


@pytest.mark.parametrize(
    "arrays",
    [
        {"weight": torch.zeros(3)},
        {"mean": torch.zeros(3), "directions": torch.zeros(4, 2)},
        {"mean": torch.zeros(3, 3)},
        {"mean": torch.zeros(3), "directions": torch.zeros(3, 2), "more": torch.zeros(1)},
        {"mean": torch.tensor([0.0, torch.nan])},
    ],
)
def test_another_file_is_refused(tmp_path: Path, arrays: dict[str, torch.Tensor]) -> None:
    save_file(arrays, tmp_path / "file")
    with pytest.raises(ValueError, match=r"holds no statistics of features|not finite"):
        PublicStatistics.read(tmp_path / "file")
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x00.")
    with pytest.raises(ValueError, match="is no safetensors file"):
        PublicStatistics.read(tmp_path / "pickle")
