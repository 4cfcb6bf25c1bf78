"""Options of plans and strategies as Hydra keys: the one place that knows both names.

A plan's error names Python's arguments. Somebody who wrote keys reads the same error in keys:
`client_scheme` is `privacy=local` there, and `VisibleSampling` is `selection=public`, or
whichever selection of that sampling was chosen. An option that is no argument is a key already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fl_dp.option_errors import NamesOptions

from .settings.selections import SELECTIONS

KEYS = {
    "bands": "privacy.bands",
    "budgets": "selection.budgets",
    "clipping_norm": "clipping.norm",
    "concurrency": "selection.concurrency",
    "epsilon": "privacy.epsilon",
    "groups": "privacy.groups",
    "largest_rate": "selection.largest_rate",
    "max_records": "privacy.max_records",
    "max_staleness": "selection.max_staleness",
    "neighboring_relation": "privacy.neighboring_relation",
    "noise_multiplier": "privacy.noise_multiplier",
    "num_clients": "task.num_clients",
    "owners": "selection.owners",
    "participation_cap": "selection.participation_cap",
    "records_per_client": "selection.records_per_client",
    "refresh_every": "selection.refresh_every",
    "sampling": "selection",
    "sampling_rate": "selection.sampling_rate",
    "scalar_noise_std": "metrics.noise_std",
    "separation": "privacy.separation",
    "shares": "selection.shares",
    "sharpness": "selection.sharpness",
    "smallest_rate": "selection.smallest_rate",
    "staleness_power": "selection.staleness_power",
    "total_weight": "weights.total",
    "unit": "privacy.unit",
    "units_per_node": "simulation.units_per_node",
    "utility": "selection.utility",
    "utility_range": "selection.utility_high",
    "weight_cap": "weights.cap",
}
"""The key of each option that takes a value of its own; one that is not here is called the same."""

CHOICES = {
    "client_scheme": "privacy=local",
    "correlation": "privacy=correlated",
    "coins_at_nodes": "selection.coins=nodes",
    "nodes": "privacy=distributed_records",
    "record_plan": "dp_sgd=on",
    "secure_sum": "privacy=distributed",
}
"""The choice that stands for an option, whatever its value."""

_WORDS, _QUOTE = {"True": "true", "False": "false", "None": "null"}, "'"
_OF_DP_SGD = ("clipping_norm", "sampling_rate")
_OF_RECORDS = {"num_clients": "privacy.num_records", "units_per_node": "privacy.max_records"}


def in_keys(
    option: str,
    value: str | None,
    *,
    selection: str | None = None,
    dp_sgd: bool = False,
    records: bool = False,
) -> str:
    """Return an option as a key, with its value if there is one.

    Args:
        option: Its name in Python, or a key.
        value: As Python writes it.
        selection: The selection that was chosen.
        dp_sgd: Whether it is one of DP-SGD inside clients.
        records: Whether units are records, summed over clients.
    """
    if records and option in _OF_RECORDS:
        option = _OF_RECORDS[option]
    if option in CHOICES:
        return CHOICES[option]
    key = f"dp_sgd.{option}" if dp_sgd and option in _OF_DP_SGD else KEYS.get(option, option)
    if key.startswith("secure_sum."):
        key = f"privacy.{key}"
    if value is None:
        return key
    if key == "selection":
        law = value.partition("(")[0]
        having = [each.name for each in SELECTIONS if law in each.in_python]
        having = having or [law]
        return f"{key}={selection if selection in having else having[0]}"
    return f"{key}={_WORDS.get(value, value.strip(_QUOTE))}"


def keys_of(error: BaseException) -> tuple[str, ...]:
    """Return the keys that an error, or what it came from, is about; the most important first."""
    cause: BaseException | None = error
    while not (isinstance(cause, NamesOptions) and cause.options):
        if cause is None:
            return ()
        cause = cause.__cause__
    keys = (in_keys(option, None).partition("=")[0] for option in cause.options)
    return tuple(dict.fromkeys(keys))


@contextmanager
def errors_in_keys(
    *, selection: str | None = None, dp_sgd: bool = False, records: bool = False
) -> Iterator[None]:
    """Have errors of plans, strategies and rosters speak of keys.

    Args:
        selection: The selection that was chosen.
        dp_sgd: Whether they would be about DP-SGD inside clients.
        records: Whether units are records, summed over clients.
    """
    try:
        yield
    except NamesOptions as error:
        error.say_in(partial(in_keys, selection=selection, dp_sgd=dp_sgd, records=records))
        raise
