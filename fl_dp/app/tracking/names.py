"""Names of the trackers that are there, and what each needs."""

from __future__ import annotations

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Trackers by the names of `tracking=NAME`, which are also those of their packages and extras."""
