"""From Hydra overrides to checked settings.

    >>> compose_settings(["task=fashion_mnist", "privacy.epsilon=4"]).privacy.epsilon
    4.0

The typed schema stands in Hydra's ConfigStore, so an unknown key or a value of the wrong type is an
error before anything starts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .settings import Settings

ConfigStore.instance().store(name="schema", node=Settings)
_hydra_is_global = threading.Lock()


class ConfigError(ValueError):
    """The configuration can't be composed or holds a wrong value."""


def config_folder() -> Path:
    """Return the folder of the YAML groups: inside the package in a wheel, beside it elsewhere."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"fl-dp's own conf/ folder is missing beside {package}")


def compose_settings(overrides: Sequence[str]) -> Settings:
    """Compose `conf/config.yaml` with Hydra overrides.

    Args:
        overrides: For example `["task=digits", "privacy.epsilon=4"]`.

    Raises:
        ConfigError: If a key is unknown or a value has the wrong type or range.
    """
    try:
        # A ServerApp runs in a thread of a process where Hydra may be in use already.
        with _hydra_is_global:
            outer = GlobalHydra.instance().hydra
            GlobalHydra.instance().clear()
            try:
                with initialize_config_dir(
                    str(config_folder()), version_base="1.3", job_name="fl-dp"
                ):
                    composed = compose("config", overrides=list(overrides))
            finally:
                GlobalHydra.instance().hydra = outer
        # Merged into the schema once more: Hydra lets `+key=value` add keys that nobody reads.
        plain = OmegaConf.to_container(composed)
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), plain))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explain(error)) from error
    assert isinstance(settings, Settings)
    return settings


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Expand `key=a,b` and the like into every combination, in Hydra's order.

    Raises:
        ConfigError: If an override can't be parsed.
    """
    jobs: list[list[str]] = [[]]
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
            if override.is_sweep_override():
                key = override.get_key_element()
                values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                values = [text]
        except HydraException as error:
            raise ConfigError(f"'{text}' can't be swept over: {_explain(error)}") from error
        jobs = [[*job, value] for job in jobs for value in values]
    return jobs


def _explain(error: BaseException) -> str:
    """Return an error's text with its cause, where Hydra keeps the useful half."""
    text = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in text:
        text += f"\n{error.__cause__}"
    return text
