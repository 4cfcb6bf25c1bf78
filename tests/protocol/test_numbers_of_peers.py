"""Numbers that arrive as text are finite ones, or the text is refused: they are compared later."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fl_dp.codec import decode_text, encode_text
from fl_dp.documents import parsed_object
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, SumInstruction

PROMISE = {"epsilon": 2.0, "delta": 1e-5, "neighboring_relation": "zero-out"}
NOISE = PROMISE | {"scheme": "gaussian", "noise_multiplier": 1.0, "clipping_norm": 1.0}
ROUND = json.loads(encode_text(RoundInstruction(server_round=1)))
Read = Callable[[str], object]
TEXTS: dict[str, tuple[dict[str, Any], Read, tuple[str, ...]]] = {
    "price of a sum": (
        PROMISE | {"rounds": 3, "unit": "record"},
        partial(decode_text, SumInstruction),
        ("epsilon", "delta", "rounds"),
    ),
    "noise of a client": (
        ROUND | {"client_noise": NOISE},
        RoundInstruction.from_json,
        ("client_noise.epsilon", "client_noise.delta"),
    ),
    "round": (
        ROUND | {"sampling_rate": 0.5, "weight_cap": 3.0},
        RoundInstruction.from_json,
        ("sampling_rate", "weight_cap", "max_units"),
    ),
}
CASES = [(name, field) for name, (_, _, fields) in TEXTS.items() for field in fields]


def changed(document: dict[str, Any], path: str, word: str) -> str:
    """Return the text of a document in which a word stands in place of a field's value."""
    mark = "the field"
    *groups, last = path.split(".")
    copy = json.loads(json.dumps(document))
    inner = copy
    for group in groups:
        inner = inner[group]
    inner[last] = mark
    return json.dumps(copy).replace(f'"{mark}"', word)


@pytest.mark.parametrize(("name", "field"), CASES)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "0", '"7"', "[7]"])
def test_what_compares_with_nothing_is_refused(name: str, field: str, word: str) -> None:
    document, read, _ = TEXTS[name]
    if (field, word) == ("sampling_rate", "0"):
        return  # nobody takes part, which is a rate
    with pytest.raises(ValueError):
        read(changed(document, field, word))


def test_a_rate_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sampling_rate must lie in \[0, 1\]"):
        RoundInstruction(server_round=1, sampling_rate=1.5)


@pytest.mark.parametrize("name", TEXTS)
def test_the_examples_are_read(name: str) -> None:
    document, read, _ = TEXTS[name]
    read(json.dumps(document))


@pytest.mark.parametrize("made", [SumInstruction, NoiseInstruction])
@pytest.mark.parametrize("wrong", [{"neighboring_relation": "any"}, {"epsilon": float("nan")}])
def test_no_such_promise_can_be_made(made: Any, wrong: dict[str, Any]) -> None:
    usual = {"rounds": 3} if made is SumInstruction else NOISE
    with pytest.raises(ValueError):
        made(**usual | wrong)


def test_no_document_of_a_peer_has_a_number_without_an_end() -> None:
    assert parsed_object('{"a": 1.5, "b": [2, 1e300]}', "test") == {"a": 1.5, "b": [2, 1e300]}
    for word in ("NaN", "Infinity", "1e400"):
        with pytest.raises(ValueError, match="numbers must be finite"):
            parsed_object(f'{{"a": [{{"b": {word}}}]}}', "test")
