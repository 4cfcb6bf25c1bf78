"""A picture of attacks: how many members they find at how many false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fl_dp.accounting.trade_off import TradeOff
from fl_dp.app.pictures import COLOURS, PALE, new_picture, save_picture
from fl_dp.lab.attacks.membership.roc import Roc

_INK = "#20262b"


def plot_roc(
    rocs: Mapping[str, Roc],
    allowed: Mapping[str, TradeOff],
    target: Path,
    *,
    title: str,
    rates: Sequence[float],
    alpha: float,
) -> bool:
    """Draw attacks below what a guarantee allows, both axes logarithmic.

    Args:
        rocs: By the attacks' names.
        allowed: Curves that no attack lies above, the tightest last; none where nothing is
            promised.
        target: The PNG to write.
        title: What was attacked.
        rates: False-positive rates whose points are marked; half of the least is the axes' end.
        alpha: False-alarm rate of the marked points' intervals.

    Returns:
        Whether it was drawn: False when matplotlib is not installed.
    """
    made = new_picture((1.0, 0.45), size=(9.0, 5.0))
    if made is None:
        return False
    figure, (axes, key) = made
    key.axis("off")  # the legend has a panel of its own: curves are everywhere
    least = min(rates) / 2.0
    grid = np.geomspace(least, 1.0, 400)
    for (name, curve), style in zip(allowed.items(), ("--", "-"), strict=False):
        axes.plot(grid, curve(grid), style, color=_INK, linewidth=1.6)
        key.plot([], [], style, color=_INK, linewidth=1.6, label=name)
    if allowed:
        *_, tightest = allowed.values()
        axes.fill_between(grid, tightest(grid), 1.0, color=_INK, alpha=0.06, linewidth=0)
    for index, (name, roc) in enumerate(rocs.items()):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(*roc.curve(), color=colour, linewidth=1.4, drawstyle="steps-post")
        key.plot([], [], color=colour, linewidth=1.4, label=name)
        for point in map(roc.at, rates):
            low, high = point.tpr_interval(alpha)
            ends = [[max(point.tpr - low, 0.0)], [max(high - point.tpr, 0.0)]]
            at = [point.asked], [point.tpr]
            axes.errorbar(*at, yerr=ends, color=colour, capsize=2.5, marker="o", ms=3)
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
