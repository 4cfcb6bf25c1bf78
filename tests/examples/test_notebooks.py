"""Notebooks run from their first cell to their last, and show nothing of the machine."""

from __future__ import annotations

import getpass
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from run_notebooks import FOLDER, NOTEBOOKS, executed, read_notebook

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 200_000
# A folder that somebody's machine has, also one that is not ours.
PLACES = re.compile(
    r"/(?:home|root|Users|tmp|var|private|work|opt|mnt|srv)/|[A-Z]:\\|site-packages|\.venv"
)
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")

by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in read_notebook(path).cells if cell.cell_type == kind]


def shown(path: Path) -> str:
    """Return every text that the cells show; pictures apart."""
    texts = []
    for cell in cells(path, "code"):
        for output in cell.outputs:
            data = output.get("data", {})
            texts += [data[form] for form in data if form.startswith("text/")]
            texts.append(output.get("text", ""))
    return "\n".join(texts)


def test_there_are_the_four_notebooks_that_the_folder_s_page_lists() -> None:
    listed = re.findall(r"^\| \[([^\]]*)\]", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.name for path in NOTEBOOKS]
    assert len(listed) == 4


@pytest.mark.nightly
@pytest.mark.slow
@by_notebook
def test_every_cell_runs(path: Path) -> None:
    again = executed(path)
    assert all(cell.execution_count for cell in again.cells if cell.cell_type == "code")


def test_a_cell_that_raises_or_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    cell: dict[str, Any] = {"cell_type": "code", "id": "1", "source": "%%bash\nfalse"}
    cell |= {"execution_count": None, "metadata": {}, "outputs": []}
    document = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "fails.ipynb").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CellExecutionError):
        executed(tmp_path / "fails.ipynb")


@by_notebook
def test_a_notebook_was_executed_in_order_and_is_small(path: Path) -> None:
    counts = [cell.execution_count for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < MOST_BYTES
    assert not any(
        output.output_type == "error" for c in cells(path, "code") for output in c.outputs
    )


@by_notebook
def test_outputs_show_no_path_no_user_and_no_moment(path: Path) -> None:
    text = shown(path)
    assert PLACES.findall(text) == []
    assert MOMENT.findall(text) == []
    assert "\x1b" not in text  # a terminal's colours
    mine = {str(ROOT), str(Path.home()), tempfile.gettempdir()} - {"/"}
    assert [place for place in mine if place in text] == []
    assert re.search(rf"\b{re.escape(getpass.getuser())}\b", text) is None


@by_notebook
def test_metadata_say_neither_when_nor_on_what_it_ran(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert [cell["metadata"] for cell in document["cells"] if cell["metadata"]] == []


@by_notebook
def test_links_lead_to_files_of_the_repository(path: Path) -> None:
    for cell in cells(path, "markdown"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", cell.source):
            assert (FOLDER / target).exists(), target
