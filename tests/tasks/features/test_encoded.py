"""Encoded data sets: kept under a digest of encoder and records, for the user alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_dp.tasks.datasets import Dataset, DataSource, client_indices, load_dataset
from fl_dp.tasks.datasets.held_out import with_public_part
from fl_dp.tasks.features import Encoder, Scattering
from fl_dp.tasks.features.encoded import encoded, fitted


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fl-dp/features"


@pytest.fixture
def digits() -> Dataset:
    whole = load_dataset("digits")
    return replace(
        whole,
        train_x=whole.train_x[:50],
        train_y=whole.train_y[:50],
        test_x=whole.test_x[:20],
        test_y=whole.test_y[:20],
    )


class Asked:
    """Counts how often an encoder was needed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Encoder:
        self.times += 1
        return Encoder(Scattering((1, 8, 8)), group_norm=27)


def test_records_become_their_vectors_and_the_rest_stays(digits: Dataset) -> None:
    found = encoded(digits, Asked(), "a")
    expected = Asked()()
    np.testing.assert_array_equal(found.train_x, expected(digits.features(slice(None))))
    np.testing.assert_array_equal(
        found.features(slice(None), "test"), expected(digits.features(slice(None), "test"))
    )
    assert found.form == (((324,)), 10, None)
    np.testing.assert_array_equal(found.train_y, digits.train_y)
    assert not found.train_x.flags.writeable


def test_they_are_computed_once_and_again_for_other_records_or_another_encoder(
    digits: Dataset, cache: Path
) -> None:
    asked = Asked()
    first = encoded(digits, asked, "a")
    np.testing.assert_array_equal(encoded(digits, asked, "a").train_x, first.train_x)
    assert asked.times == 1
    encoded(digits, asked, "b")
    assert asked.times == 2
    changed = digits.train_x.copy()
    changed[3, 0, 2, 2] += 0.25
    other = encoded(replace(digits, train_x=changed), asked, "a")
    assert asked.times == 3
    assert not np.array_equal(other.train_x[3], first.train_x[3])
    np.testing.assert_array_equal(other.train_x[4:], first.train_x[4:])
    encoded(replace(digits, test_x=digits.test_x[::-1]), asked, "a")
    assert asked.times == 4
    assert len(list(cache.glob("*.npy"))) == 4


def test_nobody_else_reads_them(digits: Dataset, cache: Path) -> None:
    encoded(digits, Asked(), "a")
    [file] = cache.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"torn"])
def test_a_torn_file_is_made_again(digits: Dataset, cache: Path, content: bytes) -> None:
    first = np.array(encoded(digits, Asked(), "a").train_x)
    [file] = cache.iterdir()
    file.unlink()  # the mapping of before stays as it was
    file.write_bytes(content)
    np.testing.assert_array_equal(encoded(digits, Asked(), "a").train_x, first)


def test_of_somebody_s_own_data_only_the_last_are_kept(digits: Dataset, cache: Path) -> None:
    encoded(digits, Asked(), "a")
    encoded(digits, Asked(), "a", only_for="/srv/clinic")
    before = set(cache.iterdir())
    fewer = replace(digits, train_x=digits.train_x[:9], train_y=digits.train_y[:9])
    encoded(fewer, Asked(), "a", only_for="/srv/clinic")
    assert len(before) == len(set(cache.iterdir())) == 2
    assert len(before & set(cache.iterdir())) == 1


# The public part.


def test_the_public_part_is_no_client_s() -> None:
    whole = load_dataset("digits")
    split = load_dataset(DataSource("digits", public=400))
    assert split.public_x is not None
    assert (len(split.public_x), len(split.train_y)) == (400, len(whole.train_y) - 400)
    every = np.concatenate([split.public_x, split.train_x]).reshape(len(whole.train_y), -1)
    np.testing.assert_array_equal(
        np.unique(every, axis=0),
        np.unique(whole.train_x.reshape(len(whole.train_y), -1), axis=0),
    )
    public = {image.tobytes() for image in split.public_x}
    for kind in ("iid", "dirichlet", "shards"):
        parts = client_indices(DataSource("digits", public=400), num_clients=7, kind=kind, seed=3)
        rows = np.concatenate(parts)
        assert sorted(rows) == list(range(len(split.train_y)))
        assert not public & {split.train_x[row].tobytes() for row in rows}
    np.testing.assert_array_equal(split.test_x, whole.test_x)
    assert load_dataset(DataSource("digits", public=0)) is whole


def test_the_public_part_follows_no_label_and_takes_the_clients_along() -> None:
    whole = load_dataset("digits")
    clients = np.arange(len(whole.train_y)) % 5
    named = replace(whole, train_clients=clients, client_names=tuple("abcde"))
    shuffled = replace(named, train_y=whole.train_y[::-1].copy())
    first, second = with_public_part(named, 300), with_public_part(shuffled, 300)
    assert first.public_x is not None
    assert second.public_x is not None
    np.testing.assert_array_equal(first.public_x, second.public_x)
    assert first.train_clients is not None
    at = {image.tobytes(): client for image, client in zip(whole.train_x, clients, strict=True)}
    assert [at[image.tobytes()] for image in first.train_x] == first.train_clients.tolist()
    with pytest.raises(ValueError, match=r"write a smaller features\.public"):
        with_public_part(whole, len(whole.train_y))


def test_statistics_are_of_the_public_part_alone(digits: Dataset) -> None:
    public = with_public_part(digits, 30)
    plain = Encoder(Scattering((1, 8, 8)))
    first = fitted(plain, public, "a", project=4, shrink=2).statistics
    moved = replace(public, train_x=np.zeros_like(public.train_x), test_x=public.test_x * 0)
    second = fitted(plain, moved, "b", project=4, shrink=2).statistics
    kept = fitted(plain, public, "a", project=4, shrink=2).statistics
    assert first is not None
    assert second is not None
    assert kept is not None
    assert first.mean.equal(second.mean)
    assert first.mean.equal(kept.mean)
    assert first.directions is not None
    assert second.directions is not None
    assert first.directions.equal(second.directions)
