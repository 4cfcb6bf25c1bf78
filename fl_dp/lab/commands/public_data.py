"""Experiments that train without privacy: on public or simulated data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fl_dp.app.settings import Settings

DataIsPublic = Annotated[
    bool,
    typer.Option(
        "--data-is-public",
        help="Confirm that your own data are public: the results here are not private.",
    ),
]


def require_public(settings: Settings, *, stated: bool, because: str, command: str = "") -> None:
    """Refuse an experiment without privacy on data that may belong to people.

    Args:
        settings: Of the experiment.
        stated: Whether somebody said that data of their own are public.
        because: Begins the refusal, for example `an attack trains without privacy`.
        command: The one that has the option, if it is not the one that was called.

    Raises:
        ValueError: If the data are somebody's own and nobody said so.
    """
    from fl_dp.tasks.datasets import OWN_DATA

    if settings.task.name in OWN_DATA and not stated:
        raise ValueError(
            f"{because}: task={settings.task.name} reads data of your own, "
            f"{f'call `{command}` and ' if command else ''}add --data-is-public if everybody may "
            "see them, or take a public task such as task=digits"
        )
