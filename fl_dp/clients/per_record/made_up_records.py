"""Checks of a training on made-up records, before any charge.

Records of the form of an author's example, or of a task's public form, are made up. The model is
trained on them, its parameters moved a little at random: weights that begin at zero could have
zero gradients. Nothing here has seen data.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_dp.user_code import Contained, own_chance

from .clipped_gradients import Clip, Gradients, clipped_sum, mapped, rows_of
from .module_template import ModuleTemplate
from .opacus_gradients import GhostGradients, HookGradients
from .record_loss import LossOfEach, LossOfPersons, MixesRecords
from .single_records import SingleRecords

logger = logging.getLogger("flwr.fl_dp.client")

_NOT_FOLLOWED = (
    "vmap can't follow the model, so that records are trained on one after the other: right, and "
    "slower. Often faster: an attention mask of four dimensions (WithFullMask), batch_first=True, "
    "DPLSTM and DPGRU (private_module). It said: %s"
)
_RECORDS = 4
_ROWS = 3
"""Of a made-up person."""
_MOVE = 0.05
_TOLERANCE = 1e-3
"""Share of a parameter's length; equal computations differ by about 1e-6."""
_NOISE = 1e-6
"""Share of the whole gradient's length; a smaller gradient may be nothing but rounding."""
_TINY = 1e-12
"""A whole gradient below this is made of rounding errors of float64."""
_SAMPLES = ((2, 1.0), (3, 1.0), (5, -10.0), (5, 1000.0))
"""Sizes and scales: a layer's first dimension, if fixed, can't be all of these sizes."""


GRAD_SAMPLE_MODES = ("records", "hooks", "ghost")
_OF_OPACUS = {"hooks": HookGradients, "ghost": GhostGradients}


def gradients_of(
    template: ModuleTemplate, loss: LossOfEach, *, mode: str, example: tuple[Any, Tensor] | None
) -> Gradients:
    """Return the way to a model's gradients, tried on made-up records.

    Args:
        template: The model.
        loss: The loss of each record, or of each person.
        mode: One of `GRAD_SAMPLE_MODES`; for persons `records`.
        example: Inputs and targets of at least one made-up record, on the model's device; rows of
            persons are made of it, too. None: nothing is tried.

    The answer is about these objects alone, and is found anew for others of the same class.

    Raises:
        ValueError: The model can't be trained on such records, or not in this mode.
        NotImplementedError: Opacus can't train it.
    """
    if loss.unit == LossOfPersons.unit and mode in _OF_OPACUS:
        raise ValueError(
            f"grad_sample_mode='{mode}' clips each row, and a person's rows are clipped together: "
            "write grad_sample_mode='records'"
        )
    alone = SingleRecords(template, loss)
    if example is not None:
        if loss.unit == LossOfPersons.unit:
            example = made_up_person(example)
        _require_trained(template, loss, example)
        alone = records_alone(template, loss, example)
        if mode in _OF_OPACUS:
            require_rows_are_records(template, loss, _OF_OPACUS[mode], example)
    if mode in _OF_OPACUS:
        return _OF_OPACUS[mode](template, loss)
    return alone


def _require_trained(
    template: ModuleTemplate, loss: LossOfEach, example: tuple[Any, Tensor]
) -> None:
    """Check that training finds a gradient, in the example's own dtypes.

    Raises:
        MixesRecords: The loss is none of single records.
        ValueError: It does not; the text has the error of model and loss.
    """
    with own_chance(), Contained() as attempt:
        alone = SingleRecords(template, loss)
        _trainable(
            lambda inputs, targets: alone.clipped_sums(inputs, targets, _unequal),
            made_up(example, _RECORDS),
        )
    if isinstance(attempt.failure, MixesRecords):
        raise attempt.failure
    if attempt.failure is not None:
        # The records are made up, so that the text holds no data.
        said = str(attempt.failure).partition("\n")[0][:200]
        dtypes = {parameter.dtype for parameter in template.parameters.values()}
        raise ValueError(
            f"nothing can be trained on DPSGD(example=...), of {_in_words(example)}: {said}. The "
            f"model's parameters are {', '.join(sorted(map(str, dtypes)))}; let the example, and "
            "each batch of the loader, have the dtypes and shapes that model and criterion take"
        ) from attempt.failure


def records_alone(
    template: ModuleTemplate, loss: LossOfEach, example: tuple[Any, Tensor]
) -> SingleRecords:
    """Return the quickest way that gives the gradients of autograd record by record.

    Weights are noted where that gives these gradients; else each record gets a copy of them. The
    log says where not even that does. See `gradients_of` for the arguments.

    Raises:
        ValueError: A trained parameter has no gradient on any made-up record; the text names it.
        Exception: Any error of model and loss at each made-up record.
    """
    wide, example = _exact(template, loss, example)
    way = SingleRecords(wide, loss)
    with own_chance(), WithoutChance():
        records = _trainable(way.by_autograd, made_up(example, _RECORDS))
        gradients, again = (way.by_autograd(*records) for _ in range(2))
    _require_used(wide, gradients)
    expected, repeated = (clipped_sum(each, _unequal) for each in (gradients, again))
    is_random = bool(_differing(wide, repeated, expected))  # beyond dropout: nothing to compare
    copied: Collection[str] = ()
    while True:
        way = SingleRecords(wide, loss, copied=copied)
        with own_chance(), WithoutChance(), Contained() as attempt:
            noted = way.noted(*records)
            sums = way.by_notes(*records, _unequal)
        wrong: Collection[str] = ()
        if attempt.failure is None and not is_random:
            wrong = _differing(wide, sums, expected)
        if attempt.failure is None and not wrong:
            return SingleRecords(template, loss, copied=wide.parameters.keys() - noted)
        candidates = wide.parameters.keys() - way.held
        if not candidates:
            break
        copied = {*copied, *(candidates.intersection(wrong) or candidates)}
    if attempt.failure is not None:
        # The records are made up, so that the text holds no data.
        logger.warning(_NOT_FOLLOWED, str(attempt.failure).partition("\n")[0][:200])
    else:
        logger.warning(
            "vmap gives other gradients of %s than autograd, which is used record by record",
            _quoted(list(wrong)),
        )
    return SingleRecords(template, loss, one_by_one=True)


def _require_used(template: ModuleTemplate, gradients: Sequence[Tensor]) -> None:
    """Check that each trained parameter has a gradient on a made-up record.

    Raises:
        ValueError: One has none; the text names it.
    """
    all_zero = bool(_norms(gradients).max() <= _TINY)
    unused = []
    for name, gradient in zip(template.parameters, gradients, strict=True):
        if all_zero or not bool(gradient.any()):
            unused.append(name)
    if unused:
        raise ValueError(
            f"the gradient of {_quoted(unused)} is zero on every made-up record, given alone: the "
            "model does not use it, or compares the records of a batch, or removes a dimension of "
            "size one. Freeze it (requires_grad_(False)), or give DPSGD(example=...) records that "
            "use it"
        )


def require_rows_are_records(
    template: ModuleTemplate,
    loss: LossOfEach,
    way: Callable[[ModuleTemplate, LossOfEach], HookGradients],
    example: tuple[Any, Tensor],
) -> None:
    """Check that one of Opacus' ways gives the gradients that the records have alone.

    See `gradients_of` for the arguments; `way` is Opacus'.

    Raises:
        ValueError: It does not, or fails; the text names the parameters that differ.
        Exception: Any error of model and loss at each made-up record, given alone.
    """
    template, example = _exact(template, loss, example)
    alone = SingleRecords(template, loss, one_by_one=True)
    rows = way(template, loss)
    for size, scale in _SAMPLES:
        whole = made_up(example, size, scale)
        shortened = _shortened(whole)
        samples = [whole] if shortened is whole else [whole, shortened]
        for sample in samples:
            records = sample
            with own_chance(), WithoutChance(), Contained() as attempt:
                records = _trainable(alone.by_autograd, records)
                gradients = alone.by_autograd(*records)
                norms = _norms(gradients)
                clip = _clip_at(0.5 * float(norms[norms > 0.0].min()))
                expected = clipped_sum(gradients, clip)
            if attempt.failure is not None and sample is whole and scale == 1.0:
                raise attempt.failure
            if attempt.failure is not None or not bool(norms.isfinite().all()):
                continue  # a length or numbers that the model does not take
            with own_chance(), WithoutChance(), Contained() as attempt:
                sums = rows.sums_of_rows(*records, clip)
            if attempt.failure is not None:
                raise ValueError(
                    f"Opacus has no gradients of {size} made-up records ({attempt.failure}): "
                    "write grad_sample_mode='records'"
                ) from attempt.failure
            wrong = _differing(template, sums, expected)
            if wrong:
                raise ValueError(
                    f"of {size} made-up records, Opacus' gradient of {_quoted(wrong)} is not the "
                    "sum of those that each record has alone: rows of a layer are no records, or "
                    "Opacus does not see every use of a parameter. Write grad_sample_mode='records'"
                )


def _exact(
    template: ModuleTemplate, loss: LossOfEach, example: tuple[Any, Tensor]
) -> tuple[ModuleTemplate, tuple[Any, Tensor]]:
    """Return both in float64, where rounding flips no ReLU, unless the model needs its dtype."""

    def widened(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    inputs, targets = example
    wide = template.moved(_MOVE, dtype=torch.float64)
    candidate = (mapped(widened, inputs), widened(targets))
    with own_chance(), Contained():
        SingleRecords(wide, loss).by_autograd(*made_up(candidate, 1))
        return wide, candidate
    return template.moved(_MOVE), example


def made_up(example: tuple[Any, Tensor], count: int, scale: float = 1.0) -> tuple[Any, Tensor]:
    """Make `count` records of the form of an example (inputs and targets, records first).

    Numbers are moved at random by up to `scale`; tokens, masks and targets are the example's in
    another order.
    """
    generator = torch.Generator().manual_seed(count)
    inputs, targets = example

    def changed(tensor: Tensor) -> Tensor:
        rows = tensor[torch.arange(count) % len(tensor)]
        if rows.is_floating_point():
            return rows + scale * torch.rand(rows.shape, generator=generator).to(rows)
        if rows.ndim == 1:
            return rows
        order = torch.rand(rows[0].numel(), count, generator=generator).argsort(0).T
        return rows.flatten(1).gather(1, order.to(rows.device)).view_as(rows)

    return mapped(changed, inputs), targets[torch.arange(count) % len(targets)]


def made_up_person(example: tuple[Any, Tensor]) -> tuple[Any, Tensor]:
    """Return one person of a few rows, made of an example's records."""
    rows = torch.arange(_ROWS) % len(example[1])
    inputs, targets = mapped(lambda tensor: tensor[rows][None], example)
    return inputs, targets


def _shortened(records: tuple[Any, Tensor]) -> tuple[Any, Tensor]:
    """Cut the last position off records whose inputs are sequences of tokens."""
    tokens = [tensor for tensor in _tensors(records[0]) if not tensor.is_floating_point()]
    lengths = {tensor.shape[1] for tensor in tokens if tensor.ndim > 1}
    if len(lengths) != 1:
        return records
    [length] = lengths
    if length < 2:
        return records

    def cut(tensor: Tensor) -> Tensor:
        return tensor[:, :-1] if tensor.shape[1:2] == (length,) else tensor

    inputs, targets = mapped(cut, records)
    return inputs, targets


class WithoutChance(TorchFunctionMode):
    """Turns off dropout in its block, by whatever function it is called."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        if func in _DROPOUTS:
            return args[0]
        kwargs, position = kwargs or {}, _ATTENTIONS.get(func)
        if position is not None and len(args) > position:
            args = (*args[:position], 0.0, *args[position + 1 :])
        elif position is not None:
            kwargs = kwargs | {"dropout_p": 0.0}
        return func(*args, **kwargs)


_DROPOUTS = (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
)

_ATTENTIONS: dict[Any, int] = {
    functional.scaled_dot_product_attention: 4,
    functional.multi_head_attention_forward: 10,
}
"""Position of the argument `dropout_p`."""


def _trainable(
    way: Callable[[Any, Tensor], Any], records: tuple[Any, Tensor]
) -> tuple[Any, Tensor]:
    """Return the records that have a gradient.

    Raises:
        Exception: The error of all together, if none has a gradient.
    """
    with Contained() as whole:
        way(*records)
        return records
    rows = []
    for row in range(len(records[1])):
        with Contained():
            way(*rows_of(records, slice(row, row + 1)))
            rows.append(row)
    if not rows:
        assert whole.failure is not None  # the block above did not return
        raise whole.failure
    inputs, targets = mapped(lambda tensor: tensor[rows], records)
    return inputs, targets


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    squares = [gradient.flatten(1).double().square().sum(1) for gradient in gradients]
    return torch.stack(squares).sum(0).sqrt()


def _clip_at(norm: float) -> Clip:
    def clip(squares: Tensor) -> tuple[Tensor, None]:
        return (norm / squares.sqrt()).clamp(max=1.0), None

    return clip


def _unequal(squares: Tensor) -> tuple[Tensor, None]:
    """Factors by which no two records are the same in a sum."""
    return torch.linspace(0.5, 1.0, len(squares)).to(squares), None


def _differing(
    template: ModuleTemplate, computed: Sequence[Tensor | None], expected: Sequence[Tensor | None]
) -> list[str]:
    """Names of the parameters whose gradients differ."""

    def wide(gradient: Tensor | None) -> Tensor:
        return torch.zeros(()) if gradient is None else gradient.double()

    right = [wide(gradient) for gradient in expected]
    whole = torch.stack([gradient.norm() for gradient in right]).norm()
    names = []
    for name, gradient, reference in zip(template.parameters, computed, right, strict=True):
        limit = _TOLERANCE * reference.norm() + _NOISE * whole
        if not bool((wide(gradient) - reference).norm() <= limit):  # NaN differs, too
            names.append(name)
    return names


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    branches = tree.values() if isinstance(tree, Mapping) else tree
    return list(itertools.chain.from_iterable(map(_tensors, branches)))


def _in_words(tree: Any) -> str:
    return ", ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in _tensors(tree))


def _quoted(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    if len(names) > 3:
        shown += f" and {len(names) - 3} more"
    return shown
