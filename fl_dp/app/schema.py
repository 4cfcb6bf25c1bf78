"""The settings' schema as OmegaConf has it, built once: that alone takes a tenth of composing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .settings import Settings
from .wings import wings

if TYPE_CHECKING:
    from omegaconf import DictConfig


@cache
def settings_class() -> type[Settings]:
    """Return the class of settings that are composed: with the groups of keys of each wing."""
    groups = [
        (name, group, field(default_factory=group))
        for wing in wings()
        for name, group in wing.groups.items()
    ]
    return make_dataclass("Settings", groups, bases=(Settings,), kw_only=True)


def settings_document(settings: Settings) -> dict[str, Any]:
    """Return settings as plain values: of a wing's groups those alone that say something.

    So a run that uses no wing is the same document, with the same digest, where none is there.
    """
    idle = [
        name
        for wing in wings()
        for name, group in wing.groups.items()
        if getattr(settings, name, None) == group()
    ]
    return {key: value for key, value in asdict(settings).items() if key not in idle}


def new_schema() -> DictConfig:
    """Return the schema with every default, for the caller to change."""
    return deepcopy(_schema())


def settings_of(read: Any) -> Settings:
    """Return settings that were read; what is not among them has its default.

    Args:
        read: A container, as OmegaConf merges it.

    Raises:
        OmegaConfBaseException: If a key is unknown or a value has the wrong type.
        ValueError: If a value is out of range.
    """
    from omegaconf import OmegaConf

    settings = OmegaConf.to_object(OmegaConf.merge(_schema(), read))  # which copies the schema
    assert isinstance(settings, Settings)
    return settings


@cache
def _schema() -> DictConfig:
    from omegaconf import DictConfig, OmegaConf

    schema = OmegaConf.structured(settings_class())
    assert isinstance(schema, DictConfig)
    return schema
