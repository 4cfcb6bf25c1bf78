"""Groups in which each option has keys of its own, for example `selection=fixed`.

A key of another option does not exist. To add an option, add its class, and its instance with its
defaults to the tuple of its group.
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
    "features": {option.name: option for option in FEATURES},
    "privacy": {name: option() for name, option in PROMISES.items()},
    "dp_sgd": {name: option() for name, option in DP_SGD.items()},
    "clipping": {name: option() for name, option in CLIPPINGS.items()},
    "selection": {name: option() for name, option in SELECTIONS.items()},
    "schedule": {name: option() for name, option in SCHEDULES.items()},
    "server_optimizer": {name: option() for name, option in SERVER_OPTIMIZERS.items()},
    "tracking": {option.name: option for option in TRACKINGS},
}
"""Settings of each option with their defaults, by group and option."""

_CHOSEN_BY = {"privacy": "mode", "dp_sgd": "enabled"}


def chosen_by(group: str) -> str:
    """Return the field that names the option of a group; the group's own key sets it."""
    return _CHOSEN_BY.get(group, "name")


def option_name(group: str, settings: Any) -> str:
    """Return the name of the option that settings of a group belong to."""
    field = chosen_by(group)
    value = getattr(settings, field)
    return next(name for name, option in OPTIONS[group].items() if getattr(option, field) == value)


def option_of(group: str, values: Mapping[str, Any]) -> Any:
    """Return an option of a group, with its defaults.

    Raises:
        ValueError: If it names no option.
    """
    field, options = chosen_by(group), OPTIONS[group]
    for option in options.values():
        if getattr(option, field) == values.get(field):
            return option
    raise OptionError(
        f"{group}.{field} must name one of {', '.join(options)}, got {values.get(field)!r}",
        option=group,
    )


def with_values(settings: Any, values: Mapping[str, Any]) -> Any:
    """Return a group's settings with other values, which may include a group inside it.

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
