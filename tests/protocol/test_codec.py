"""The one form of values in JSON: what is written, what is read, what is refused in which words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import pytest

from fl_dp.codec import decode, decode_text, encode, encode_text


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: float


@dataclass(frozen=True)
class Square:
    kind: ClassVar[str] = "square"
    side: int


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Circle | Square, ...]
    colour: Colour
    names: tuple[str | int, ...] = ()
    best: Square | None = None
    weights: Mapping[str, float] | None = None
    public: bool = False

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("a drawing has a shape")


DRAWING = Drawing(
    shapes=(Circle(1.5), Square(2)),
    colour=Colour.BLUE,
    names=("a", 7),
    best=Square(3),
    weights={"ink": 1.0},
)
WRITTEN: dict[str, Any] = {
    "shapes": [{"kind": "circle", "radius": 1.5}, {"kind": "square", "side": 2}],
    "colour": "blue",
    "names": ["a", 7],
    "best": {"kind": "square", "side": 3},
    "weights": {"ink": 1.0},
    "public": False,
}


def test_a_value_is_written_by_its_fields_and_read_by_their_types() -> None:
    assert encode(DRAWING) == WRITTEN
    assert decode(Drawing, WRITTEN) == DRAWING
    assert decode_text(Drawing, encode_text(DRAWING)) == DRAWING


def test_a_field_with_a_default_may_be_missing() -> None:
    short = {name: WRITTEN[name] for name in ("shapes", "colour")}
    assert decode(Drawing, short) == Drawing(DRAWING.shapes, Colour.BLUE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"colour": "green"}, "drawing.colour must be red or blue, got str"),
        ({"shapes": {}}, "drawing.shapes must be a list, got dict"),
        ({"shapes": [{"kind": []}]}, r"of kind \[\] is unknown .* which knows circle, square"),
        ({"shapes": [{"kind": "circle"}]}, r"drawing.shapes\[0\] needs radius"),
        ({"shapes": [{"kind": "square", "side": 1.0}]}, "side must be a whole number, got float"),
        ({"shapes": [{"kind": "square", "side": True}]}, "side must be a whole number, got bool"),
        ({"shapes": [3]}, r"drawing.shapes\[0\] must be an object, got int"),
        ({"weights": {"ink": None}}, "drawing.weights.ink must be a number, got NoneType"),
        ({"public": 1}, "drawing.public must be true or false, got int"),
        ({"size": 3}, "drawing has no size: it has shapes, colour, names, best, weights, public"),
        ({"shapes": []}, "a drawing has a shape"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(Drawing, WRITTEN | wrong)


def test_an_error_is_short_whatever_was_written() -> None:
    endless = "x" * 100_000
    for wrong in (
        {endless: 1},
        {"weights": {endless: None}},
        {"best": {"kind": endless}},
        {"colour": endless},
    ):
        with pytest.raises(ValueError) as refused:
            decode(Drawing, WRITTEN | wrong)
        assert len(str(refused.value)) < 300


def test_a_text_without_an_object_is_refused() -> None:
    for text in ("[]", "nothing", "1e999", json.dumps("x")):
        with pytest.raises(ValueError):
            decode_text(Drawing, text)
