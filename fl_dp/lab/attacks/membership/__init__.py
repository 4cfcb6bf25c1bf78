"""Membership inference: was this record, or this client, part of the training?

    >>> seen = Observations(members=members, candidates=candidates, population=population)
    >>> roc = attacked(seen, ATTACKS["lira online"])
    >>> roc.at(0.01).tpr
    0.27...

Many models are trained by the same algorithm, each on a random half of the same candidates. Each is
attacked once, with the others as reference models. An attack sees final models alone, and of them
only the probability of the right label.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .attacks import ATTACKS, Attack, attacked
    from .observations import Observations, logit_confidence, mean_per_client
    from .roc import OperatingPoint, Roc
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "ATTACKS",
    "Attack",
    "Observations",
    "OperatingPoint",
    "Roc",
    "attacked",
    "logit_confidence",
    "mean_per_client",
]
