"""Fields of a paper: answered from the statement, or left to a person and said so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TO_FILL = "TO BE FILLED IN BY A PERSON"

_ESCAPED = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|#"})


@dataclass(frozen=True, kw_only=True)
class Field:
    """One point of a paper.

    Attributes:
        name: Of the point.
        answer: From the statement; empty where only a person can answer.
        ask: What a person is to write or to check; empty where nothing is left.
        source: Where the paper's source has this point, and how it was read; empty where the paper
            as a whole says so.
    """

    name: str
    answer: str = ""
    ask: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Points under one heading.

    Attributes:
        title: The heading.
        fields: Its points.
    """

    title: str
    fields: Sequence[Field]


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return " ".join(text.translate(_ESCAPED).split())


def markdown(title: str, notes: Iterable[str], parts: Sequence[Part]) -> str:
    """Return a paper: notes, what is left to a person, then point by point.

    Args:
        title: Of the paper.
        notes: Sentences that stand first, in Markdown.
        parts: Points, whose answers may be anybody's text.
    """
    lines = [f"# {title}", ""]
    for note in notes:
        lines += [note, ""]
    left = [each for part in parts for each in part.fields if each.ask]
    lines += [f"**{len(left)} points are left to a person**, each marked *{TO_FILL}*:", ""]
    lines += [f"- {escaped(each.name)}" for each in left] + [""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        for each in part.fields:
            lines += [f"### {escaped(each.name)}", ""]
            if each.answer:
                lines += [escaped(each.answer), ""]
            if each.ask:
                lines += [f"*{TO_FILL}: {escaped(each.ask)}*", ""]
            if each.source:
                lines += [f"Source: {escaped(each.source)}", ""]
    return "\n".join(lines)
