"""Splits of a training set over simulated clients.

A partition belongs to the simulation, not to the privacy mechanism. Its own seeded generator makes
a run repeatable; no global random state changes.

References:
    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", section 3: "iid" and "shards".
    Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
        Classification": the Dirichlet concentration alpha as the measure of heterogeneity.
    Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks", section
        4: "dirichlet" as here, each class's proportions drawn over the clients. Hsu et al. draw
        each client's over the classes, with clients of equal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.data_source import DataSource, load_dataset, source_of

PARTITIONS = ("iid", "dirichlet", "shards", "natural")

# Above it the split is even to a rounding error, and numpy's gamma draws start to overflow.
_MAX_ALPHA = 1e6


def partition(
    labels: NDArray[Any],
    *,
    num_clients: int,
    kind: str,
    seed: int,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    records_per_client: int | None = None,
    natural_clients: NDArray[np.int64] | None = None,
    persons: NDArray[np.int64] | None = None,
) -> Sequence[NDArray[np.int64]]:
    """Split the rows of a data set over clients.

    Args:
        labels: Each row's label, integers `(n,)`; except for "dirichlet" also numbers.
        num_clients: Number of clients.
        kind: "iid" deals the rows evenly; "dirichlet" draws each class's proportions over the
            clients from a symmetric Dirichlet(alpha); "shards" sorts by label, cuts into
            `num_clients * shards_per_client` even shards and deals these; "natural" leaves each
            row with the client that the data set names.
        seed: At least 0. The same arguments give the same partition.
        alpha: Concentration for "dirichlet"; the smaller, the fewer clients share a class.
        shards_per_client: Number of shards per client for "shards".
        records_per_client: Rows of every client for "iid"; upper bound for "natural", drawn from
            its own rows. None deals out all rows. No client has a row twice. "iid" leaves out
            surplus rows; if rows run out, it shuffles and deals them again, so clients share some.
        natural_clients: Each row's client for "natural", int64 `(n,)`.
        persons: Each row's person, int64 `(n,)`: "iid" deals persons evenly, with all their rows.
            None: everybody has one row.

    Returns:
        Each client's row numbers, sorted int64: together every row exactly once, unless
        `records_per_client` is given or fewer natural clients are taken. Under "dirichlet" a
        client may be empty, and clients may outnumber rows. Under "natural" clients are in the
        order of their numbers and none is empty; a smaller `num_clients` takes those with most
        rows (ties: the lower number).

    Raises:
        ValueError: If an argument is out of range, there are too few rows or persons for each
            client ("iid") or shard ("shards") to have one, or too few natural clients; or rows of
            one person would go to several clients.
    """
    labels = np.asarray(labels)
    _check(labels, num_clients, kind, seed, alpha, shards_per_client, records_per_client)
    if persons is not None:
        _require_whole_persons(persons, num_clients, kind, records_per_client)
    if records_per_client is not None and kind == "iid":
        return _EqualShares(len(labels), num_clients, records_per_client, seed)
    generator = np.random.Generator(np.random.PCG64(seed))
    if kind == "natural":
        owner = _natural(natural_clients, num_clients)
        if persons is not None:
            _require_at_one_client(persons, owner, num_clients)
    elif kind == "iid" and persons is not None:
        names, person = np.unique(persons, return_inverse=True)
        owner = _iid(len(names), num_clients, generator)[person]
    elif kind == "iid":
        owner = _iid(len(labels), num_clients, generator)
    elif kind == "dirichlet":
        owner = _dirichlet(labels, num_clients, alpha, generator)
    else:
        owner = _shards(labels, num_clients, shards_per_client, generator)
    # A stable sort leaves the rows of one client in ascending order.
    rows = np.argsort(owner, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(owner, minlength=num_clients)[:num_clients])
    parts = [
        rows[start:end] for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
    ]
    if records_per_client is None:
        return parts
    return [np.sort(generator.permutation(part)[:records_per_client]) for part in parts]


def client_indices(
    source: DataSource | str,
    *,
    num_clients: int,
    kind: str,
    seed: int,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    records_per_client: int | None = None,
) -> Sequence[NDArray[np.int64]]:
    """Partition the training part of a data set, or of that with a name, once per process.

    The other arguments are those of `partition`. The same arguments give the same object.

    Returns:
        Each client's training rows, sorted, read-only int64.
    """
    return _partition_once(
        source_of(source),
        num_clients=num_clients,
        kind=kind,
        seed=seed,
        alpha=alpha,
        shards_per_client=shards_per_client,
        records_per_client=records_per_client,
    )


# A process serves one experiment or a few; 6,000 clients of 60,000 rows are about 1 MB.
@lru_cache(maxsize=8)
def _partition_once(source: DataSource, **split: Any) -> Sequence[NDArray[np.int64]]:
    loaded = load_dataset(source)
    parts = partition(
        loaded.train_y,
        natural_clients=loaded.train_clients,
        persons=loaded.train_persons,
        **split,
    )
    if isinstance(parts, _EqualShares):
        return parts
    for rows in parts:
        rows.setflags(write=False)
    return tuple(parts)


def _iid(num_rows: int, num_clients: int, generator: np.random.Generator) -> NDArray[np.int64]:
    owner = np.arange(num_rows, dtype=np.int64) % num_clients
    generator.shuffle(owner)
    return owner


class _EqualShares(Sequence[NDArray[np.int64]]):
    """The same number of rows for each client, from as many shuffled decks as needed.

    Millions of clients are dealt on first use, and stored in as few bytes as possible.
    """

    def __init__(self, num_rows: int, num_clients: int, size: int, seed: int) -> None:
        self._num_rows, self._num_clients = num_rows, num_clients
        self._size, self._seed = size, seed

    def __len__(self) -> int:
        return self._num_clients

    def __getitem__(self, client: Any) -> Any:
        rows = np.sort(self._dealt[client]).astype(np.int64)
        rows.setflags(write=False)
        return rows

    @cached_property
    def _dealt(self) -> NDArray[np.unsignedinteger[Any]]:
        generator = np.random.Generator(np.random.PCG64(self._seed))
        smallest = np.min_scalar_type(self._num_rows - 1)
        dealt = np.empty((self._num_clients, self._size), dtype=smallest)
        # All from one deck: no client has a row twice.
        shares = self._num_rows // self._size
        for start in range(0, len(dealt), shares):
            chunk = dealt[start : start + shares]
            deck = generator.permutation(self._num_rows)
            chunk[:] = deck[: chunk.size].reshape(chunk.shape)
        return dealt


def _dirichlet(
    labels: NDArray[np.int64], num_clients: int, alpha: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(num_clients, alpha))
        ends = np.floor(np.cumsum(proportions) * len(members)).astype(np.int64)
        # The proportions sum to one except for rounding; the last client gets the rest.
        ends = np.minimum(ends, len(members))
        ends[-1] = len(members)
        owner[members] = np.repeat(np.arange(num_clients), np.diff(ends, prepend=0))
    return owner


def _shards(
    labels: NDArray[Any],
    num_clients: int,
    shards_per_client: int,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    num_shards = num_clients * shards_per_client
    owner_of_shard = generator.permutation(np.arange(num_shards) % num_clients)
    shard = np.arange(len(labels)) * num_shards // len(labels)
    owner = np.empty(len(labels), dtype=np.int64)
    owner[np.argsort(labels, kind="stable")] = owner_of_shard[shard]
    return owner


def _natural(natural_clients: NDArray[np.int64] | None, num_clients: int) -> NDArray[np.int64]:
    """Each row's client; `num_clients` for rows of clients that are left out."""
    if natural_clients is None:
        raise ValueError(
            "the data set names no clients, so there is no partition 'natural'; write 'iid', "
            "'dirichlet' or 'shards' (in a table of your own, task.client_column names them)"
        )
    names, client, sizes = np.unique(natural_clients, return_inverse=True, return_counts=True)
    if num_clients > len(names):
        raise ValueError(
            f"num_clients is {num_clients} but the data set names {len(names)} clients with "
            f"records; write at most {len(names)}"
        )
    chosen = np.sort(np.argsort(-sizes, kind="stable")[:num_clients])
    number = np.full(len(names), num_clients, dtype=np.int64)
    number[chosen] = np.arange(num_clients)
    owner: NDArray[np.int64] = number[client]
    return owner


def _require_whole_persons(
    persons: NDArray[np.int64], num_clients: int, kind: str, records_per_client: int | None
) -> None:
    """Refuse partitions that deal out rows, and not persons."""
    if kind not in ("iid", "natural") or records_per_client is not None:
        key = "records_per_client" if records_per_client is not None else f"partition {kind!r}"
        raise ValueError(
            f"{key} deals out rows, and a person's rows (task.person_column) stay together: write "
            "partition 'iid' or 'natural', without records_per_client"
        )
    number = len(np.unique(persons))
    if kind == "iid" and num_clients > number:
        raise ValueError(
            f"num_clients is {num_clients} but there are {number} persons; write at most {number}"
        )


def _require_at_one_client(
    persons: NDArray[np.int64], owner: NDArray[np.int64], num_clients: int
) -> None:
    """Refuse rows of one person at several of the chosen clients."""
    pairs = np.unique(np.stack([persons, owner])[:, owner < num_clients], axis=1)
    _, clients = np.unique(pairs[0], return_counts=True)
    if divided := int((clients > 1).sum()):
        raise ValueError(
            f"{divided} persons have rows at several clients, and would be a unit at each: write "
            "one client a person into task.client_column, or partition 'iid'"
        )


def _check(
    labels: NDArray[Any],
    num_clients: int,
    kind: str,
    seed: int,
    alpha: float,
    shards_per_client: int,
    records_per_client: int | None,
) -> None:
    if kind not in PARTITIONS:
        raise ValueError(f"unknown partition {kind!r}; write one of {', '.join(PARTITIONS)}")
    kinds = np.integer if kind == "dirichlet" else np.number
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, kinds):
        raise ValueError(
            f"labels are {labels.dtype} of shape {labels.shape}; give integers of shape (n,)"
        )
    if num_clients < 1:
        raise ValueError(f"num_clients is {num_clients}; write at least 1")
    if seed < 0:
        raise ValueError(f"seed is {seed}; write at least 0")
    if records_per_client is not None:
        if kind not in ("iid", "natural"):
            raise ValueError(
                f"records_per_client is for partition 'iid' or 'natural', got '{kind}': leave it "
                "out"
            )
        if not 1 <= records_per_client <= len(labels):
            raise ValueError(
                f"records_per_client is {records_per_client} and there are {len(labels)} records; "
                f"write 1 to {len(labels)}"
            )
    elif kind == "iid" and num_clients > len(labels):
        raise ValueError(
            f"num_clients is {num_clients} but there are {len(labels)} records; "
            f"write at most {len(labels)}, or partition 'dirichlet', "
            "which allows empty clients, or records_per_client, which deals out records again"
        )
    if kind == "dirichlet" and not 0 < alpha <= _MAX_ALPHA:
        raise ValueError(
            f"alpha is {alpha}; write a number above 0 and at most {_MAX_ALPHA:g}, "
            "or partition 'iid' for an even split"
        )
    if kind == "shards":
        if shards_per_client < 1:
            raise ValueError(f"shards_per_client is {shards_per_client}; write at least 1")
        if num_clients * shards_per_client > len(labels):
            raise ValueError(
                f"num_clients is {num_clients} and shards_per_client {shards_per_client}, "
                f"{num_clients * shards_per_client} shards for {len(labels)} records; "
                f"lower one of them until their product is at most {len(labels)}"
            )
