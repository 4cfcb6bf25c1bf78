"""`fl-dp attack`: what a training tells about those who took part."""

from __future__ import annotations

import typer

from .attack_inversion import inversion
from .attack_membership import membership

attack = typer.Typer(
    help="Attack a simulated training: what does it tell about those who took part?",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
attack.command()(membership)
attack.command()(inversion)
