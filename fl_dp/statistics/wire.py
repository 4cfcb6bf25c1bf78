"""Queries that arrive in messages."""

from __future__ import annotations

from typing import TypeAlias

from fl_dp.codec import decode
from fl_dp.documents import parsed_object

from .classifier_scores import ScoreHistograms
from .evaluation import Evaluation
from .histograms import Frequencies, Histogram
from .quantiles import Quantiles
from .query import Query
from .sums import Count, Mean, Sum
from .votes import Vote

AnyQuery: TypeAlias = (
    Count | Sum | Mean | Histogram | Frequencies | Quantiles | Evaluation | ScoreHistograms | Vote
)


def query_from_json(text: str) -> Query:
    """The query that `encode_text` wrote.

    Raises:
        ValueError: The kind is unknown, or a field is missing, unknown or out of range: a client
            that ignored an unknown field would answer another question.
    """
    query: Query = decode(AnyQuery, parsed_object(text, "query"), "query")
    return query
