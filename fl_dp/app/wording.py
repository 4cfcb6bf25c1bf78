"""A plan's errors in the words of the configuration.

A plan names the arguments of Python. Somebody who wrote keys reads keys: `client_scheme` is
`privacy.mode=local` there, and `VisibleSampling` is `selection=public`, or whichever selection
of that sampling was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from fl_dp.plan import SecureSum

_KEYS = {
    "bands": "privacy.bands",
    "concurrency": "selection.concurrency",
    "max_staleness": "selection.max_staleness",
    "staleness_power": "selection.staleness_power",
    "capped_denominator": "weights.capped_denominator",
    "client_scheme": "privacy.mode=local",
    "clipping_norm": "clipping.norm",
    "coins_at_nodes": "selection.coins=nodes",
    "largest_rate": "selection.largest_rate",
    "neighboring_relation": "privacy.neighboring_relation",
    "noise_multiplier": "privacy.noise_multiplier",
    "num_clients": "task.num_clients",
    "participation_cap": "selection.participation_cap",
    "groups": "privacy.groups",
    "separation": "privacy.separation",
    "records_per_client": "selection.records_per_client",
    "refresh_every": "selection.refresh_every",
    "sampling_rate": "selection.sampling_rate",
    "scalar_noise_std": "metrics.noise_std",
    "secure_sum": "privacy.mode=distributed",
    "sharpness": "selection.sharpness",
    "smallest_rate": "selection.smallest_rate",
    "total_weight": "weights.total",
    "unit": "privacy.unit",
    "units_per_node": "simulation.units_per_node",
    "utility": "selection.utility",
    "utility_range": "selection.utility_high",
    "weight_cap": "weights.cap",
}
_SELECTIONS = {
    "BufferedSampling": "buffered",
    "BufferedSelection": "buffered",
    "DPUtilitySelection": "dp_utility",
    "ExponentialSelection": "exponential",
    "FixedSelection": "fixed",
    "FixedSizeSampling": "fixed",
    "PoissonSampling": "poisson",
    "PoissonSelection": "poisson",
    "PublicSelection": "public",
    "TruncatedPoissonSampling": "truncated_poisson",
    "TruncatedPoissonSelection": "truncated_poisson",
    "UtilityPoissonSampling": "dp_utility",
    "VisibleSampling": "public",
}
# Classes that several selections share: they mean the one that was chosen, if it is among these.
_SHARED = {"VisibleSampling": ("public", "exponential")}
_MORE = {
    "selection=public (selection=public)": "selection=public",
    "leave correlation out, or let clients rest: sampling=CyclicSampling(...) or "
    "selection=public": "write privacy.noise=independent, or a smaller selection.sampling_rate",
    "leave correlation out": "write privacy.noise=independent",
    "roster_may_grow=True": "roster_may_grow=true",
    "cross_check=True": "cross_check=true",
    "selection.coins=nodes=True": "selection.coins=nodes",
    "resume(checkpoint)": "`fl-dp run resume=FOLDER`",
    "the constant schedule": "schedule=constant",
    "raise the largest rate": "raise selection.largest_rate",
    "one clipping norm for each": "as many clipping.norms",
}
# Words of prose, too: they are arguments only before an equals sign.
_PROSE = ("bands", "groups", "separation", "unit", "utility")
# Arguments of DP-SGD stand in a group of their own.
_OF_DP_SGD = {name: f"dp_sgd.{name}" for name in ("clipping_norm", "sampling_rate")}
# The rules of a secure sum name its numbers as prose does: each is a key where a value follows.
_SECURE_SUMS = "|".join(field.name for field in fields(SecureSum))


def _of_secure_sum(found: re.Match[str]) -> str:
    """Return an option of secure sums as a key, with its value if it has one."""
    value = f"={found[2]}".lower() if found.re.groups > 1 else ""
    return f"secure_sum.{found[1]}{value}"


def in_keys(text: str, *, selection: str | None = None, dp_sgd: bool = False) -> str:
    """Return an error's text with keys where it names arguments and classes.

    Args:
        text: What a plan, a sampling rule or a selection says.
        selection: The selection that was chosen.
        dp_sgd: Whether it is about DP-SGD inside clients.
    """
    # As an argument, or as a rule shows itself: its own arguments are said elsewhere.
    rule = rf"(?<!\w)(?:(?:sampling|selection)=)?({'|'.join(_SELECTIONS)})(?:\([^()]*\)|(?!\w))"
    meant = _SELECTIONS | {name: selection for name, of in _SHARED.items() if selection in of}
    text = re.sub(rule, lambda found: f"selection={meant[found[1]]}", text)
    text = re.sub(r"(?:secure_sum=)?SecureSum\((\w+)=([^()]*)\)", _of_secure_sum, text)
    text = re.sub(rf"(?<![\w.])({_SECURE_SUMS})(?= must | \(| = |=True)", _of_secure_sum, text)
    text = re.sub(r"compression=Compression\((\w+)='(\w+)'\)", r"compression.\1=\2", text)
    for name, key in (_KEYS | (_OF_DP_SGD if dp_sgd else {})).items():
        after = "(?==)" if name in _PROSE else r"(?!\w)"
        text = re.sub(rf"(?<![\w.]){name}{after}(?!\.\w)", key, text)
    text = re.sub(r"(privacy\.unit|selection\.utility)='(\w+)'", r"\1=\2", text)
    for before, instead in _MORE.items():
        text = text.replace(before, instead)
    return text


@contextmanager
def said_in_keys(*, selection: str | None = None, dp_sgd: bool = False) -> Iterator[None]:
    """Have errors of plans, strategies and rosters speak of keys.

    Args:
        selection: The selection that was chosen.
        dp_sgd: Whether they would be about DP-SGD inside clients.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (in_keys(error.args[0], selection=selection, dp_sgd=dp_sgd),)
        raise
