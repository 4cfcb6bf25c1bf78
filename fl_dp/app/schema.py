"""The settings' OmegaConf schema, built once: building takes a tenth of composing."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from .settings import OPTIONS, Settings
from .settings.options import option_of
from .settings.recovery import RecoverySettings
from .settings.tune import TuneSettings

if TYPE_CHECKING:
    from omegaconf import DictConfig


def groups() -> dict[str, type]:
    """Class of each group's settings, by the group's name; options are its subclasses."""
    types = get_type_hints(Settings)
    return {
        setting.name: types[setting.name]
        for setting in fields(Settings)
        if is_dataclass(types[setting.name])
    }


@cache  # Hydra's store is one for the process, and filling it is a fifth of composing
def register_options() -> None:
    """Register with Hydra the schema and every option with its own class."""
    from hydra.core.config_store import ConfigStore

    store, schema = ConfigStore.instance(), new_schema()
    for group in OPTIONS:
        schema[group] = groups()[group]  # shared by its options, any of which can take its place
    store.store(name="schema", node=schema)
    for group, options in OPTIONS.items():
        for name, option in options.items():
            store.store(group=group, name=name, node=option)


def settings_document(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, without a choice or an attack that nobody asks for."""
    idle = {"tune": TuneSettings(), "recovery": RecoverySettings()}
    return {
        key: value
        for key, value in asdict(settings).items()
        if key not in idle or getattr(settings, key) != idle[key]
    }


def new_schema() -> DictConfig:
    """The schema with every default, for the caller to change."""
    return deepcopy(_schema())


def settings_of(read: Mapping[str, Any]) -> Settings:
    """Settings from plain values by group and key; a missing key has its default.

    Raises:
        OmegaConfBaseException: A key is unknown or a value has the wrong type.
        ValueError: A value is out of range.
    """
    from omegaconf import OmegaConf

    schema = new_schema()
    for group in OPTIONS:
        if (values := read.get(group)) is not None:
            schema[group] = option_of(group, values)
    settings = OmegaConf.to_object(OmegaConf.merge(schema, read))
    assert isinstance(settings, Settings)
    return settings


@cache
def _schema() -> DictConfig:
    from omegaconf import DictConfig, OmegaConf

    schema = OmegaConf.structured(Settings)
    assert isinstance(schema, DictConfig)
    for group in groups():
        OmegaConf.set_readonly(
            schema[group], None
        )  # a frozen class of the library is composed, too
    return schema
