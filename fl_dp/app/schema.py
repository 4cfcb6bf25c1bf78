"""The settings' schema as OmegaConf has it, built once: that alone takes a tenth of composing."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from omegaconf import DictConfig


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

    schema = OmegaConf.structured(Settings)
    assert isinstance(schema, DictConfig)
    return schema
