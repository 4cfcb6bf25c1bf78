"""One training of made-up records by a run's own path, before anything is charged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fl_dp.clients.own_copies import own_copy_of
from fl_dp.model_arrays import trained_names
from fl_dp.user_code import own_chance

from .client_arrays import Pair

logger = logging.getLogger("flwr.fl_dp")

_RECORDS = 4  # whatever a client has: how many that is must not decide about a training


def require_trainable(
    module: nn.Module, train: Callable[[nn.Module, Tensor, Tensor], None], parts: Sequence[Pair]
) -> None:
    """Train a copy of a module on made-up records; refuse what fails, or changes a buffer.

    A buffer is not released: what training writes into it would be lost with the client.

    Raises:
        ValueError: The training raises, or changes a buffer; the text names it.
    """
    copied = own_copy_of(module)
    trained = {name for name, _ in copied.named_parameters(remove_duplicate=False)}
    before = {name: value.clone() for name, value in copied.state_dict().items()}
    try:
        with own_chance():
            train(copied, *_made_up(parts))
    except Exception as error:
        raise ValueError(
            f"the training fails on {_RECORDS} made-up records of your data's form: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    after = copied.state_dict()
    if all(_are_equal(after[name], before[name]) for name in trained_names(module)):
        logger.warning(
            "fit moved no parameter on %d made-up records: so it may be on the clients' own, and "
            "the budget is spent on noise",
            _RECORDS,
        )
    for name, value in after.items():
        if name in trained or name not in before or _are_equal(value, before[name]):
            continue
        owner = copied.get_submodule(name.rpartition(".")[0])
        raise ValueError(
            f"training changes '{name}' of a {type(owner).__name__}, which is no parameter and is "
            "not released, and clients' averages of it would be ruined by noise. Put GroupNorm in "
            "BatchNorm's place (fl_dp.clients.private_module does), or freeze that part and put it "
            "in eval()"
        )


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
