"""The picture of the rooms in docs/architecture.md, drawn from what the import contracts say.

    python docs/draw_rooms.py

The floors are those of the layers contract in pyproject.toml, and each room's sentence is the first
of its package's docstring, so that the picture can't differ from what CI checks.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from fl_dp.app.pictures import COLOURS

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.png"

# In which room a step of docs/architecture.md takes place; its text has the same numbers.
UPDATE = ("strategies", "protocol", "clients", "tasks", "updates", "mechanisms")
CHARGE = ("plan", "ledger", "accounting", "statement", "viewer")

# Each building, and a room of its highest floor.
BUILDINGS = {
    "the commands": "server_app",
    "the wings": "lab",
    "the app": "terminal",
    "the library": "gate",
}

_WIDTH, _HEIGHT, _GAP, _BETWEEN = 13.0, 0.86, 0.14, 0.34
_HEAD, _LINE = 0.5, 0.18  # height of a room's name with its margins, and of a line of words
_ABREAST = 4  # rooms, of which more would be narrower than their names
_LEFT = 0.55  # of the rooms; a building's name stands beside them
_CORE, _OTHER, _GROUND = "#e8f1ea", "#ffffff", "#eef1f4"


@dataclass(frozen=True, kw_only=True)
class Room:
    """A room of the picture: a package, or a file that stands alone."""

    name: str
    sentence: str
    is_core: bool


def floors() -> list[list[Room]]:
    """Return the rooms of each floor, the highest floor first."""
    contracts = _contracts()
    core = contracts["The privacy core knows no framework"]["source_modules"]
    return [
        [_room(name.strip(), is_core=name.strip() in core) for name in floor.split("|")]
        for floor in contracts["Imports run one way"]["layers"]
    ]


def _contracts() -> dict[str, dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {each["name"]: each for each in settings["contracts"]}


def _room(module: str, *, is_core: bool) -> Room:
    name = module.removeprefix("fl_dp.")
    folder = ROOT / ("strategies" if name == "strategies" else f"fl_dp/{name}")
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    words = ast.get_docstring(ast.parse(source.read_text())) or ""
    first = " ".join(words.split("\n\n")[0].split())
    # The room's own name is drawn above: "Mechanisms: clipping, ..." loses its first word.
    _, _, rest = first.partition(": ")
    sentence = rest if rest and len(rest) > len(first) / 2 else first
    capital = sentence[:1].upper() + sentence[1:]  # of words: a command begins with its quote
    return Room(name=name, sentence=capital.replace("`", ""), is_core=is_core)


def draw() -> Figure:
    """Return the picture."""
    buildings = _buildings()
    height = sum(map(_height_of, buildings.values())) + _BETWEEN * len(buildings)
    figure = Figure(figsize=(_WIDTH, height + 0.6))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, _WIDTH)
    axes.set_ylim(-0.7, height - 0.1)
    axes.axis("off")
    top = height - _BETWEEN
    for name, rows in buildings.items():
        _draw_building(figure, axes, name, rows, top)
        top -= _height_of(rows) + _BETWEEN
    axes.text(
        _GAP,
        -0.4,
        "A room imports from lower floors alone. Green: the privacy core, without any framework.",
        fontsize=11,
        va="center",
    )
    for place, (label, colour) in enumerate(
        (("an update's way", COLOURS[0]), ("a charge's way", COLOURS[1]))
    ):
        _badge(axes, 8.9 + 2.1 * place, -0.4, "1", colour)
        axes.text(9.15 + 2.1 * place, -0.4, label, fontsize=11, va="center")
    return figure


def _buildings() -> dict[str, list[list[Room]]]:
    """Return the floors of each building, the highest first; a long one in several rows."""
    found: dict[str, list[list[Room]]] = {}
    names = {room: name for name, room in BUILDINGS.items()}
    for row in floors():
        for room in row:
            if room.name in names:
                found[names[room.name]] = []
        [*_, building] = found.values()
        building += [row[first : first + _ABREAST] for first in range(0, len(row), _ABREAST)]
    return found


def _height_of(rows: list[list[Room]]) -> float:
    return sum(_height_of_floor(row) + _GAP for row in rows) + _GAP


def _height_of_floor(row: list[Room]) -> float:
    """Return the height of a floor in which every sentence is whole."""
    lines = max(len(_wrapped(room, _width_on(row))) for room in row)
    return max(_HEIGHT, _HEAD + _LINE * lines)


def _width_on(row: list[Room]) -> float:
    return (_WIDTH - _LEFT - _GAP * (len(row) + 1)) / len(row)


def _wrapped(room: Room, width: float) -> list[str]:
    return textwrap.wrap(room.sentence, int(width * 11.5))


def _draw_building(
    figure: Figure, axes: Axes, name: str, rows: list[list[Room]], top: float
) -> None:
    """Draw a building downwards from its roof."""
    height = _height_of(rows)
    axes.add_patch(
        FancyBboxPatch(
            (_GAP, top - height),
            _WIDTH - 2 * _GAP,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=_GROUND,
            edgecolor="none",
        )
    )
    axes.text(
        (_GAP + _LEFT) / 2,
        top - height / 2,
        name,
        fontsize=12,
        color=COLOURS[5],
        weight="bold",
        rotation=90,
        ha="center",
        va="center",
    )
    bottom = top
    for row in rows:
        width, tall = _width_on(row), _height_of_floor(row)
        bottom -= tall + _GAP
        for place, room in enumerate(row):
            left = _LEFT + place * (width + _GAP)
            _draw_room(figure, axes, room, left, bottom, width, tall)


def _draw_room(
    figure: Figure, axes: Axes, room: Room, left: float, bottom: float, width: float, tall: float
) -> None:
    box = FancyBboxPatch(
        (left, bottom),
        width,
        tall,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=_CORE if room.is_core else _OTHER,
        edgecolor=COLOURS[5],
    )
    axes.add_patch(box)
    top = bottom + tall - 0.23
    title = axes.text(left + 0.13, top, room.name, fontsize=13, weight="bold", va="center")
    words = "\n".join(_wrapped(room, width))
    axes.text(left + 0.13, top - 0.19, words, fontsize=10, va="top")
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # matplotlib
    drawn = title.get_window_extent(renderer)
    right = axes.transData.inverted().transform(drawn.corners())[-1][0] + 0.28
    for steps, colour in ((UPDATE, COLOURS[0]), (CHARGE, COLOURS[1])):
        for number, name in enumerate(steps, start=1):
            if name == room.name:
                _badge(axes, right, top, str(number), colour)
                right += 0.4


def _badge(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    axes.text(
        x,
        y,
        text,
        fontsize=9.5,
        weight="bold",
        color="white",
        ha="center",
        va="center",
        bbox={"boxstyle": "circle,pad=0.28", "facecolor": colour, "edgecolor": "none"},
    )


if __name__ == "__main__":
    draw().savefig(PICTURE, dpi=110)
    print(f"wrote {PICTURE.relative_to(ROOT)}")
