"""Sentences about a node's own rows, for its owner: the pinned schema, and whether they fit it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.clients.owner.policy_description import PolicyDescription
from fl_dp.tasks.datasets import DataFormat, DataSource, load_dataset
from fl_dp.tasks.datasets.columns import encoding_of
from fl_dp.tasks.datasets.schema_file import read_schema

_TABLES = {"csv": "train.csv", "parquet": "train.parquet"}
_IMAGES = {"folder": "train"}
# A service waits for this check at each start, and should not wait for a minute.
_MOST_BYTES = 50 * 2**20


def words_of_data(owner: NodeConfig) -> PolicyDescription:
    """Return what the owner pinned of the data, and how many of the rows fit that."""
    sentences: list[str] = []
    wrong: list[str] = []
    try:
        pinned = _pinned(owner)
        if pinned is not None:
            sentences += _words_of(pinned)
        if owner.data_path is not None and Path(owner.data_path).exists():
            sentences += _rows(Path(owner.data_path), pinned, wrong)
    except PermissionError as error:
        wrong.append(f"{error.filename} can't be read by this user: check as the node's own user")
    except (OSError, ValueError, ModuleNotFoundError) as error:
        wrong.append(str(error))
    return PolicyDescription(sentences=tuple(sentences), wrong=tuple(wrong))


def _pinned(owner: NodeConfig) -> DataFormat | None:
    schema = owner.data_schema
    if schema is None or not Path(schema).exists():
        return None
    pinned = read_schema(Path(schema))
    if pinned.classes is None or (pinned.columns is None and pinned.image_shape is None):
        raise ValueError(
            f"{schema} must name the classes, and the columns of a table or the image_shape of "
            "images: without them no row can be used"
        )
    return pinned


def _words_of(pinned: DataFormat) -> list[str]:
    sentences = []
    if pinned.columns is not None:
        encoding = encoding_of(pinned)
        types = pinned.types or ("number",) * len(pinned.columns)
        if encoding is not None:
            types = tuple(column.kind for column in encoding)
        columns = zip(pinned.columns, types, strict=True)
        listed = ", ".join(f"{name} ({kind})" for name, kind in columns)
        sentences.append(
            f"It trains on {listed} and on nothing else; a row with another type of value counts "
            "as a record without content"
        )
        if pinned.mean is None and encoding is None:
            sentences.append("Columns are used as they are: mean and std in the schema scale them")
    classes = ", ".join(pinned.classes or ())
    of_column = f" of column {pinned.label_column}" if pinned.columns is not None else ""
    sentences.append(f"Its labels are {classes}{of_column}")
    return sentences


def _rows(folder: Path, pinned: DataFormat | None, wrong: list[str]) -> list[str]:
    if not any(folder.iterdir()):
        wrong.append(f"dp-data-path names {folder}, which is empty: put the training data there")
        return []
    if pinned is None:
        return []
    files = _IMAGES if pinned.image_shape is not None else _TABLES
    existing = {task: folder / name for task, name in files.items() if (folder / name).exists()}
    if not existing:
        wrong.append(f"{folder} has no {' or '.join(files.values())}, which the schema is for")
    sentences = []
    for task, file in existing.items():
        if task in _TABLES and file.stat().st_size <= _MOST_BYTES:
            sentences.append(_words_of_rows(task, file, pinned, wrong))
    return sentences


def _words_of_rows(task: str, file: Path, pinned: DataFormat, wrong: list[str]) -> str:
    of_node = replace(pinned, splits=("train",), leave_out_unfit=True)
    fit = load_dataset(DataSource(task, data_dir=str(file.parent), data_format=of_node)).train_fit
    assert fit is not None  # each row was read separately
    if not fit.any():
        wrong.append(
            f"none of the {len(fit)} rows of {file} fits the schema: compare names of columns, "
            "types and classes"
        )
    unfit = len(fit) - int(fit.sum())
    if not unfit:
        return f"All {len(fit)} rows of {file} fit the schema"
    return (
        f"{unfit} of the {len(fit)} rows of {file} do not fit the schema: where records are "
        "protected they count as records without content, otherwise the node contributes zero"
    )
