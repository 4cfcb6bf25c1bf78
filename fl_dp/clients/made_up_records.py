"""What is found out about a training before anything is charged, on made-up records.

An author's example, or the public form of a task, says what a record looks like. Records of that
form are made up, and the model is trained on them, its parameters moved a little at random: where
weights begin at zero, gradients would be zero for another reason. Nothing here has seen data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_dp.user_code import Contained, own_chance

from .clipped_gradients import Gradients, mapped, rows_of
from .module_template import ModuleTemplate
from .opacus_gradients import GhostGradients, HookGradients
from .single_records import SingleRecords

logger = logging.getLogger("flwr.fl_dp.client")

_NOT_FOLLOWED = (
    "vmap can't follow the model, so that records are trained on one after the other: right, and "
    "slower. Often faster: an attention mask of four dimensions (WithFullMask), batch_first=True, "
    "DPLSTM and DPGRU (private_module). It said: %s"
)
_RECORDS = 4
_MOVE = 0.05
_TOLERANCE = 1e-3
"""Of a parameter's length; ways that compute the same differ by about 1e-6."""
_NOISE = 1e-6
"""Of the whole gradient's length: below this a parameter's gradient may be nothing but rounding."""
_TINY = 1e-12
"""A whole gradient below this is made of rounding errors of float64."""
_SIZES = (2, 3)
"""Of samples: what a layer takes for its rows can have one of these sizes, and not both."""


GRAD_SAMPLE_MODES = ("vmap", "hooks", "ghost")
_OF_OPACUS = {"hooks": HookGradients, "ghost": GhostGradients}
_follows: dict[Any, bool] = {}
"""Of models of one structure, whether `vmap` follows them: a client is built anew in each round."""


def gradients_of(
    template: ModuleTemplate, loss: nn.Module, *, mode: str, example: tuple[Any, Tensor] | None
) -> Gradients:
    """Return the way to a model's gradients, tried on made-up records.

    Args:
        template: The model.
        loss: Of a batch's outputs and targets; gives each record's, `(n,)`.
        mode: One of `GRAD_SAMPLE_MODES`.
        example: Inputs and targets of at least one made-up record, on the model's device. None:
            nothing is tried.

    Raises:
        ValueError: If the model can't be trained on such records, or not in this mode.
        NotImplementedError: If Opacus can't train it.
        Exception: Whatever model and loss raise at each of the made-up records.
    """
    follows = True
    if example is not None:
        structure = (mode, template.structure, repr(loss), _forms(example))
        if structure not in _follows:
            follows = follows_alone(template, loss, example)
            if mode in _OF_OPACUS:
                require_rows_are_records(template, loss, _OF_OPACUS[mode], example)
            _follows[structure] = follows
        follows = _follows[structure]
    if mode in _OF_OPACUS:
        return _OF_OPACUS[mode](template, loss)
    return SingleRecords(template, loss, one_by_one=not follows)


def follows_alone(template: ModuleTemplate, loss: nn.Module, example: tuple[Any, Tensor]) -> bool:
    """Find out whether `vmap` gives what autograd gives record by record.

    Args:
        template: The model.
        loss: Of a batch's outputs and targets; gives each record's, `(n,)`.
        example: Inputs and targets of at least one made-up record.

    Returns:
        Whether it does; the log says why not.

    Raises:
        ValueError: If a trained parameter has no gradient on any made-up record, with its name.
        Exception: Whatever model and loss raise at each of these records.
    """
    template, example = _exact(template, loss, example)
    records = made_up(example, _RECORDS)
    with own_chance(), WithoutChance():
        way = SingleRecords(template, loss)
        expected, again = (_gradients(way.by_autograd, records) for _ in range(2))
        with Contained() as attempt:
            found = _gradients(way.by_vmap, records)
    nothing = bool(_norms(expected).max() <= _TINY)
    still = [
        name
        for name, gradient in zip(template.parameters, expected, strict=True)
        if nothing or not bool(gradient.any())
    ]
    if still:
        raise ValueError(
            f"the gradient of {_quoted(still)} is zero on every made-up record, given alone: the "
            "model does not use it, or compares the records of a batch, or removes a dimension of "
            "size one. Freeze it (requires_grad_(False)), or give DPSGD(example=...) records that "
            "use it"
        )
    if attempt.failure is not None or len(found[0]) < len(expected[0]):
        # Of made-up records, so that the text holds no data.
        logger.warning(_NOT_FOLLOWED, str(attempt.failure).partition("\n")[0][:200])
        return False
    if _differing(template, again, expected):
        return True  # chance that is not dropout's: nothing to compare
    wrong = _differing(template, found, expected)
    if wrong:
        logger.warning(
            "vmap gives other gradients of %s than autograd, which is used record by record",
            _quoted(wrong),
        )
    return not wrong


def require_rows_are_records(
    template: ModuleTemplate,
    loss: nn.Module,
    gradients: Callable[[ModuleTemplate, nn.Module], HookGradients],
    example: tuple[Any, Tensor],
) -> None:
    """Check that one of Opacus' ways gives what the records give alone.

    Args:
        template: The model.
        loss: Of a batch's outputs and targets; gives each record's, `(n,)`.
        gradients: Makes the way.
        example: Inputs and targets of at least one made-up record.

    Raises:
        ValueError: If it does not, with the parameters where it differs.
    """
    template, example = _exact(template, loss, example)
    alone = SingleRecords(template, loss, one_by_one=True)
    rows = gradients(template, loss)
    for size in _SIZES:
        whole = made_up(example, size)
        shortened = _shortened(whole)
        for records in [whole] if shortened is whole else [whole, shortened]:
            with own_chance(), WithoutChance(), Contained() as attempt:
                norms = _norms(_gradients(alone, records))
                norm = 0.5 * float(norms[norms > 0.0].min())
                expected = _clipped(alone.clipped_sums, records, norm)
            if attempt.failure is not None:
                if records is whole:
                    raise attempt.failure
                continue  # a length that the model does not take
            with own_chance(), WithoutChance(), Contained() as of_opacus:
                found = _clipped(rows.sums_of_rows, records, norm)
            if of_opacus.failure is not None:
                raise ValueError(
                    f"Opacus has no gradients of {size} made-up records ({of_opacus.failure}): "
                    "write grad_sample_mode='vmap'"
                ) from of_opacus.failure
            wrong = _differing(template, found, expected)
            if wrong:
                raise ValueError(
                    f"of {size} made-up records, Opacus' gradient of {_quoted(wrong)} is not the "
                    "sum of those that each record has alone: rows of a layer are no records, or "
                    "Opacus does not see every use of a parameter. Write grad_sample_mode='vmap'"
                )


def _exact(
    template: ModuleTemplate, loss: nn.Module, example: tuple[Any, Tensor]
) -> tuple[ModuleTemplate, tuple[Any, Tensor]]:
    """Return both in float64, where rounding flips no ReLU, unless the model asks for its own."""
    inputs, targets = example
    wide = template.moved(_MOVE, dtype=torch.float64)
    widened = mapped(
        lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, inputs
    )
    of_numbers = targets.is_floating_point()
    candidate = (widened, targets.double() if of_numbers else targets)
    with own_chance(), Contained():
        _gradients(SingleRecords(wide, loss).by_autograd, made_up(candidate, 1))
        return wide, candidate
    return template.moved(_MOVE), example


def made_up(example: tuple[Any, Tensor], count: int) -> tuple[Any, Tensor]:
    """Return records of the form of an example.

    Numbers are moved at random; tokens, masks and targets are the example's in another order.

    Args:
        example: Inputs and targets, records first.
        count: How many to make.
    """
    generator = torch.Generator().manual_seed(count)
    inputs, targets = example

    def changed(tensor: Tensor) -> Tensor:
        taken = tensor[torch.arange(count) % len(tensor)]
        if not taken.is_floating_point():
            if taken.ndim == 1:
                return taken
            places = torch.rand(taken[0].numel(), count, generator=generator).argsort(0).T
            return taken.flatten(1).gather(1, places.to(taken.device)).view_as(taken)
        return taken + torch.rand(taken.shape, generator=generator).to(taken)

    return mapped(changed, inputs), targets[torch.arange(count) % len(targets)]


def _shortened(records: tuple[Any, Tensor]) -> tuple[Any, Tensor]:
    """Return records without their last position, where their inputs are sequences of tokens."""
    lengths = {t.shape[1] for t in _tensors(records[0]) if t.ndim > 1 and not t.is_floating_point()}
    [length] = lengths if len(lengths) == 1 else [0]
    if length < 2:
        return records
    inputs, targets = mapped(
        lambda tensor: tensor[:, :-1] if tensor.shape[1:2] == (length,) else tensor, records
    )
    return inputs, targets


class WithoutChance(TorchFunctionMode):
    """Dropout that keeps everything, whoever calls it."""

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
        kwargs, place = kwargs or {}, _ATTENTIONS.get(func)
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place is not None:
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
"""The place of the argument `dropout_p`."""


def _gradients(
    way: Callable[[Any, Tensor], list[Tensor]], records: tuple[Any, Tensor]
) -> list[Tensor]:
    """Return each parameter's gradients of the records that have one.

    Raises:
        Exception: What the first raises, if none has.
    """
    inputs, targets = records
    with Contained() as whole:
        return way(inputs, targets)
    found = []
    for row in (slice(row, row + 1) for row in range(len(targets))):
        with Contained():
            found.append(way(rows_of(inputs, row), targets[row]))
    if not found:
        assert whole.failure is not None  # the block above did not return
        raise whole.failure
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    squares = [gradient.flatten(1).double().square().sum(1) for gradient in gradients]
    return torch.stack(squares).sum(0).sqrt()


def _clipped(
    clipped_sums: Callable[..., Sequence[Tensor | None]], records: tuple[Any, Tensor], norm: float
) -> list[Tensor | None]:
    def clip(squares: Tensor) -> tuple[Tensor, None]:
        return (norm / squares.sqrt()).clamp(max=1.0), None

    return list(clipped_sums(*records, clip))


def _differing(
    template: ModuleTemplate, found: Sequence[Tensor | None], expected: Sequence[Tensor | None]
) -> list[str]:
    """Return the names of parameters whose gradients differ."""
    pairs = [
        [torch.zeros(()) if part is None else part.double() for part in pair]
        for pair in zip(found, expected, strict=True)
    ]
    whole = torch.stack([right.norm() for _, right in pairs]).norm()
    return [
        name
        for name, (left, right) in zip(template.parameters, pairs, strict=True)
        if not bool((left - right).norm() <= _TOLERANCE * right.norm() + _NOISE * whole)
    ]


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    branches = tree.values() if isinstance(tree, Mapping) else tree
    return [tensor for branch in branches for tensor in _tensors(branch)]


def _forms(tree: Any) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in _tensors(tree))


def _quoted(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
