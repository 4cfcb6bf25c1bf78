"""Templates of the papers, filled from `Facts`.

Texts of a run may be a stranger's: each value is escaped, in Markdown by a backslash, in YAML by
quoting the finished text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fl_dp.statement import NoPromise, statement_markdown
from fl_dp.viewer.jinja import environment

from .facts import Facts, Promised

if TYPE_CHECKING:
    from jinja2 import Environment

TO_FILL = "TO BE FILLED IN BY A PERSON"
"""Mark of everything in a paper that is left to a person."""

TO_FILL_IN = {"en": TO_FILL, "zh": "待人工填写"}
"""The mark in each language."""

_SUMMARY = {
    "en": "**{count} points are left to a person**, each marked *{mark}*:",
    "zh": "**{count} 处需由人填写**，均标有 *{mark}*：",
}

_FOLDER = Path(__file__).parent / "templates"
_ESCAPED = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>|#"})
_INERT = str.maketrans({"<": "&lt;", "[": "\\[", "|": "\\|"})  # our sentences have code in them
_POINT = re.compile(
    rf"^### (.*)$(?:\n(?!### ).*)*?\n\*(?:{'|'.join(TO_FILL_IN.values())})[:：]", re.MULTILINE
)
_EXPRESSION = re.compile(r"\{\{((?:(?!\}\}).)*)\}\}")
_NO_WRAP = 1 << 20  # what is left to a person stays in one piece, to be searched for


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return " ".join(text.translate(_ESCAPED).split())


def has_template(name: str) -> bool:
    """Whether there is a template of that name."""
    return (_FOLDER / name).is_file()


def filled_markdown(name: str, facts: Facts, language: str = "en") -> str:
    """A paper in Markdown; each language of `TO_FILL_IN` has its own templates."""
    from markupsafe import Markup

    def put_in(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escaped(str(value)))

    templates = environment(_FOLDER, finalize=put_in, keep_trailing_newline=True)
    templates.filters |= _FILTERS | {
        "json": lambda value: Markup(json.dumps(value)),
        "page": lambda statement: Markup(_page(statement)),
    }
    templates.globals["left_to_a_person"] = lambda points: Markup(
        _left_to_a_person(points, language)
    )
    path = name if language == "en" else f"{language}/{name}"
    promise = facts.promise if facts.promises else None
    return templates.get_template(path).render(facts=facts, promise=promise)


def _page(statement: Promised | NoPromise) -> str:
    """A statement's own page, one heading lower."""
    return f"#{statement_markdown(_without_markup(statement))}".replace("\n#", "\n##")


def _without_markup(part: Any) -> Any:
    """A part of a statement whose texts can't become Markdown or HTML."""
    match part:
        case Enum():
            return part
        case str():
            return " ".join(part.translate(_INERT).split())
        case tuple():
            return tuple(map(_without_markup, part))
        case Mapping():
            return {_without_markup(key): _without_markup(value) for key, value in part.items()}
    if not is_dataclass(part) or isinstance(part, type):
        return part
    names = [field.name for field in fields(part)]
    return replace(part, **{name: _without_markup(getattr(part, name)) for name in names})


def _left_to_a_person(points: str, language: str) -> str:
    """The list of points that a person must fill in."""
    names = _POINT.findall(points)
    lines = [_SUMMARY[language].format(count=len(names), mark=TO_FILL_IN[language]), ""]
    return "\n".join([*lines, *(f"- {name}" for name in names)])


def filled_yaml(name: str, facts: Facts) -> str:
    """A YAML document whose texts are all templates."""
    templates = environment(_FOLDER, autoescape=False)
    templates.filters |= _FILTERS
    values = {"facts": facts, "promise": facts.promise}
    document = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    text = yaml.safe_dump(
        _filled(templates, document, values), sort_keys=False, allow_unicode=True, width=_NO_WRAP
    )
    return (
        f"# Draft by fl-dp {facts.version}. {text.count(TO_FILL)} places are left to a person: "
        f"search for '{TO_FILL}'.\n{text}"
    )


def _filled(templates: Environment, part: Any, values: dict[str, Any]) -> Any:
    """A filled part of a document; a text that is one expression becomes its value."""
    match part:
        case dict():
            return {key: _filled(templates, member, values) for key, member in part.items()}
        case list():
            return [_filled(templates, item, values) for item in part]
        case str():
            if match := _EXPRESSION.fullmatch(part):
                return templates.compile_expression(match[1], undefined_to_none=False)(**values)
            return templates.from_string(part).render(values)
    return part


def _figures(number: float, digits: int = 6) -> str:
    return f"{number:.{digits}g}"


def _with_commas(number: int) -> str:
    return f"{number:,}"


_FILTERS = {"figures": _figures, "with_commas": _with_commas}
