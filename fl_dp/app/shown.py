"""Settings as clients may see them."""

from __future__ import annotations

from dataclasses import replace

from .settings import Settings, TrackingSettings


def for_clients(settings: Settings) -> Settings:
    """Return what clients may know: neither the operator's folders nor a seed of the noise."""
    privacy = replace(settings.privacy, insecure_seed=None, witness_dir=None)
    tracking = TrackingSettings()
    return replace(
        settings, privacy=privacy, tracking=tracking, output_dir=None, run_name=None, resume=None
    )
