"""PyTorch's recurrent layers, step by step in its other functions.

Its own kernels run all steps at once, and have no rule of `vmap`. Step by step, each weight is a
linear layer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def stepwise(
    function: Callable[..., Any],
    inputs: Tensor,
    start: Tensor | tuple[Tensor, ...],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    two_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run a function of `RECURRENT`, with its arguments and results."""
    outputs = inputs.transpose(0, 1) if batch_first else inputs
    starts = list(zip(*([start] if isinstance(start, Tensor) else start), strict=True))
    size = len(weights) // len(starts)
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        if layer:
            outputs = functional.dropout(outputs, dropout, training)
        ways = []
        for backwards in (False, True)[: 1 + two_ways]:
            number = len(ends)
            of_inputs, of_states, *more = weights[number * size : (number + 1) * size]
            biases = more[:2] if has_biases else (None, None)
            steps = list(functional.linear(outputs, of_inputs, biases[0]))
            states: list[tuple[Tensor, ...]] = [starts[number]]
            for step in reversed(steps) if backwards else steps:
                from_state = functional.linear(states[-1][0], of_states, biases[1])
                hidden, *memory = RECURRENT[function](step, from_state, *states[-1])
                for projection in more[2:] if has_biases else more:
                    hidden = functional.linear(hidden, projection)
                states.append((hidden, *memory))
            hidden_states = [state[0] for state in states[1:]]
            ways.append(torch.stack(hidden_states[::-1] if backwards else hidden_states))
            ends.append(states[-1])
        outputs = torch.cat(ways, -1)
    finals = [torch.stack(parts) for parts in zip(*ends, strict=True)]
    return (outputs.transpose(0, 1) if batch_first else outputs, *finals)


def _lstm(step: Tensor, from_state: Tensor, _: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    keep, forget, new, give = (step + from_state).chunk(4, -1)
    memory = forget.sigmoid() * memory + keep.sigmoid() * new.tanh()
    return give.sigmoid() * memory.tanh(), memory


def _gru(step: Tensor, from_state: Tensor, hidden: Tensor) -> tuple[Tensor]:
    reset, update, new = step.chunk(3, -1)
    of_reset, of_update, of_new = from_state.chunk(3, -1)
    new = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return (new + (update + of_update).sigmoid() * (hidden - new),)


def _rnn(
    bend: Callable[[Tensor], Tensor], step: Tensor, from_state: Tensor, _: Tensor
) -> tuple[Tensor]:
    return (bend(step + from_state),)


RECURRENT: dict[Any, Callable[..., tuple[Tensor, ...]]] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: partial(_rnn, torch.tanh),
    torch.rnn_relu: partial(_rnn, torch.relu),
}
"""A step of each: its inputs' and its state's part, and the state; returns the new state."""
