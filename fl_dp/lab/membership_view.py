"""A picture of attacks: how many members they find at how many false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import TradeOff
from fl_dp.app.pictures import COLOURS, PALE, new_picture, save_picture

_INK = "#20262b"


@dataclass(frozen=True, kw_only=True, eq=False)
class RocCurve:
    """The ROC of one attack.

    Attributes:
        fpr: False-positive rates, rising from 0 to 1.
        tpr: True-positive rates.
        points: False-positive rate, true-positive rate, and the ends of its interval, for each
            point that a table names.
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    points: Sequence[tuple[float, float, float, float]] = ()


def plot_roc(
    curves: Mapping[str, RocCurve],
    allowed: Mapping[str, TradeOff],
    target: Path,
    *,
    title: str,
    least: float,
) -> bool:
    """Draw attacks below what a guarantee allows, both axes logarithmic.

    Args:
        curves: By the attacks' names.
        allowed: Curves that no attack lies above, the tightest last; none where nothing is
            promised.
        target: The PNG to write.
        title: What was attacked.
        least: The smallest rate that is shown.

    Returns:
        Whether it was drawn: False when matplotlib is not installed.
    """
    made = new_picture((1.0, 0.45), size=(9.0, 5.0))
    if made is None:
        return False
    figure, (axes, key) = made
    key.axis("off")  # the legend has a panel of its own: curves are everywhere
    grid = np.geomspace(least, 1.0, 400)
    for (name, curve), style in zip(allowed.items(), ("--", "-"), strict=False):
        axes.plot(grid, curve(grid), style, color=_INK, linewidth=1.6)
        key.plot([], [], style, color=_INK, linewidth=1.6, label=name)
    if allowed:
        *_, tightest = allowed.values()
        axes.fill_between(grid, tightest(grid), 1.0, color=_INK, alpha=0.06, linewidth=0)
    for index, (name, roc) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(roc.fpr, roc.tpr, color=colour, linewidth=1.4, drawstyle="steps-post")
        key.plot([], [], color=colour, linewidth=1.4, label=name)
        for fpr, tpr, low, high in roc.points:
            ends = [[max(tpr - low, 0.0)], [max(high - tpr, 0.0)]]
            axes.errorbar([fpr], [tpr], yerr=ends, color=colour, capsize=2.5, marker="o", ms=3)
    axes.plot(grid, grid, ":", color=PALE, linewidth=1.2)
    key.plot([], [], ":", color=PALE, linewidth=1.2, label="guessing")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(least, 1.0),
        ylim=(least, 1.05),
        xlabel="false-positive rate",
        ylabel="true-positive rate",
        title=title,
    )
    axes.title.set_fontsize(10)
    save_picture(figure, target)
    return True
