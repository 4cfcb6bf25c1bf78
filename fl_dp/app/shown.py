"""Settings as clients may see them."""

from __future__ import annotations

from dataclasses import fields, replace

from .settings import Settings, TrackingSettings
from .settings.promises import CentralPrivacySettings


def for_clients(settings: Settings) -> Settings:
    """Return what clients may know: no folder of the operator's, no seed of the noise, no wing."""
    privacy = replace(settings.privacy, insecure_seed=None)
    if isinstance(privacy, CentralPrivacySettings):
        privacy = replace(privacy, witness_dir=None)
    tracking = TrackingSettings()
    model = settings.model
    if model.shared is None and model.lora_rank is None:  # else a part of it never travels
        model = replace(model, initial=None, initial_digest=None)
    own = Settings(**{each.name: getattr(settings, each.name) for each in fields(Settings)})
    return replace(
        own,
        model=model,
        privacy=privacy,
        tracking=tracking,
        output_dir=None,
        run_name=None,
        resume=None,
    )
