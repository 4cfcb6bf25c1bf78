"""A picture of the runs: accuracy and epsilon over the rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COLOURS = ("#1b6ca8", "#d1495b", "#3c8d5a", "#8d6cab", "#c98b2b", "#5b6770")


def plot_curves(runs: Mapping[str, Sequence[Sequence[dict[str, Any]]]], target: Path) -> bool:
    """Draw public test accuracy and epsilon so far over the rounds, one colour a variant.

    Args:
        runs: For each variant, the lines of `metrics.jsonl` of each of its runs.
        target: The PNG to write.

    Returns:
        Whether it was drawn: False when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    accuracy, epsilon = figure.subplots(1, 2)
    for index, (variant, members) in enumerate(runs.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        for nth, lines in enumerate(members):
            rounds = [line["round"] for line in lines]
            label = variant if nth == 0 else None
            accuracy.plot(
                rounds,
                [line["test_accuracy"] for line in lines],
                color=colour,
                label=label,
                linewidth=1.4,
                alpha=0.8,
            )
            if nth == 0:
                epsilon.plot(
                    rounds,
                    [line.get("epsilon", math.nan) for line in lines],
                    color=colour,
                    label=label,
                    linewidth=1.8,
                )
    accuracy.set(xlabel="round", ylabel="accuracy", title="Public test accuracy, one line a seed")
    epsilon.set(xlabel="round", ylabel="epsilon", title="Privacy spent so far (unit: one client)")
    for axes in (accuracy, epsilon):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    figure.savefig(target, dpi=150)
    return True
