"""The recipes for data that can't be shipped, run on made-up files of the same form."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.datasets

from fl_dp.tasks.datasets import Dataset, DataSource, load_dataset
from fl_dp.tasks.datasets.schema_file import read_schema
from fl_dp.tasks.datasets.text_bytes import texts_of

PAGE = Path(__file__).resolve().parents[2] / "docs/bring_data.md"


def blocks_of(heading: str, language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def run(heading: str) -> None:
    (code,) = blocks_of(heading, "python")
    exec(compile(code, str(PAGE), "exec"), {})


def table_of(heading: str, *, task: str = "csv") -> Dataset:
    """Return the table that the recipe wrote, read by the page's schema."""
    (schema,) = blocks_of(heading, "yaml")
    Path("data/schema.yaml").write_text(schema, encoding="utf-8")
    data_format = read_schema(Path("data/schema.yaml"))
    if not Path(f"data/test.{task}").exists():
        data_format = replace(data_format, test_fraction=0.25)
    return load_dataset(
        DataSource(task, data_dir=str(Path("data").resolve()), data_format=data_format)
    )


def write_gz(file: str, rows: Sequence[Mapping[str, object]]) -> None:
    with gzip.open(file, "wt", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "hosp"):
        Path(folder).mkdir()


def test_stays_of_many_hospitals_have_clients_persons_and_gaps() -> None:
    stays: list[dict[str, object]] = []
    for number in range(16):
        status = ("Alive", "Expired", "Alive", "")[number % 4]
        age = "> 89" if number % 2 else "53"
        one = {"patientunitstayid": number, "uniquepid": f"00{number // 2}", "gender": "Female"}
        one |= {"age": age, "hospitalid": 60 + number // 4, "admissionheight": ""}
        stays.append(one | {"admissionweight": "80.5", "hospitaldischargestatus": status})
    write_gz("patient.csv.gz", stays)
    run("eICU")
    table = table_of("eICU")
    assert len(table.train_y) + len(table.test_y) == 12  # who has no status has no label
    assert table.client_names == ("60", "61", "62", "63")
    assert table.train_persons is not None and len(set(table.train_persons)) == 6
    age, old, *_, tall, no_height, _, _ = np.array(table.train_x).T
    assert set(old[age != 0]) == {0} and set(old[age == 0]) == {0.5}
    assert not tall.any() and set(no_height) == {0.5}


def test_stays_of_one_hospital_get_what_is_known_of_their_persons() -> None:
    persons = [{"subject_id": n, "gender": "FM"[n % 2], "anchor_age": 91 - n} for n in range(8)]
    write_gz("hosp/patients.csv.gz", persons)
    stays = [
        {"subject_id": n // 2, "hadm_id": n, "insurance": ("Medicaid", "Other")[n % 2]}
        | {"hospital_expire_flag": int(n == 3)}
        for n in range(16)
    ]
    write_gz("hosp/admissions.csv.gz", stays)
    run("MIMIC-IV")
    table = table_of("MIMIC-IV")
    assert len(table.train_y) + len(table.test_y) == 16
    assert table.train_y.sum() + table.test_y.sum() == 1
    assert table.train_persons is not None and len(set(table.train_persons)) == 6


def test_arrays_of_pictures_become_folders_of_silos() -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, rows in (("train", 40), ("val", 4), ("test", 8)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(rows) % 2).astype(np.uint8)[:, np.newaxis]
    np.savez("pneumoniamnist.npz", **arrays)
    run("MedMNIST")
    pictures = load_dataset(DataSource("folder", data_dir=str(Path("data").resolve())))
    assert pictures.input_shape == (1, 28, 28)
    assert len(pictures.client_names) == 10
    assert (len(pictures.train_y), len(pictures.test_y), pictures.num_classes) == (40, 8, 2)
    first = arrays["train_images"][0]
    assert any((first == picture[0]).all() for picture in pictures.train_x)


def test_mails_become_a_table_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    mails = SimpleNamespace(
        data=["the shuttle\nflies", "a goal in the last minute"],
        target=[0, 1],
        target_names=["sci.space", "rec.sport.hockey"],
    )
    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", lambda **_: mails)
    run("20 newsgroups")
    table = table_of("20 newsgroups", task="parquet")
    assert (table.num_classes, table.input_shape) == (20, (2000,))
    assert texts_of(table.train_x) == mails.data
    assert [table.class_names[label] for label in table.train_y] == mails.target_names
