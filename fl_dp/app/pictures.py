"""The shared look of all pictures: frame, grid, colours, legend.

Needs matplotlib (`pip install 'fl-dp[viewer]'`); without it `new_picture` returns None.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

COLOURS = ("#1b6ca8", "#d1495b", "#3c8d5a", "#8d6cab", "#c98b2b", "#5b6770")
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)), (0, (4, 3)), (0, (10, 2)))
PALE = "#5b6770"
"""Colour of curves that are shown for comparison only."""

_LEAST_ROOM = 0.02  # between ends of curves: closer ones are the same but for the seed
_LEAST_AXIS = 0.1  # of an axis of accuracies: two of 500 test rows must not look decisive
_LEGEND_COLUMNS = 5
_ABREAST = 3  # panels in a row: more can't be read on a page
_NUDGE, _FURTHEST = 3.0, 5.0  # points between marks at one position, and from that position


def new_picture(
    widths: Sequence[float] = (1.0,), *, size: tuple[float, float] = (9.0, 3.4), rows: int = 1
) -> tuple[Figure, list[Axes]] | None:
    """An empty picture and its panels, row by row; None without matplotlib.

    `widths` are the relative ones of a row's panels; `size` is the picture's width and height, in
    inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, len(widths), width_ratios=list(widths), squeeze=False)
    return figure, list(panels.ravel())


def equal_panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]] | None:
    """An empty picture of `count` panels of one size, in inches; None without matplotlib."""
    columns = min(count, _ABREAST)
    rows = math.ceil(count / columns)
    picture = new_picture([1.0] * columns, size=(size[0] * columns, size[1] * rows), rows=rows)
    if picture is None:
        return None
    figure, panels = picture
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def in_lines(text: str, width: int = 52) -> str:
    """A title in small letters that fits a panel of 4 inches."""
    return textwrap.fill(text, width, break_on_hyphens=False)


def dashes(nth: int) -> Any:
    """Dashes of the `nth` curve: where curves cover each other, both are seen."""
    return _DASHES[nth % len(_DASHES)]


def ends_apart(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends of an axis on which curves' last values can be compared.

    First values are cut off below if they would squash the last ones; a single curve is whole.
    """
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    finals = [curve[-1] for curve in curves if curve and math.isfinite(curve[-1])]
    if not finals:
        return 0.0, 1.0
    high, low = max(values), min(values)
    if len(finals) > 1:
        low = max(low, min(finals) - 2.0 * max(high - min(finals), _LEAST_ROOM))
    return score_axis(low, high)


def score_axis(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis of accuracies that holds two numbers.

    It is so long that a few test rows make no visible difference.
    """
    missing = max(_LEAST_AXIS - (high - low), 0.0)
    low, high = low - missing / 2.0, high + missing / 2.0
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def nudge(drawn: ErrorbarContainer, nth: int, count: int) -> None:
    """Move the `nth` of `count` curves' marks aside, so that none covers another.

    Numbers and axes stay as they are.
    """
    from matplotlib.transforms import offset_copy

    step = min(_NUDGE, 2.0 * _FURTHEST / max(count - 1, 1))
    aside = step * (nth - (count - 1) / 2.0)
    for artist in drawn.get_children():
        figure = artist.get_figure(root=True)
        artist.set_transform(offset_copy(artist.get_transform(), figure, x=aside, units="points"))


def where_drawn(*pictures: object, drawn: bool) -> str:
    """A line with pictures' paths, or with what to install for them."""
    noun = "picture" if len(pictures) == 1 else "pictures"
    if drawn:
        return f"{noun.capitalize()}: {', '.join(map(str, pictures))}"
    return f"No {noun}: pip install 'fl-dp[viewer]' brings matplotlib"


def save_picture(figure: Figure, target: Path) -> None:
    """Give every panel the shared look and write a PNG."""
    give_shared_look(figure)
    figure.savefig(target, dpi=150)


def give_shared_look(figure: Figure) -> None:
    """Give every panel the shared look.

    Panels with equal curve names share one legend, below them.
    """
    names = [axes.get_legend_handles_labels()[1] for axes in figure.axes]
    longest = max(names, key=len)
    shared = len(names) > 1 and all(own and {*own} <= {*longest} for own in names)
    for axes, own in zip(figure.axes, names, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if own and not shared:
            axes.legend(frameon=False, fontsize=8)
    if shared:
        handles, labels = figure.axes[names.index(longest)].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(len(labels), _LEGEND_COLUMNS),
            frameon=False,
            fontsize=8,
        )
