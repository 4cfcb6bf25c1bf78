"""Public facts about data: shapes that a model depends on, and how a user's own files are read.

A node sees only its own rows, which can't give a model's shape. So whoever sets up the experiment
writes features, classes and scaling numbers, and every node reads its files by them. In a
simulation one folder holds all rows, so the files may tell features and classes.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

SCALED_LABELS = (-1.0, 1.0)
"""Range to which labels that are numbers are mapped, from their public `label_range`."""

_WITH_ZEROS = re.compile(r"(\d+)\.0+")


def plain_name(name: str) -> str:
    """Strip blanks and compose letters: one name, one text."""
    return unicodedata.normalize("NFC", name).strip()


def plain_label(label: str) -> str:
    """The form in which labels are compared: `true`, `false`, and 1 for 1.0."""
    name = plain_name(label)
    if name.lower() in ("true", "false"):
        return name.lower()
    with_zeros = _WITH_ZEROS.fullmatch(name)
    if with_zeros is None:
        return name
    return with_zeros.group(1)


@dataclass(frozen=True, kw_only=True)
class DataFormat:
    """Instructions for reading a user's own files.

    Nothing here may be computed from clients' private rows.

    Attributes:
        classes: Your own data: class names in the order of labels. None: integers from 0, or the
            folders' names.
        shares: Your own data: publicly known share of each class; if one is above 0.8, AUC judges
            models in place of accuracy.
        label_range: Your own tables: public `[low, high]` of a numeric label to predict; values
            outside are clipped.
        label_column: Your own tables: column of the label.
        client_column: Your own tables: column with each row's client, for `task.partition=natural`.
        person_column: Your own tables: column with each row's person; one unit where records are
            protected, and dealt as a whole to clients, training and test.
        columns: Your own tables: columns that are features; None takes all others.
        types: Type of each of `columns`: `number`, `integer` or `truth` (0 or 1), used as it is. Or
            its facts as a schema's file has them (`columns.Column.text`), by which it is encoded.
            None: numbers.
        image_shape: Your own images: `[channels, height, width]`, 1 or 3 channels; None takes the
            first image's.
        mean: Your own data: public numbers to subtract, one per column, or per channel of pixels
            over 255.
        std: Your own data: public numbers to divide by afterwards, as many as in `mean`.
        test_fraction: Your own data: share of the training rows held out if there is no test part.
        splits: Parts to read: "train", "test" or both. One part for a node with its own data, or a
            server without the nodes' data.
        leave_out_unfit: Count unfit rows as rows without content (`Dataset.train_fit`) instead of
            refusing the files. For one node's training rows, where a refusal would show a row's
            content.
    """

    classes: tuple[str, ...] | None = None
    shares: tuple[float, ...] | None = None
    label_range: tuple[float, float] | None = None
    label_column: str = "label"
    client_column: str | None = None
    person_column: str | None = None
    columns: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    image_shape: tuple[int, int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    test_fraction: float | None = None
    splits: tuple[str, ...] = ("train", "test")
    leave_out_unfit: bool = False

    def __post_init__(self) -> None:
        """Check the label's range and the classes' shares, and bring names to one form.

        Raises:
            ValueError: If the range is invalid, there are classes as well, or shares do not fit
                the classes.
        """
        for key in ("classes", "columns"):
            names = getattr(self, key)
            if names is not None:
                object.__setattr__(self, key, tuple(map(plain_name, names)))
        for key in ("label_column", "client_column", "person_column"):
            name = getattr(self, key)
            if name is not None:
                object.__setattr__(self, key, plain_name(name))
        shares = self.shares
        if shares is not None and (
            len(shares) != len(self.classes or ())
            or min(shares) < 0.0
            or not math.isclose(sum(shares), 1.0, abs_tol=0.01)
        ):
            raise ValueError(
                f"shares must be one number for each class, which add up to 1, got {[*shares]}"
            )
        ends = self.label_range
        if ends is None:
            return
        rises = len(ends) == 2 and all(map(math.isfinite, ends)) and ends[0] < ends[1]
        if not rises or self.classes is not None:
            raise ValueError(
                "label_range must be two finite numbers that rise, of a label without classes, "
                f"got {[*ends]}"
            )

    @property
    def num_outputs(self) -> int | None:
        """Numbers that a model returns per record: 1, or one per class; None if files tell."""
        if self.label_range is not None:
            return 1
        return None if self.classes is None else len(self.classes)

    @property
    def is_shared(self) -> bool:
        """Whether the files have everybody's rows, and so may tell features and classes."""
        return len(self.splits) == 2

    def require(self, **public: object) -> None:
        """Check that the facts behind the model's shape are given.

        Raises:
            ValueError: If one is None and the files are one node's, which can't tell it.
        """
        missing = [f"task.{key}" for key, value in public.items() if value is None]
        if missing and not self.is_shared:
            raise ValueError(
                f"{' and '.join(missing)} must be given where nodes bring their own data: each "
                "sees its own rows only, and all must train one model"
            )


BYTES = 256
"""Size of the vocabulary of texts: the bytes of UTF-8, and zeros after their end."""


class Form(NamedTuple):
    """Shapes for which a model is built, named as in `Dataset`."""

    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary_size: int | None = None

    @property
    def is_of_numbers(self) -> bool:
        """Whether a model predicts a number, not a class."""
        return self.num_classes == 1

    @property
    def kind(self) -> str:
        """What records are: `numbers`, `tokens`, or `texts`, whose tokens are bytes."""
        if self.vocabulary_size is None:
            return "numbers"
        return "texts" if self.vocabulary_size == BYTES else "tokens"
