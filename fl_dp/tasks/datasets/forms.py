"""The shapes that a model depends on, known without looking at anybody's rows."""

from __future__ import annotations

from typing import NamedTuple

from fl_dp.tasks.datasets.data_format import DataFormat


class Form(NamedTuple):
    """Shapes that a model is built for.

    Attributes:
        input_shape: Shape of one record, as `Dataset.input_shape`.
        num_classes: Number of labels.
        vocabulary_size: Number of tokens, None if records are not sequences of tokens.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary_size: int | None = None


PUBLIC_FORMS = {
    "digits": Form((1, 8, 8), 10),
    "fashion_mnist": Form((1, 28, 28), 10),
    "breast_cancer": Form((30,), 2),
    "mnist": Form((1, 28, 28), 10),
    "cifar10": Form((3, 32, 32), 10),
    "adult": Form((92,), 2),
    "lending_club": Form((69,), 2),
    "shakespeare": Form((80,), 96, 96),
}
"""Of the public data sets."""


def form_of(name: str, data_format: DataFormat | None) -> Form | None:
    """Return the form of a task, None if it would have to be found in the files."""
    if data_format is None:
        return PUBLIC_FORMS[name]
    if data_format.classes is None:
        return None
    if data_format.image_shape is not None:
        return Form(data_format.image_shape, len(data_format.classes))
    if data_format.columns is not None:
        return Form((len(data_format.columns),), len(data_format.classes))
    return None
