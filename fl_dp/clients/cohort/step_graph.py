"""A step as a CUDA graph: captured once, and replayed with other inputs in the same memory.

A graph repeats what it captured, also random numbers. So nothing is drawn inside: each step's rows,
weights and coins are inputs, which are copied before each replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

logger = logging.getLogger("flwr.fl_dp.client")

FEWEST_REPLAYS = 3  # a capture costs about a step

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function, which it does not carry out, and returns what repeats its work."""


class RepeatedStep:
    """A step that reads its inputs from memory of its own."""

    def __init__(
        self, step: Callable[..., None], inputs: Sequence[Tensor], capture: Capture
    ) -> None:
        """Capture a step; nothing is computed yet.

        Raises:
            Exception: It can't be captured; for instance it waits for the device.
        """
        self._held = [values.clone() for values in inputs]
        self._replay = capture(lambda: step(*self._held))

    def __call__(self, *inputs: Tensor) -> None:
        """Take a step with inputs of the same shapes."""
        for held, values in zip(self._held, inputs, strict=True):
            held.copy_(values)
        self._replay()


def captured(
    step: Callable[..., None], inputs: Sequence[Tensor], capture: Capture
) -> RepeatedStep | None:
    """A step that replays; None where it can't be captured, of which one log line tells."""
    try:
        return RepeatedStep(step, inputs, capture)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        log_eager(f"a capture failed ({type(error).__name__}: {first_line})")
        return None


def cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """Capture a function's kernels."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


@cache
def log_eager(reason: str) -> None:
    """Say once why steps are no CUDA graphs."""
    logger.info("steps of units trained together are no CUDA graphs: %s", reason)
