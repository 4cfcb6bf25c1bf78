"""Held-out rows of a table: the same share of each label, the same rows in every run.

The rows are those of scikit-learn's `train_test_split(..., stratify=labels)`, whose import of
SciPy's statistics would cost each worker's start a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.updates.shared_part import matching

# Public and fixed, so that runs with different seeds are tested on the same rows.
_SPLIT_SEED = 0
_TEST_FRACTION = 0.2
_VALIDATION_FRACTION = 0.2


def with_test_part(
    name: str,
    x: NDArray[np.float32] | NDArray[np.uint8],
    y: NDArray[np.int64],
    *,
    num_classes: int,
    clients: tuple[NDArray[np.int64], tuple[str, ...]] | None = None,
) -> Dataset:
    """A set with a fixed, stratified 20 % test part, as none is published.

    `clients` has each row's natural client, and their names.
    """
    train, test = stratified_split(y, _TEST_FRACTION, _SPLIT_SEED)
    return Dataset(
        name=name,
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        num_classes=num_classes,
        train_clients=None if clients is None else clients[0][train],
        test_clients=None if clients is None else clients[0][test],
        client_names=() if clients is None else clients[1],
    )


def with_validation_part(dataset: Dataset) -> Dataset:
    """A set that is measured on a fixed fifth of its training part: of each label, or of persons.

    Nobody trains on that fifth, and the real test part is left out: choices do not depend on
    reported rows.

    Raises:
        ValueError: If a label has fewer than two training rows, or there are too few persons.
    """
    labels = dataset.train_y
    if dataset.train_persons is not None:
        chosen = held_out_units(dataset.train_persons, _VALIDATION_FRACTION)
        if chosen is None:
            raise ValueError(f"{dataset.name}: a validation part needs at least three persons")
        return _validated(dataset, np.flatnonzero(~chosen), np.flatnonzero(chosen))
    if dataset.form.is_of_numbers:
        labels = np.zeros(len(labels), np.int64)
    _, counts = np.unique(labels, return_counts=True)
    if not len(counts) or counts.min() < 2:
        raise ValueError(
            f"{dataset.name}: a validation part needs at least two training rows of each label"
        )
    train, held_out = stratified_split(labels, _VALIDATION_FRACTION, _SPLIT_SEED)
    train.sort()  # so that pages of a set on disk are read in order
    held_out.sort()
    return _validated(dataset, train, held_out)


def _validated(dataset: Dataset, train: NDArray[np.int64], held_out: NDArray[np.int64]) -> Dataset:
    """A set that trains on some training rows, and is measured on others."""
    test_clients = dataset.train_clients
    if test_clients is not None:
        test_clients = test_clients[held_out]
    return replace(
        dataset,
        **_training(dataset, train),
        test_x=dataset.train_x[held_out],
        test_y=dataset.train_y[held_out],
        test_clients=test_clients,
    )


def with_public_part(dataset: Dataset, count: int) -> Dataset:
    """A set in which `count` training records are public, without their labels.

    They leave the training part, so no client can have one. The draw is independent of labels and
    clients, and the same in every run. Of a set that brings public records, they are the first of
    these instead.

    Raises:
        ValueError: If no training record would be left, the set brings fewer, or a person could
            have public and private ones.
    """
    if dataset.public_x is not None:
        if count > len(dataset.public_x):
            raise ValueError(
                f"{dataset.name} brings {len(dataset.public_x)} public records: write at most that "
                f"as features.public, got {count}"
            )
        return replace(dataset, public_x=dataset.public_x[:count])
    if dataset.train_persons is not None:
        raise ValueError(
            f"features.public={count} would make some rows of a person public: leave it out, or "
            "task.person_column"
        )
    in_all = len(dataset.train_y)
    if count >= in_all:
        raise ValueError(
            f"{dataset.name}: {count} records can't be public, the training part has {in_all}: "
            "write a smaller features.public"
        )
    order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(in_all)
    public, private = np.sort(order[:count]), np.sort(order[count:])
    return replace(dataset, **_training(dataset, private), public_x=dataset.train_x[public])


def of_clients(dataset: Dataset, patterns: Sequence[str]) -> Dataset:
    """A set with only some natural clients' records; a test part without clients stays whole.

    Patterns are names of clients, with `*` and `?`. A pattern after `!` excludes clients: from
    those that the other patterns name, or from all.

    Raises:
        ValueError: If there are no natural clients, a pattern matches none, or nobody is left.
    """
    if dataset.train_clients is None:
        raise ValueError(
            f"{dataset.name} names no clients to choose among: leave out task.clients (in a table "
            "of your own, task.client_column names them)"
        )
    for pattern in patterns:
        if not matching(dataset.client_names, [pattern.removeprefix("!")]):
            raise ValueError(
                f"task.clients: '{pattern}' matches none of the {len(dataset.client_names)} "
                f"clients of {dataset.name}, for example '{dataset.client_names[0]}'"
            )
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    chosen_names = set(matching(dataset.client_names, included or ["*"]))
    chosen_names -= set(matching(dataset.client_names, excluded))
    is_chosen = np.array([name in chosen_names for name in dataset.client_names])
    rows = np.flatnonzero(is_chosen[dataset.train_clients])
    if not len(rows):
        raise ValueError(f"task.clients={list(patterns)} leave no record of {dataset.name}")
    chosen = of_training_rows(dataset, rows)
    if dataset.test_clients is None:
        return chosen
    tested = is_chosen[dataset.test_clients]
    return replace(
        chosen,
        test_x=dataset.test_x[tested],
        test_y=dataset.test_y[tested],
        test_clients=dataset.test_clients[tested],
    )


def of_training_rows(dataset: Dataset, rows: NDArray[np.int64]) -> Dataset:
    """A set that trains on some of its training rows alone."""
    return replace(dataset, **_training(dataset, rows))


def _training(dataset: Dataset, rows: NDArray[np.int64]) -> dict[str, Any]:
    """The fields of a training part with only some rows."""
    fields = {}
    for name in ("train_x", "train_y", "train_clients", "train_persons", "train_fit"):
        values = getattr(dataset, name)
        fields[name] = None if values is None else values[rows]
    return fields


def held_out_units(units: NDArray[np.int64], fraction: float) -> NDArray[np.bool_] | None:
    """Which rows are held out, `(n,)`: a share of the units, each with all of its rows.

    `units` has each row's, such as a person; rows of nobody (-1) are trained on. The same in every
    run. None: there would be no unit on one of the sides.
    """
    names, unit = np.unique(units, return_inverse=True)
    some = names[names >= 0]
    number = round(len(some) * fraction)
    if not 0 < number < len(some):
        return None
    order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(some))
    mask: NDArray[np.bool_] = np.isin(names, some[order[:number]])[unit]
    return mask


def stratified_split(
    labels: NDArray[np.int64], test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows for training and those for testing, shuffled by `seed`.

    Each label has at least two rows. `test_fraction` is in (0, 1); the number of test rows is
    rounded up.
    """
    generator = np.random.RandomState(seed)  # the generator of the published splits
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rows_of = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    num_test = math.ceil(test_fraction * len(labels))
    train_counts = _shares(counts, len(labels) - num_test, generator)
    test_counts = _shares(counts - train_counts, num_test, generator)
    train, test = [], []
    for rows, for_training, for_test in zip(rows_of, train_counts, test_counts, strict=True):
        shuffled = rows[generator.permutation(len(rows))]
        train.append(shuffled[:for_training])
        test.append(shuffled[for_training : for_training + for_test])
    return generator.permutation(np.concatenate(train)), generator.permutation(np.concatenate(test))


def _shares(
    counts: NDArray[np.int64], draws: int, generator: np.random.RandomState
) -> NDArray[np.int64]:
    """How many of `draws` rows each label gets: largest remainders, ties by chance."""
    exact = counts / counts.sum() * draws
    shares = np.floor(exact)
    remainders, missing = exact - shares, int(draws - shares.sum())
    for remainder in np.unique(remainders)[::-1]:
        if not missing:
            break
        (tied,) = np.where(remainders == remainder)
        chosen = generator.choice(tied, size=min(len(tied), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    return np.asarray(shares, np.int64)
