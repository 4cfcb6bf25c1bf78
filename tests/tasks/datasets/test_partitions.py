"""Partitions: a disjoint cover, repeatable, with the heterogeneity that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dp.tasks.datasets import PARTITIONS, client_indices, load_dataset, partition

LABELS = np.random.Generator(np.random.PCG64(0)).integers(0, 10, 1000)
KINDS = pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind != "natural"])


def labels_of(size: int) -> Any:
    return st.lists(st.integers(0, 4), min_size=size, max_size=size).map(
        lambda values: np.array(values, dtype=np.int64)
    )


def check_cover(clients: Sequence[np.ndarray], num_clients: int, num_rows: int) -> None:
    assert len(clients) == num_clients
    assert all(rows.dtype == np.int64 and np.all(np.diff(rows) > 0) for rows in clients)
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(num_rows))


@settings(max_examples=60)
@given(data=st.data())
def test_iid_is_an_even_disjoint_cover(data: Any) -> None:
    num_rows = data.draw(st.integers(1, 60))
    num_clients = data.draw(st.integers(1, num_rows))
    labels = data.draw(labels_of(num_rows))
    clients = partition(labels, num_clients=num_clients, kind="iid", seed=data.draw(st.integers(0)))
    check_cover(clients, num_clients, num_rows)
    sizes = [len(rows) for rows in clients]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60)
@given(data=st.data())
def test_dirichlet_is_a_disjoint_cover(data: Any) -> None:
    num_rows = data.draw(st.integers(0, 60))
    num_clients = data.draw(st.integers(1, 100))
    clients = partition(
        data.draw(labels_of(num_rows)),
        num_clients=num_clients,
        kind="dirichlet",
        alpha=data.draw(st.floats(1e-300, 1e6)),
        seed=data.draw(st.integers(0)),
    )
    check_cover(clients, num_clients, num_rows)


@settings(max_examples=60)
@given(data=st.data())
def test_shards_is_a_disjoint_cover_without_empty_clients(data: Any) -> None:
    num_clients, shards = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    num_rows = data.draw(st.integers(num_clients * shards, 60))
    clients = partition(
        data.draw(labels_of(num_rows)),
        num_clients=num_clients,
        kind="shards",
        shards_per_client=shards,
        seed=data.draw(st.integers(0)),
    )
    check_cover(clients, num_clients, num_rows)
    smallest = num_rows // (num_clients * shards)
    for rows in clients:
        assert shards * smallest <= len(rows) <= shards * (smallest + 1)


@KINDS
def test_the_seed_decides(kind: str) -> None:
    def draw(seed: int) -> Sequence[np.ndarray]:
        return partition(LABELS, num_clients=20, kind=kind, seed=seed)

    assert all(np.array_equal(a, b) for a, b in zip(draw(3), draw(3), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(draw(3), draw(4), strict=True))


@KINDS
def test_the_global_random_state_is_neither_used_nor_changed(kind: str) -> None:
    np.random.seed(1)
    first = partition(LABELS, num_clients=20, kind=kind, seed=0)
    left = np.random.random()
    np.random.seed(1)
    assert np.random.random() == left
    second = partition(LABELS, num_clients=20, kind=kind, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_shards_give_a_client_few_labels() -> None:
    labels = np.tile(np.arange(10), 100)
    clients = partition(labels, num_clients=50, kind="shards", shards_per_client=2, seed=0)
    assert max(len(np.unique(labels[rows])) for rows in clients) <= 2


def test_dirichlet_proportions_have_the_variance_of_the_law() -> None:
    # Dirichlet(alpha) over K clients: variance of a share is (K - 1) / (K^2 (K alpha + 1)).
    labels = np.zeros(1_000, dtype=np.int64)

    def drawn(seed: int) -> list[float]:
        clients = partition(labels, num_clients=5, kind="dirichlet", alpha=0.5, seed=seed)
        return [len(rows) / len(labels) for rows in clients]

    shares = np.array([drawn(seed) for seed in range(400)])
    # Over seeds the estimate's standard error is about 4 %: a fixed draw, well inside 15 %.
    assert shares.var() == pytest.approx(4 / (25 * 3.5), rel=0.15)
    np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=0.04)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "idd"},
        {"kind": "natural"},
        {"kind": "natural", "natural_clients": LABELS, "num_clients": 11},
        {"num_clients": 0},
        {"num_clients": 1001},
        {"kind": "shards", "num_clients": 501},
        {"kind": "shards", "shards_per_client": 0},
        {"kind": "dirichlet", "alpha": 0.0},
        {"kind": "dirichlet", "alpha": float("nan")},
        {"seed": -1},
        {"kind": "dirichlet", "labels": LABELS / 2},
        {"labels": LABELS.reshape(10, 100)},
        {"records_per_client": 1001},
        {"records_per_client": 0},
        {"records_per_client": 7, "kind": "dirichlet"},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"labels": LABELS, "num_clients": 10, "kind": "iid", "seed": 0}
    arguments = usual | changes
    with pytest.raises(ValueError, match=r"write|give|lower|leave"):
        partition(arguments.pop("labels"), **arguments)


def natural(owners: list[int], num_clients: int) -> list[Any]:
    labels, of = np.zeros(len(owners), dtype=np.int64), np.array(owners, dtype=np.int64)
    clients = partition(labels, num_clients=num_clients, kind="natural", seed=0, natural_clients=of)
    return [rows.tolist() for rows in clients]


def test_natural_clients_keep_their_rows_in_the_order_of_their_numbers() -> None:
    assert natural([2, 0, 2, 1, 0], 3) == [[1, 4], [3], [0, 2]]


def test_fewer_natural_clients_are_those_with_the_most_rows() -> None:
    owners = [0, 1, 1, 2, 2, 2, 3, 3]
    assert natural(owners, 1) == [[3, 4, 5]]
    assert natural(owners, 2) == [[1, 2], [3, 4, 5]]  # 1 and 3 tie: the lower number
    assert natural(owners, 3) == [[1, 2], [3, 4, 5], [6, 7]]


def test_a_natural_client_without_records_is_not_counted() -> None:
    assert natural([0, 2, 2], 2) == [[0], [1, 2]]
    with pytest.raises(ValueError, match="names 2 clients with records"):
        natural([0, 2, 2], 3)


def test_client_indices_partition_the_training_part_once_per_process() -> None:
    arguments: dict[str, Any] = {"num_clients": 30, "kind": "dirichlet", "seed": 7, "alpha": 0.3}
    clients = client_indices("digits", **arguments)
    expected = partition(load_dataset("digits").train_y, **arguments)
    assert all(np.array_equal(a, b) for a, b in zip(clients, expected, strict=True))
    assert client_indices("digits", shards_per_client=2, **arguments) is clients
    assert client_indices("digits", **(arguments | {"seed": 8})) is not clients


# A fixed number of records each.


def test_decks_are_shuffled_one_after_the_other_by_the_seed() -> None:
    clients = partition(LABELS, num_clients=300, kind="iid", seed=3, records_per_client=7)
    generator = np.random.Generator(np.random.PCG64(3))
    decks = [np.sort(generator.permutation(1000)[:994].reshape(142, 7)) for _ in range(3)]
    np.testing.assert_array_equal(np.stack(list(clients)), np.concatenate(decks)[:300])


def test_a_natural_client_has_at_most_so_many_of_its_own_records() -> None:
    owner = np.repeat(np.arange(3), [900, 60, 40])
    natural: dict[str, Any] = {"num_clients": 3, "kind": "natural", "natural_clients": owner}
    whole = partition(LABELS, seed=3, **natural)
    capped = partition(LABELS, seed=3, records_per_client=50, **natural)
    assert [len(rows) for rows in capped] == [50, 50, 40]
    for rows, of in zip(capped, whole, strict=True):
        assert np.isin(rows, of).all() and np.all(np.diff(rows) > 0)
    assert capped[0][-1] > 450  # not its first ones
