"""Items of data sets as Flower's users have them, with tensors for what a model reads.

PyTorch's collation takes neither pictures nor a table's lists. Here a picture of PIL becomes what
torchvision's `ToTensor` makes of it, and a list of numbers in a row of a Hugging Face data set one
tensor. Neither library is imported: their objects are recognised by what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset


def has_columns(dataset: Any) -> bool:
    """Whether a data set, within subsets, is a table whose rows are dictionaries."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return hasattr(dataset, "column_names")


def with_tensors(item: Any, *, of_table: bool) -> Any:
    """Return an item, or part of one, with tensors for its pictures.

    Args:
        item: As the data set returns it; mappings, tuples, and lists with pictures are opened.
        of_table: Whether lists of numbers become tensors, too: float32 or int64.

    Raises:
        ValueError: A picture has neither grey values nor red, green and blue.
    """
    if isinstance(item, Mapping):
        return {name: with_tensors(value, of_table=of_table) for name, value in item.items()}
    if type(item) is tuple or (isinstance(item, list) and any(map(_is_picture, item))):
        return type(item)(with_tensors(value, of_table=of_table) for value in item)
    if _is_picture(item):
        return _pixels(item)
    if of_table and isinstance(item, list):
        return _numbers(item)
    return item


def _is_picture(item: Any) -> bool:
    return hasattr(item, "getbands") and hasattr(item, "mode")


def _pixels(picture: Any) -> Tensor:
    """Float32 in [0, 1], `(1 or 3, height, width)`."""
    if picture.mode not in ("L", "RGB"):
        raise ValueError(
            f"a picture has mode '{picture.mode}': write picture.convert('RGB'), or 'L' for grey"
        )
    pixels = np.array(picture, np.uint8).reshape(picture.height, picture.width, -1)
    return torch.from_numpy(pixels).permute(2, 0, 1).float().div(255.0)


def _numbers(values: list[Any]) -> Any:
    """A list, nested or not, as a tensor; the list itself if it holds something else."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return values
    if array.dtype.kind in "biu":
        return torch.from_numpy(array.astype(np.int64))
    if array.dtype.kind == "f":
        return torch.from_numpy(array).to(torch.get_default_dtype())
    return values
