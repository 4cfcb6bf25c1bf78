"""The library's errors in the words of the configuration.

An error of `PrivacyPlan` or `DPFedAvg` names Python arguments (`num_clients=`), as whoever wrote
them knows nothing else. Whoever wrote a configuration knows its keys (`task.num_clients`). Here is
the one place that knows both.

    >>> in_keys("declare num_clients=8")
    'declare task.num_clients=8'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PLAN_KEYS: Mapping[str, str] = {
    "sampling=VisibleSampling(cohort=...)": "selection=public",
    "roster_may_grow=True": "roster_may_grow=true",
    "unit='example'": "privacy.unit=example",
    "leave client_scheme out": "write privacy=central",
    "resume(checkpoint)": "`fl-dp run resume=FOLDER`",
    "capped_denominator": "weights.capped_denominator",
    "client_scheme": "privacy=local",
    "clipping_norm": "clipping.norm",
    "coins_at_nodes": "selection.coins=nodes",
    "initial_norm": "clipping.norm",
    "largest_rate": "selection.largest_rate",
    "max_cohort": "selection.max_cohort",
    "neighboring_relation": "privacy.neighboring_relation",
    "noise_multiplier": "privacy.noise_multiplier",
    "num_clients": "task.num_clients",
    "participation_cap": "selection.participation_cap",
    "records_per_client": "selection.records_per_client",
    "refresh_every": "selection.refresh_every",
    "sampling_rate": "selection.sampling_rate",
    "scalar_noise_std": "metrics.noise_std",
    "sharpness": "selection.sharpness",
    "smallest_rate": "selection.smallest_rate",
    "target_quantile": "clipping.target_quantile",
    "total_weight": "weights.total",
    "units_per_node": "simulation.units_per_node",
    "weight_cap": "weights.cap",
}
"""What a training of clients is told by, longest phrase first where one holds another."""

DP_SGD_KEYS: Mapping[str, str] = {
    "clipping_norm": "dp_sgd.clipping_norm",
    "neighboring_relation": "privacy.neighboring_relation",
    "noise_multiplier": "dp_sgd.noise_multiplier",
    "participations": "dp_sgd.participations",
    "sampling_rate": "dp_sgd.sampling_rate",
}
"""What DP-SGD inside clients is told by."""


def in_keys(text: str, keys: Mapping[str, str] = PLAN_KEYS) -> str:
    """Return the text with the names of Python arguments replaced by those of keys.

    A name that follows a dot or a slash is a key already, or a part of a path.
    """
    names = "|".join(map(re.escape, keys))
    return re.sub(rf"(?<![\w./])(?:{names})(?!\w)", lambda found: keys[found[0]], text)


@contextmanager
def told_in_keys(keys: Mapping[str, str] = PLAN_KEYS) -> Iterator[None]:
    """Let what is raised name keys; also a decorator."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (in_keys(error.args[0], keys),)
        raise
