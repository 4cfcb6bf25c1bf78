"""The picture of a secure sum in docs/secure-aggregation.md: who sends what, and who sees it.

python docs/draw_secure_sum.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from fl_dp.app.pictures import COLOURS

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "secure_sum.png"

_WIDTH, _STEP = 13.0, 1.0
_CLIENT, _SERVER, _MEMBER = 2.2, 6.5, 10.8
_NAMES = ((_CLIENT, "each client"), (_SERVER, "server"), (_MEMBER, "each committee member"))


class Message(NamedTuple):
    """An arrow of the picture.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        words: What is sent.
    """

    start: float
    end: float
    words: str


class Phase(NamedTuple):
    """A band of the picture.

    Attributes:
        title: Drawn at its left.
        messages: From top to bottom.
    """

    title: str
    messages: tuple[Message, ...]


PHASES = (
    Phase(
        "set-up, once a run",
        (
            Message(_CLIENT, _SERVER, "a fresh key, signed by the node's identity"),
            Message(
                _SERVER, _CLIENT, "everybody's keys: each node checks signatures and its roster"
            ),
        ),
    ),
    Phase(
        "phase 1",
        (
            Message(_SERVER, _CLIENT, "the model and the terms of the sum"),
            Message(
                _CLIENT,
                _SERVER,
                "clipped update + share of noise + masks, and encrypted shares of the seeds",
            ),
        ),
    ),
    Phase(
        "phase 2",
        (
            Message(_SERVER, _MEMBER, "who replied, and the encrypted shares for this member"),
            Message(_MEMBER, _SERVER, "shares that remove the masks of this one sum, once"),
        ),
    ),
)
END = "The server removes the masks and reads the noisy sum. It has seen no update and no noise."


def draw() -> Figure:
    """Return the picture."""
    rows = sum(len(phase.messages) for phase in PHASES)
    height = rows * _STEP + len(PHASES) * 0.55 + 1.9
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, _WIDTH)
    axes.set_ylim(0.0, height)
    axes.axis("off")
    top = height - 0.75
    for x, name in _NAMES:
        axes.text(
            x,
            height - 0.4,
            name,
            fontsize=14,
            weight="bold",
            ha="center",
            va="center",
            bbox={"boxstyle": "round,pad=0.4", "facecolor": "#e8f1ea", "edgecolor": COLOURS[5]},
        )
        axes.plot([x, x], [0.95, top - 0.1], color=COLOURS[5], linewidth=1.2, zorder=0)
    y = top - 0.25
    for number, phase in enumerate(PHASES):
        y = _draw_phase(axes, phase, y, shaded=number % 2 == 0)
    axes.text(_WIDTH / 2, 0.45, END, fontsize=12.5, ha="center", va="center")
    return figure


def _draw_phase(axes: Axes, phase: Phase, top: float, *, shaded: bool) -> float:
    """Draw one band and return where the next begins."""
    tall = len(phase.messages) * _STEP + 0.35
    if shaded:
        box = FancyBboxPatch(
            (0.15, top - tall),
            _WIDTH - 0.3,
            tall,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor="#f3f5f7",
            edgecolor="none",
            zorder=-1,
        )
        axes.add_patch(box)
    axes.text(0.35, top - 0.22, phase.title, fontsize=11.5, style="italic", va="center")
    y = top - 0.85
    for message in phase.messages:
        colour = COLOURS[0] if message.start == _SERVER else COLOURS[1]
        axes.annotate(
            "",
            xy=(message.end, y),
            xytext=(message.start, y),
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.0},
        )
        words = textwrap.fill(message.words, 52)
        centre = (message.start + message.end) / 2
        axes.text(centre, y + 0.08, words, fontsize=10.5, ha="center", va="bottom")
        y -= _STEP
    return top - tall - 0.2


if __name__ == "__main__":
    draw().savefig(PICTURE, dpi=110)
    print(f"wrote {PICTURE.relative_to(ROOT)}")
