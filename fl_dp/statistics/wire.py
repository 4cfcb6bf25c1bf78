"""Queries as plain JSON values, for messages and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fl_dp import documents

from .evaluation import Evaluation
from .histograms import Frequencies, Histogram
from .quantiles import Quantiles
from .query import Query
from .scores import ScoreHistograms
from .sums import Count, Mean, Sum
from .votes import Vote

_KINDS: dict[str, type[Query]] = {
    kind.kind: kind
    for kind in (
        Count,
        Sum,
        Mean,
        Histogram,
        Frequencies,
        Quantiles,
        Evaluation,
        ScoreHistograms,
        Vote,
    )
}


def query_to_dict(query: Query) -> dict[str, Any]:
    """Return the query as plain JSON values; `query` names its kind."""
    values = {field.name: getattr(query, field.name) for field in fields(query)}
    return {
        "query": query.kind,
        **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()},
    }


def query_from_dict(document: Mapping[str, Any]) -> Query:
    """Return the query that `query_to_dict` described.

    Raises:
        ValueError: If the kind is unknown, or a field is missing, unknown or out of range: a client
            that ignored what it does not know would answer another question.
    """
    name = document.get("query")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"there is no query {name!r}: write one of {', '.join(_KINDS)}")
    known = {field.name: field.default is MISSING for field in fields(kind)}
    if unknown := document.keys() - known.keys() - {"query"}:
        raise ValueError(
            f"a query '{name}' has no field {', '.join(sorted(map(str, unknown)))}: it has "
            f"{', '.join(known)}"
        )
    required = {field for field, needed in known.items() if needed}
    if missing := required - document.keys():
        raise ValueError(f"a query '{name}' needs {', '.join(sorted(missing))}")
    with documents.document(f"query '{name}'"):
        return kind(**{field: value for field, value in document.items() if field != "query"})


def query_from_json(text: str) -> Query:
    """Return the query that is JSON text of `query_to_dict`.

    Raises:
        ValueError: If it is none, as `query_from_dict`.
    """
    return query_from_dict(documents.parsed_object(text, "query"))
