"""`fl-dp new`: a Flower app that is private from its first line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .console import exit_on_errors, tell


def new(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    parent: Annotated[
        Path, typer.Option("--dir", help="Folder in which the app's folder is made.")
    ] = Path(),
) -> None:
    """Write a Flower app that is private from its first line, in a folder NAME.

    It has the files that every Flower app has (`pyproject.toml`, `server_app.py`, `client_app.py`,
    `task.py`), a test and a README. Its budget, its clipping norm and its rounds stand in
    `[tool.flwr.app.config]`; your model and your data go into `task.py`.

    NAME has letters, digits and hyphens. Nothing is overwritten and nothing is fetched.
    """
    from fl_dp.commands.new_app.write import write_app

    with exit_on_errors():
        folder = write_app(name, parent)
    first = "" if find_spec("pytest") else "pip install pytest && "
    lines = [
        f"Wrote {folder}",
        f"Test: cd {folder} && {first}python -m pytest",
        f"Run: cd {folder} && FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream",
        f"Yours: {folder / 'README.md'} says where your model and your data go",
    ]
    for line in lines:
        tell(line)
