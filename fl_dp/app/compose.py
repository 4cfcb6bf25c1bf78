"""From Hydra overrides to checked settings.

    >>> compose_settings(["task=fashion_mnist", "privacy.epsilon=4"]).privacy.epsilon
    4.0

The typed schema in Hydra's ConfigStore refuses unknown keys and wrong types before any start.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dp.option_errors import OptionError
from fl_dp.tasks.datasets.schema_file import described, read_schema

from .keys import all_keys
from .overrides import (
    ConfigError,
    check_keys,
    check_values,
    config_folder,
    missing_key,
    parsed,
    wrong_value,
)
from .recipes import schema_beside, with_recipe, written_values
from .schema import register_options, settings_of
from .settings import Settings

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

__all__ = ["ConfigError", "compose_settings", "config_folder", "expand_sweep"]

_hydra_is_global = threading.Lock()


def compose_settings(overrides: Sequence[str]) -> Settings:
    """Compose `conf/config.yaml` with Hydra overrides, their recipe and the own data's schema.

    Raises:
        ConfigError: A key is unknown, a value has the wrong type or range, or the schema has
            blanks.
    """
    check_keys(overrides)
    facts = _facts_beside(overrides)
    # A copy: a caller that changes its settings leaves those of other callers as they are.
    return deepcopy(_composed(tuple(overrides), config_folder(), facts))


def _facts_beside(overrides: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Keys of `task` that a schema beside the user's own data brings, and nobody wrote.

    With written columns, as for a statistic on one, the schema is not read. A statistic, which may
    buy what fills a blank, is asked without the columns that have one.

    Raises:
        ConfigError: The schema is none, or has blanks.
    """
    written = written_values(overrides)
    file = schema_beside(written)
    if file is None:
        return ()
    try:
        asks = written.get("statistic.query") is not None
        facts = described(read_schema(file, without_blanks=asks))
    except ValueError as error:
        raise ConfigError.of(error) from error
    return tuple((key, value) for key, value in facts.items() if f"task.{key}" not in written)


@lru_cache(maxsize=512)
def _composed(
    overrides: tuple[str, ...], folder: Path, facts: tuple[tuple[str, Any], ...]
) -> Settings:
    """Compose once: a command and its plan ask for the same."""
    # Imported late: they take a third of a second, and a misspelt key is shown at once.
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    read = [parsed(text) for text in overrides]
    check_values(read)
    try:
        written = with_recipe([str(override.input_line) for override in read])
        asked = list(map(parsed, written))
        deleted = {override.key_or_group for override in asked if override.is_delete()}
        values: list[Override] = []
        options: list[str] = []
        for override in asked:
            key, changes = override.key_or_group, override.type is OverrideType.CHANGE
            if changes and key in all_keys() and key.partition(".")[0] not in deleted:
                values.append(override)
            else:
                options.append(str(override.input_line))
        composed = deepcopy(_of_options(tuple(options), folder))
        for override in values:  # as Hydra does, after all options
            OmegaConf.update(composed, override.key_or_group, override.value())
        # Merged into the schema again: Hydra lets a file add keys that nobody reads.
        plain = OmegaConf.to_container(composed)
        assert isinstance(plain, dict)  # as Hydra composes
        plain["task"] |= dict(facts)
        settings = settings_of({str(key): value for key, value in plain.items()})
    except OmegaConfBaseException as error:
        raise _named(error) from error
    except HydraException as error:
        raise _named(_inner(error)) from error
    except ValueError as error:
        raise ConfigError.of(error) from error
    return settings


@lru_cache(maxsize=64)
def _of_options(overrides: tuple[str, ...], folder: Path) -> DictConfig:
    """Compose options with Hydra, which takes most of composing: values are put in afterwards."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    # A ServerApp runs in a thread of a process where Hydra may be in use already.
    with _hydra_is_global:
        register_options()
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(folder), version_base="1.3", job_name="fl-dp"):
                return compose("config", overrides=list(overrides))
        finally:
            GlobalHydra.instance().hydra = outer


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Expand `key=a,b` and the like to every combination, in Hydra's order.

    Raises:
        ConfigError: An override can't be parsed.
    """
    check_keys(overrides)
    from hydra.errors import HydraException

    jobs: list[list[str]] = [[]]
    for text in overrides:
        override = parsed(text)
        values = [text]
        if override.is_sweep_override():
            key = override.get_key_element()
            try:
                values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            except HydraException as error:
                raise ConfigError(
                    f"'{text}' has no list of values: write {key}=a,b or {key}=range(1,5)",
                    option=key,
                ) from error
        jobs = [[*job, value] for job in jobs for value in values]
    return jobs


def _inner(error: BaseException) -> BaseException:
    """The cause of Hydra's error: it names the key, where Hydra names its own classes."""
    from hydra.errors import HydraException

    inner = error.__cause__ or error.__context__
    if inner is not None and isinstance(error, HydraException):
        return _inner(inner)
    return error


def _named(error: BaseException) -> ConfigError:
    """What is wrong with a key, or at least an error's first line."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    key = str(getattr(error, "full_key", None) or "")
    if not key:
        options = error.options if isinstance(error, OptionError) else ()
        return ConfigError(str(error).partition("\n")[0], options=options)
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return ConfigError(missing_key(key), option=key)
    return ConfigError(wrong_value(key, None), option=key)
