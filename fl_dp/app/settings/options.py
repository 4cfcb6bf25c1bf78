"""Groups of which each option has keys of its own: `selection=fixed` and its like.

A key of another option is not there. To add an option, add its class, and its instance with
its defaults to the tuple of its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fl_dp.option_errors import OptionError

from .clippings import CLIPPINGS
from .dp_sgd import DP_SGD
from .features import FEATURES
from .optimizers import SERVER_OPTIMIZERS
from .promises import PROMISES
from .schedules import SCHEDULES
from .selections import SELECTIONS
from .tracking import TRACKINGS

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "features": {each.name: each for each in FEATURES},
    "privacy": {each.mode: each for each in PROMISES},
    "dp_sgd": {"on" if each.enabled else "off": each for each in DP_SGD},
    "clipping": {each.name: each for each in CLIPPINGS},
    "selection": {each.name: each for each in SELECTIONS},
    "schedule": {each.name: each for each in SCHEDULES},
    "server_optimizer": {each.name: each for each in SERVER_OPTIMIZERS},
    "tracking": {each.name: each for each in TRACKINGS},
}
"""Settings of each option with their defaults, by group and option."""

_CHOSEN_BY = {"privacy": "mode", "dp_sgd": "enabled"}


def chosen_by(group: str) -> str:
    """Return the field that says which option of a group it is; nobody writes it by itself."""
    return _CHOSEN_BY.get(group, "name")


def option_name(group: str, settings: Any) -> str:
    """Return which option of a group its settings are."""
    field = chosen_by(group)
    value = getattr(settings, field)
    return next(name for name, one in OPTIONS[group].items() if getattr(one, field) == value)


def option_of(group: str, values: Mapping[str, Any]) -> Any:
    """Return an option with its defaults.

    Args:
        group: One of `OPTIONS`.
        values: What was read of it.

    Raises:
        ValueError: If they name no option.
    """
    field, known = chosen_by(group), OPTIONS[group]
    for option in known.values():
        if getattr(option, field) == values.get(field):
            return option
    raise OptionError(
        f"{group}.{field} must name one of {', '.join(known)}, got {values.get(field)!r}"
    )


def with_values(settings: Any, values: Mapping[str, Any]) -> Any:
    """Return a group's settings with values that were read, which may hold a group of their own.

    Raises:
        TypeError: If a field is missing or unknown.
        ValueError: If a value is out of range.
    """
    inner = {
        key: with_values(getattr(settings, key), value)
        for key, value in values.items()
        if is_dataclass(getattr(settings, key, None))
    }
    return type(settings)(**{**values, **inner})
