"""Optimizers that step many models at once as each alone: a closed list.

An optimizer sees one tensor per parameter, with the models of all clients as its rows. Those here
compute each entry from that entry's own gradients. Adafactor's root mean square or Muon's matrices
would mix the rows, and so would a gradient clipped as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, Rprop

OptimizerFn: TypeAlias = Callable[[list[nn.Parameter]], Optimizer]
"""Makes an optimizer of the given parameters, such as `partial(torch.optim.SGD, lr=0.1)`."""

_OWN_LIST = (SGD, Adam, AdamW, Rprop)  # their subclasses may do anything
_INSTEAD = (
    "write optimizer=partial(torch.optim.SGD, lr=0.1), or Adam, AdamW or Rprop; another one trains "
    "in a NumPyClient of your own, by NodeUnits(client_fn=...)"
)


class _PlainSGD:
    """What `torch.optim.SGD(parameters, lr=rate)` does, to the bit, in a third of the time."""

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float) -> None:
        self.state: dict[nn.Parameter, Any] = {}
        self._parameters, self._rate = parameters, rate

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self._rate)


def optimizer_of(make: OptimizerFn, parameters: Sequence[nn.Parameter]) -> Optimizer | _PlainSGD:
    """Make an optimizer of parameters, and check that it is one of the list.

    Raises:
        ValueError: It is another one, does not have exactly these parameters in one group, or
            has a state, a hook or a step of its own.
    """
    if isinstance(make, partial) and make.func is SGD and not make.args:
        rate = make.keywords.get("lr")
        if len(make.keywords) == 1 and isinstance(rate, float) and rate >= 0.0:
            return _PlainSGD(parameters, rate)
    made: Any = make(list(parameters))
    if type(made) not in _OWN_LIST:
        raise ValueError(
            f"optimizer makes a {type(made).__name__}, which may mix clients: {_INSTEAD}"
        )
    groups = [[id(one) for one in group["params"]] for group in made.param_groups]
    if groups != [[id(parameter) for parameter in parameters]]:
        raise ValueError(
            f"optimizer has {len(groups)} groups of parameters that are not the ones it got: "
            f"{_INSTEAD}"
        )
    hooks = (made._optimizer_step_pre_hooks, made._optimizer_step_post_hooks)
    if made.state or any(hooks) or "step" in vars(made):
        raise ValueError(
            "optimizer has a state, a hook or a step of its own, in which clients could meet: "
            f"{_INSTEAD}"
        )
    return made  # type: ignore[no-any-return]  # one of the list


def keeps_no_count(make: OptimizerFn) -> bool:
    """Whether all that changes from step to step is on the parameters' device."""
    return isinstance(optimizer_of(make, [nn.Parameter(torch.zeros(1))]), (_PlainSGD, SGD))


def first_rows(
    make: OptimizerFn,
    optimizer: Optimizer | _PlainSGD,
    parameters: Sequence[nn.Parameter],
    rows: int,
) -> tuple[Optimizer | _PlainSGD, list[nn.Parameter]]:
    """The optimizer and parameters of the first clients alone, in the same memory."""
    fewer = [nn.Parameter(parameter.detach()[:rows]) for parameter in parameters]
    made = optimizer_of(make, fewer)
    for before, after in zip(parameters, fewer, strict=True):
        if before in optimizer.state:
            state = optimizer.state[before]
            made.state[after] = {name: _rows_of(value, rows) for name, value in state.items()}
    return made, fewer


def step(
    optimizer: Optimizer | _PlainSGD, parameters: Sequence[nn.Parameter], loss: Tensor
) -> None:
    """Take a step; a parameter that the loss does not use stays, as in PyTorch's own loop."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def _rows_of(value: Any, rows: int) -> Any:
    """Moments have a row per client; the number of steps has none, and is that of all."""
    return value[:rows] if isinstance(value, Tensor) and value.dim() else value
