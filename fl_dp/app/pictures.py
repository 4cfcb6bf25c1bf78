"""The look that every picture shares: frame, grid, colours, legend.

Needs matplotlib, which `pip install 'fl-dp[viewer]'` brings; without it `new_picture` returns None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1b6ca8", "#d1495b", "#3c8d5a", "#8d6cab", "#c98b2b", "#5b6770")
PALE = "#5b6770"
"""Of what is there for comparison only."""

_LEAST_ROOM = 0.02  # of an axis of accuracies: closer ends are the same but for the seed


def new_picture(
    widths: Sequence[float] = (1.0,), *, size: tuple[float, float] = (9.0, 3.4)
) -> tuple[Figure, list[Axes]] | None:
    """Return an empty picture and its panels, left to right; None without matplotlib.

    Args:
        widths: Relative width of each panel.
        size: Of the whole, in inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(widths), width_ratios=list(widths), squeeze=False)[0]
    return figure, list(panels)


def ends_apart(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the ends of an axis on which one can tell where curves end.

    What they start from falls out below where it would squash their ends; a lone curve is whole.
    """
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    finals = [curve[-1] for curve in curves if curve and math.isfinite(curve[-1])]
    if not finals:
        return 0.0, 1.0
    high, low = max(values), min(values)
    if len(finals) > 1:
        low = max(low, min(finals) - 2.0 * max(high - min(finals), _LEAST_ROOM))
    margin = 0.05 * max(high - low, _LEAST_ROOM)
    return low - margin, high + margin


def where_drawn(*pictures: object, drawn: bool) -> str:
    """Return a line that says where pictures are, or what brings them."""
    noun = "picture" if len(pictures) == 1 else "pictures"
    if drawn:
        return f"{noun.capitalize()}: {', '.join(map(str, pictures))}"
    return f"No {noun}: pip install 'fl-dp[viewer]' brings matplotlib"


def save_picture(figure: Figure, target: Path) -> None:
    """Give every panel the shared look and write a PNG."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(target, dpi=150)
