"""A picture of the runs: accuracy and epsilon over the rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_dp.app.pictures import COLOURS, ends_apart, new_picture, save_picture
from fl_dp.commands.terminal.numbers import span

_FAR_APART = 10.0  # curves of epsilons further apart than that squash each other on a linear axis


def plot_curves(
    runs: Mapping[str, Sequence[Sequence[dict[str, Any]]]],
    target: Path,
    *,
    unit: str,
    deltas: Sequence[float],
    measured_on: str = "test",
) -> bool:
    """Draw public accuracy and epsilon so far over the rounds, one colour a variant.

    Args:
        runs: For each variant, the lines of `metrics.jsonl` of each of its runs.
        target: The PNG to write.
        unit: What epsilon protects, for instance `one client`.
        deltas: The delta of each run.
        measured_on: The public rows that accuracy is of.

    Returns:
        Whether it was drawn: False when matplotlib is not installed.
    """
    made = new_picture((1.0, 1.0))
    if made is None:
        return False
    figure, (accuracy, epsilon) = made
    last = []
    for index, (variant, members) in enumerate(runs.items()):
        colour = COLOURS[index % len(COLOURS)]
        for nth, lines in enumerate(members):
            rounds = [line["round"] for line in lines]
            label = variant if nth == 0 else None
            accuracies = [line["test_accuracy"] for line in lines]
            accuracy.plot(rounds, accuracies, color=colour, label=label, linewidth=1.4, alpha=0.8)
            spent = [line.get("epsilon", math.nan) for line in lines]
            if nth == 0 and any(each > 0.0 for each in spent):  # NaN without privacy
                epsilon.plot(rounds, spent, color=colour, label=label, linewidth=1.8)
                last.append(spent[-1])
    accuracy.set(
        xlabel="round", ylabel=f"public {measured_on} accuracy", title="Accuracy, one line a run"
    )
    epsilon.set(
        xlabel="round",
        ylabel="epsilon",
        title=f"Privacy spent of {unit}, delta {span(deltas, '.2g')}",
    )
    for axes in (accuracy, epsilon):
        axes.set_xlim(left=0)
    accuracy.set_ylim(
        ends_apart(
            [[line["test_accuracy"] for line in run] for each in runs.values() for run in each]
        )
    )
    if last and max(last) > _FAR_APART * min(last):
        # Nothing is spent before round 1, which it leaves out.
        epsilon.set_yscale("log", nonpositive="mask")
    else:
        epsilon.set_ylim(bottom=0)
    if not last:
        epsilon.set_title("No privacy: nothing is promised")
    save_picture(figure, target)
    return True
