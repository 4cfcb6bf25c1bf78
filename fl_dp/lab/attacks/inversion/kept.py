"""What a cell found, as a file: an experiment that was stopped goes on with the cells it lacks."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fl_dp.files import write_text, written_whole

from .experiment import Found

_PICTURES = ("truth", "recovered", "nearest", "mean")


def keep(found: Found, file: Path) -> None:
    """Write what a cell found; the file is there as a whole or not at all."""
    arrays = {name: getattr(found, name) for name in _PICTURES}
    with written_whole(file) as unfinished, unfinished.open("wb") as stream:
        np.savez_compressed(stream, rows=np.array(json.dumps(found.rows)), **arrays)


def kept(file: Path) -> Found:
    """Return what a cell found before.

    Raises:
        FileNotFoundError: If it is not finished.
        ValueError: If the file is none of these.
    """
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _PICTURES}
            return Found(rows=json.loads(str(stored["rows"])), **arrays)
    except (KeyError, ValueError, BadZipFile) as error:
        raise ValueError(
            f"{file} is no finished cell ({error}): remove it to do it again"
        ) from error


def write_csv(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Write rows that have the same keys as CSV, with a head line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(file, text.getvalue())
