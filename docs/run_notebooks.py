"""Notebooks of examples/notebooks, executed and written back with what they show.

    python docs/run_notebooks.py             # all of them
    python docs/run_notebooks.py quickstart

What they show differs from run to run, as the noise does: so `make docs` leaves them alone, and a
test executes them without writing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

_SECONDS = 300  # for one cell, on a busy machine


def read_notebook(path: Path) -> NotebookNode:
    """Return a notebook as it lies there."""
    found = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # it has no types
    assert isinstance(found, NotebookNode)
    return found


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook, in the form that Jupyter gives it."""
    text = nbformat.writes(notebook)  # type: ignore[no-untyped-call]  # it has no types
    path.write_text(f"{text}\n", encoding="utf-8")


def executed(path: Path) -> NotebookNode:
    """Return a notebook with the outputs of running it from its first cell to its last.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell raises, or a command in it fails.
    """
    notebook = read_notebook(path)
    client = NotebookClient(
        notebook,
        timeout=_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
    )
    client.create_kernel_manager().transport = "ipc"  # others on this machine can't listen
    # `fl-dp` of this environment, and one thread: the models are too small to share.
    found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    client.execute(env=os.environ | {"PATH": found, "OMP_NUM_THREADS": "1"})
    return _without_the_machine(notebook)


def _without_the_machine(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook that does not say which Python ran it."""
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Execute the notebooks that are named, or all."""
    names = sys.argv[1:]
    unknown = sorted(set(names) - {path.stem for path in NOTEBOOKS})
    if unknown:
        raise SystemExit(f"there is no notebook {', '.join(unknown)} in {FOLDER}")
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            write_notebook(executed(path), path)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
