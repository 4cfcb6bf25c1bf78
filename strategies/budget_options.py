"""Options of `DPFedAvg.with_budget`: those of the plan, those of the strategy, and their check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_type_hints

from flwr.serverapp.strategy import Strategy

from fl_dp.plan import PlanOptions
from fl_dp.plan.arguments import keywords_of, require_known, require_types


def split_options(
    kind: type[Strategy],
    hints: Mapping[str, Any],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[PlanOptions, dict[str, Any]]:
    """Check what `with_budget` was given and return the plan's options and the strategy's.

    Args:
        kind: The class that is to be made; its own arguments are options, too.
        hints: Types of the arguments of `DPFedAvg`, and of the named ones of `with_budget`.
        arguments: Values of those that are checked.
        options: All other arguments.

    Raises:
        TypeError: If one is misspelt, of the wrong type, or both the plan's and the class's.
    """
    hints = dict(hints) | get_type_hints(PlanOptions)
    of_plan, of_class = PlanOptions.__optional_keys__, keywords_of(kind)
    known = (hints.keys() | of_class) - {"return", "options", "plan"}
    require_known(options, known, of=f"{kind.__name__}.with_budget")
    if both := sorted(of_plan & of_class & options.keys()):
        raise TypeError(
            f"'{both[0]}' is an argument of the plan and of {kind.__name__}: rename yours"
        )
    require_types({**arguments, **options}, hints)
    for_plan = {name: each for name, each in options.items() if name in of_plan}
    for_strategy = {name: each for name, each in options.items() if name not in of_plan}
    return cast(PlanOptions, for_plan), for_strategy
