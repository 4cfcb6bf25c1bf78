"""One training of made-up records by a run's own path, before anything is charged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fl_dp.clients.per_record.own_copies import own_copy_of
from fl_dp.model_arrays import trained_names
from fl_dp.user_code import own_chance

from .client_arrays import Pair

logger = logging.getLogger("flwr.fl_dp")

_RECORDS = 4  # whatever a client has: how many that is must not decide about a training


def require_trial_step(
    module: nn.Module, train: Callable[[nn.Module, Tensor, Tensor], None], parts: Sequence[Pair]
) -> None:
    """Train a copy of a module on made-up records; refuse what fails, or changes what stays.

    Frozen parameters and buffers are not released: what training writes into them would be lost
    with the client.

    Raises:
        ValueError: The training raises, changes a frozen parameter or a buffer, or freezes a
            parameter; the text names it.
    """
    copied = own_copy_of(module)
    named = dict(copied.named_parameters(remove_duplicate=False))
    trained = {name for name, value in named.items() if value.requires_grad}
    before = {name: value.clone() for name, value in _state_of(copied).items()}
    try:
        with own_chance():
            train(copied, *_made_up(parts))
    except Exception as error:
        raise ValueError(
            f"the training fails on {_RECORDS} made-up records of your data's form: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    after = _state_of(copied)
    if all(_are_equal(after[name], before[name]) for name in trained_names(module)):
        logger.warning(
            "fit moved no parameter on %d made-up records: so it may be on the clients' own, and "
            "the budget is spent on noise",
            _RECORDS,
        )
    if not all(bool(value.isfinite().all()) for value in named.values()):
        logger.warning(
            "training leaves numbers that are not finite on %d made-up records: a client of whose "
            "own it does so contributes nothing, and is charged",
            _RECORDS,
        )
    for name, value in after.items():
        if name not in before:
            continue
        moved = not _are_equal(value, before[name])
        if name in trained and not moved and not named[name].requires_grad:
            raise ValueError(
                f"fit freezes '{name}' and does not train it, and it is released with noise: write "
                "requires_grad_(False) where the module is made"
            )
        if name in trained or not moved:
            continue
        if name in named:
            raise ValueError(
                f"fit trains '{name}', which is frozen and not released: write "
                "requires_grad_(True) where the module is made, or leave it as it is"
            )
        owner = copied.get_submodule(name.rpartition(".")[0])
        raise ValueError(
            f"training changes '{name}' of a {type(owner).__name__}, which is no parameter and is "
            "not released, and clients' averages of it would be ruined by noise. Put GroupNorm in "
            "BatchNorm's place (fl_dp.clients.private_module does), or freeze that part and put it "
            "in eval()"
        )


def _state_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers, also those that a `state_dict` leaves out."""
    return module.state_dict() | {name: value.detach() for name, value in module.named_buffers()}


def _made_up(parts: Sequence[Pair]) -> Pair:
    """Records of the first client's form, random where they are numbers."""
    records, labels = next(pair for pair in parts if len(pair[1]))
    rows = torch.zeros(_RECORDS, dtype=torch.int64)
    made_up = records[rows]
    if made_up.is_floating_point():
        made_up = torch.randn(made_up.shape, generator=torch.Generator().manual_seed(0)).to(made_up)
    return made_up, labels[rows]


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(
        one, other, rtol=0.0, atol=0.0, equal_nan=True
    )
