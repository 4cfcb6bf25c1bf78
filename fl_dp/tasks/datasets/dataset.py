"""Records and labels of one data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.forms import Form

_LARGE_SHARE = 0.8  # of a class: answering it always has this accuracy


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images, rows of a table, or sequences of tokens, with labels, in a train and a test part.

    `test_x` and `test_y` are like `train_x` and `train_y`, but held out.

    Attributes:
        name: Its name in `load_dataset`.
        train_x: `(n, *input_shape)`: float32 ready for a model, uint8 pixels that `features`
            scales, or uint8 tokens `(n, length)` with a vocabulary. Images are channels first,
            table rows `(n, columns)`.
        train_y: `(n,)`: int64 labels in `0..num_classes - 1`; or float32 in [-1, 1], the public
            range of a label that is a number.
        num_classes: 1 where the label is a number.
        mean: Mean of uint8 pixels after division by 255, one number or one per channel.
        std: Their standard deviation, like `mean`.
        vocabulary_size: Number of tokens; None if records are not token sequences.
        train_clients: `(n,)` int64, each training row's natural client in `0..k - 1`, for example
            a person; None without natural clients.
        test_clients: Like `train_clients`, for the test part; None if it names nobody.
        train_persons: `(n,)` int64, each training row's person from 0; -1 for a row that names
            none, which is nobody's. None: nothing says who has several rows.
        client_names: The `k` natural clients' names, by number; () for none.
        column_names: Names of a record's columns, for people; () for none.
        class_names: The labels' names, for people, in order; () where they are numbers.
        shares: Publicly known share of each class; () where nobody knows.
        train_fit: `(n,)` bool, False for a training row that could not be read as a record and is
            zero; None if all could.
        public_x: Like `train_x`: public records without labels, in no other part; None for none.
    """

    name: str
    train_x: NDArray[np.uint8] | NDArray[np.float32]
    train_y: NDArray[Any]
    test_x: NDArray[np.uint8] | NDArray[np.float32]
    test_y: NDArray[Any]
    num_classes: int
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    vocabulary_size: int | None = None
    train_clients: NDArray[np.int64] | None = None
    test_clients: NDArray[np.int64] | None = None
    train_persons: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    train_fit: NDArray[np.bool_] | None = None
    public_x: NDArray[np.uint8] | NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Check that records, labels and clients fit together.

        Raises:
            ValueError: If lengths or shapes of the parts differ, records are neither uint8 nor
                float32, means do not fit the channels, tokens are not bytes `(n, length)` within
                the vocabulary, or clients or persons do not fit the training rows or their names.
        """
        for split in ("train", "test"):
            self._check_part(split)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ValueError(
                f"{self.name}: train records are {self.train_x.shape[1:]} and test records "
                f"{self.test_x.shape[1:]}; bring them to one shape"
            )
        for values in (self.mean, self.std):
            if isinstance(values, tuple) and self.input_shape[:1] != (len(values),):
                raise ValueError(
                    f"{self.name}: {len(values)} means or deviations for records of shape "
                    f"{self.input_shape}; give one number, or one a channel"
                )
        self._check_clients()
        persons = self.train_persons
        if persons is not None and (
            persons.shape != self.train_y.shape or persons.dtype != np.int64
        ):
            raise ValueError(
                f"{self.name}: train_persons is {persons.dtype} of shape {persons.shape}; give "
                f"int64 of shape {self.train_y.shape}, one person a training row"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record: `(1, 8, 8)`, channels first; `(columns,)`; or `(length,)`."""
        return self.train_x.shape[1:]

    @property
    def measure(self) -> str:
        """What judges a model: `accuracy`, `auc` if one class is most of all, or `r2` of numbers.

        By what is publicly known of the labels, never by a look at them.
        """
        if self.form.is_of_numbers:
            return "r2"
        return "auc" if max(self.shares, default=0.0) > _LARGE_SHARE else "accuracy"

    @property
    def form(self) -> Form:
        """Shapes for which a model is built."""
        return Form(self.input_shape, self.num_classes, self.vocabulary_size)

    def features(
        self, rows: NDArray[np.int64] | slice, split: str = "train"
    ) -> NDArray[np.float32] | NDArray[np.int64]:
        """Model inputs of some rows, as a copy.

        Args:
            rows: Row numbers, int64 `(k,)`, or a slice.
            split: "train", "test", or "public" if there is such a part.

        Returns:
            `(k, *input_shape)`: int64 tokens if there is a vocabulary; otherwise float32, uint8
            pixels as `(x / 255 - mean) / std` and float32 records as they are.

        Raises:
            ValueError: If there is no such part.
        """
        is_public = split == "public" and self.public_x is not None
        records = self.public_x if is_public else self._part(split)[0]
        assert records is not None  # as checked above
        chosen = records[rows]
        if self.vocabulary_size is not None:
            return chosen.astype(np.int64)
        scaled = chosen.astype(np.float32)
        if records.dtype == np.uint8:
            # One number, or one per channel, which is the first axis of a record.
            shape = (-1, *(1,) * (len(self.input_shape) - 1))
            mean, std = (np.reshape(values, shape) for values in (self.mean, self.std))
            scaled *= np.float32(1 / (255 * std))
            scaled -= np.float32(mean / std)
        return scaled

    def labels(self, rows: NDArray[np.int64] | slice, split: str = "train") -> NDArray[Any]:
        """Labels `(k,)` of some rows of "train" or "test", as a copy; `rows` as in `features`.

        Raises:
            ValueError: If `split` is neither.
        """
        _, labels = self._part(split)
        return labels[rows].copy()

    def _part(self, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
        if split == "train":
            return self.train_x, self.train_y
        if split == "test":
            return self.test_x, self.test_y
        raise ValueError(f"unknown split {split!r}; write 'train' or 'test'")

    def _check_part(self, split: str) -> None:
        x, y = self._part(split)
        if len(x) != len(y):
            raise ValueError(
                f"{self.name}: {len(x)} {split} records but {len(y)} labels; "
                "give one label a record"
            )
        if x.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"{self.name}: {split} records are {x.dtype}; convert them to uint8 or float32"
            )
        if self.vocabulary_size is None:
            return
        if x.dtype != np.uint8 or x.ndim != 2:
            raise ValueError(
                f"{self.name}: {split} tokens are {x.dtype} of shape {x.shape}; "
                "give uint8 of shape (n, length)"
            )
        largest = int(x.max(initial=0))
        if largest >= self.vocabulary_size:
            raise ValueError(
                f"{self.name}: a {split} token is {largest} in a vocabulary of "
                f"{self.vocabulary_size}; tokens count from 0"
            )

    def _check_clients(self) -> None:
        if self.train_clients is None:
            if self.client_names:
                raise ValueError(
                    f"{self.name}: {len(self.client_names)} names but no clients; give "
                    "train_clients, the client of each training row"
                )
            return
        clients = self.train_clients
        if clients.shape != self.train_y.shape or clients.dtype != np.int64:
            raise ValueError(
                f"{self.name}: train_clients is {clients.dtype} of shape {clients.shape}; give "
                f"int64 of shape {self.train_y.shape}, one client a training row"
            )
        if len(clients) and not 0 <= clients.min() <= clients.max() < len(self.client_names):
            raise ValueError(
                f"{self.name}: clients are numbered {clients.min()} to {clients.max()} but there "
                f"are {len(self.client_names)} names; number them from 0 and name each"
            )
