"""Whether a module and clients' data fit together, before anything is spent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fl_dp.clients.per_record.index_ranges import require_labels
from fl_dp.clients.per_record.own_copies import own_copy_of

from .client_arrays import Pair

logger = logging.getLogger("flwr.fl_dp")


def require_module(module: object) -> None:
    """Refuse what is no module, such as its class or a model of another library.

    Raises:
        TypeError: With what to write instead.
    """
    if isinstance(module, nn.Module):
        return
    if isinstance(module, type) and issubclass(module, nn.Module):
        name = module.__name__
        raise TypeError(f"module is the class {name}: give one that is made, {name}(...)")
    raise TypeError(
        f"module must be a PyTorch module, got {type(module).__name__}: scikit-learn's "
        "LogisticRegression is nn.Linear(features, classes) here; other libraries train by "
        "numpy_client_app (examples/gallery)"
    )


def require_module_fits(module: nn.Module, parts: Sequence[Pair]) -> None:
    """Check that a module reads one record of each part and has an output for each label.

    What would train badly is told: outputs that are probabilities, and many without a label.

    Raises:
        ValueError: It does not.
    """
    shapes: set[tuple[Any, ...]] = set()
    outputs: Tensor | None = None
    for records, labels in parts:
        if not len(labels):
            continue
        shape = (records.dtype, *records.shape[1:])
        if shape not in shapes:
            shapes.add(shape)
            outputs = _outputs_of(module, records[:1].clone())
        assert outputs is not None  # of this shape or an earlier one
        _require_labels(outputs, labels)
    if outputs is not None and outputs.shape[1] > 1:
        _caution(outputs, max(int(labels.max()) for _, labels in parts if len(labels)))


def are_truth_values(parts: Sequence[Pair]) -> bool:
    """Whether all labels are floating-point numbers, and each is 0 or 1."""
    return all(
        labels.is_floating_point() and bool(((labels == 0) | (labels == 1)).all())
        for _, labels in parts
        if len(labels)
    )


def _outputs_of(module: nn.Module, record: Tensor) -> Tensor:
    module = own_copy_of(module).eval()  # the caller's keeps its modes, and all that forward writes
    device = next((weight.device for weight in module.parameters()), record.device)
    try:
        with torch.no_grad():
            outputs = module(record.to(device))
    except Exception as error:
        hint = "" if record.is_floating_point() else ": are whole numbers to be divided by 255?"
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the module can't read records of shape {tuple(record.shape[1:])} and type "
            f"{record.dtype}{hint} ({reason})"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        raise ValueError(
            "the module must return outputs of shape (n, classes), or (n, 1) of numbers"
        )
    return outputs


def _caution(outputs: Tensor, largest: int) -> None:
    """Tell what would train badly."""
    width = outputs.shape[1]
    total = outputs.sum(dim=1)
    if bool((outputs >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        logger.warning(
            "the module's outputs add up to 1, as after a Softmax: leave it out, as the loss "
            "applies one, and two learn slowly"
        )
    if largest + 1 <= width // 2:
        logger.warning(
            "the module has %d outputs, and the largest label is %d: outputs without a label get "
            "noise like all others, so give it %d",
            width,
            largest,
            largest + 1,
        )


def _require_labels(outputs: Tensor, labels: Tensor) -> None:
    width = outputs.shape[1]
    if labels.is_floating_point():
        if width != 1:
            raise ValueError(
                f"labels are numbers, so the module must have one output, got {width}: classes are "
                "integers"
            )
        return
    if width == 1:
        raise ValueError(
            "labels are integers, so classes, and the module has one output: give it one output a "
            "class, two for the labels 0 and 1; or give labels that are numbers in floating point"
        )
    try:
        require_labels(labels, width, ignored=None)
    except IndexError as error:
        raise ValueError(f"{error}: the module has {width} outputs, for classes from 0") from error


def dtype_of(module: nn.Module) -> torch.dtype:
    """The type of a module's weights; PyTorch's default without any."""
    types = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    return next(types, torch.get_default_dtype())
