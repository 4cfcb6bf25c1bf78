"""A user's strategy settings and hooks that private training does not use, by name.

A Flower project brings its own fractions, averages of metrics and hooks. Most have no effect in a
private round; without a warning their author would believe that they act.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from flwr.serverapp.strategy import Strategy

_EVALUATE = (
    "clients are not asked to evaluate, which would be an uncharged release; use evaluation= "
    "(docs/statistics.md), metrics=, or an evaluate_fn on public data"
)
_EVERYBODY = "every client evaluates each model"
_WHO = "sampling_rate= or selection= decide who takes part"
_ROSTER = "the roster of num_clients= is waited for"

_HOOKS = {
    "start": (
        "DPFedAvg runs the rounds; use evaluate_fn and after_round, or override hooks of a subclass"
        " of DPFedAvg"
    ),
    "configure_evaluate": _EVALUATE,
    "aggregate_evaluate": _EVALUATE,
    "summary": "DPFedAvg logs its own; override summary() of a subclass of DPFedAvg",
}
_SETTINGS = {
    "fraction_train": _WHO,
    "fraction_evaluate": _EVALUATE,
    "min_train_nodes": _ROSTER,
    "min_evaluate_nodes": _EVALUATE,
    "min_available_nodes": _ROSTER,
    "weighted_by_key": "every client weighs 1 unless weight_cap= is given",
    "train_metrics_aggr_fn": "clients' metrics are not released; use metrics=",
    "evaluate_metrics_aggr_fn": _EVALUATE,
}
# What `evaluation=` brings into use, and what it does not.
_EVALUATED = {"configure_evaluate", "aggregate_evaluate", "evaluate_metrics_aggr_fn"}
_FRACTIONS = {"fraction_evaluate": _EVERYBODY, "min_evaluate_nodes": _EVERYBODY}
# With these no client evaluates, in Flower as here.
_NO_EVALUATION = {"fraction_evaluate": 0.0, "min_evaluate_nodes": 0}
_ABSENT = object()


def unused_of(
    strategy: Strategy, *, weights_are_used: bool, evaluates: bool = False
) -> Iterator[str]:
    """Yield one line per hook or setting that will not act, with a replacement.

    A setting counts if it differs from its default in Flower's class, a hook if it is overridden
    outside Flower. Without a plan, replies are weighted by `weighted_by_key`. `evaluates` says
    whether clients are asked to evaluate.
    """
    name = type(strategy).__name__
    used = _EVALUATED if evaluates else set()
    reasons = _SETTINGS | (_FRACTIONS if evaluates else {})
    for hook, instead in _HOOKS.items():
        if hook not in used and _overridden(type(strategy), hook):
            yield f"{name}.{hook} is overridden and will not be called: {instead}"
    for setting, value in _configured(strategy).items():
        if setting in used or (setting == "weighted_by_key" and (weights_are_used or evaluates)):
            continue
        shown = f"={value!r}" if isinstance(value, int | float | str) else ""
        yield f"{name}: {setting}{shown} is not used: {reasons[setting]}"


def uncalled_of(strategy: Strategy, base: type) -> Iterator[str]:
    """Yield one line per evaluation hook of `base` that a private strategy overrides."""
    for hook in ("configure_evaluate", "aggregate_evaluate"):
        if getattr(type(strategy), hook) is not getattr(base, hook):
            yield f"{type(strategy).__name__}.{hook} will not be called: {_EVALUATE}"


def _overridden(kind: type[Strategy], hook: str) -> bool:
    return not _of_flower(next(base for base in kind.__mro__ if hook in vars(base)))


def _of_flower(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "flwr"


def _configured(strategy: Strategy) -> Mapping[str, object]:
    """Settings of `_SETTINGS` that differ from the default of Flower's class."""
    configured = {}
    for setting in _SETTINGS:
        value = vars(strategy).get(setting, _ABSENT)
        default = _default(type(strategy), setting)
        if value is _ABSENT or default is _ABSENT or _same(value, default):
            continue
        if setting in _NO_EVALUATION and value == _NO_EVALUATION[setting]:
            continue
        configured[setting] = value
    return configured


def _same(value: object, default: object) -> bool:
    # Flower puts a function of its own in the place of None.
    return bool(value == default) or (default is None and _of_flower(value))


def _default(kind: type[Strategy], setting: str) -> object:
    """Default of the nearest Flower constructor that takes this argument."""
    for base in filter(_of_flower, kind.__mro__):
        if "__init__" in vars(base):
            parameter = inspect.signature(vars(base)["__init__"]).parameters.get(setting)
            if parameter is not None:
                return parameter.default
    return _ABSENT
