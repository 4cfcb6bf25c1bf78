"""Private statistics over a federation: counts, sums, means, histograms, quantiles, evaluations.

    >>> query = Mean(lows=(0.0,), highs=(100.0,))
    >>> text = encode_text(query)                                 # travels to the clients
    >>> vector = query_from_json(text).contribution(values)       # on each client
    >>> choice = choose_noise(query, epsilon=0.5, delta=1e-5)     # on the server
    >>> answer = charged_release(ledger, "ages", choice, vectors, SecureRandom())
    >>> answer["mean"].value, answer["mean"].error

The privacy unit is one client with all its records, under zero-out neighbours on a public roster;
the adversary sees the answer; the server is trusted with the clients' vectors and with the noise.
Ranges, edges, categories and grids are public parameters and must not be read off the data.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

from .classifier_scores import ScoreHistograms
from .evaluation import Evaluation
from .histograms import Frequencies, Histogram
from .quantiles import Quantiles
from .query import Query
from .sums import Count, Mean, Sum
from .votes import Vote
from .wire import query_from_json

if TYPE_CHECKING:
    from .answers import Answer, charged_release, release_statistic
    from .noise_law import NoiseChoice, choose_noise
else:
    # With SciPy and a ledger: the server alone needs them.
    __getattr__ = lazy_exports(
        __name__,
        {
            "NoiseChoice": "noise_law",
            "choose_noise": "noise_law",
            "Answer": "answers",
            "charged_release": "answers",
            "release_statistic": "answers",
        },
    )

__all__ = [
    "Answer",
    "Count",
    "Evaluation",
    "Frequencies",
    "Histogram",
    "Mean",
    "NoiseChoice",
    "Quantiles",
    "Query",
    "ScoreHistograms",
    "Sum",
    "Vote",
    "charged_release",
    "choose_noise",
    "query_from_json",
    "release_statistic",
]
