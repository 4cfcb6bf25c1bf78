"""The examples of traffic and recommendation: an hour is in one record, a person's vector stays."""

from __future__ import annotations

import csv
import importlib.util
import math
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fl_dp import PrivacyLedger

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MONDAY = datetime(2024, 12, 30)


def example(path: str) -> ModuleType:
    file = EXAMPLES / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # NamedTuple looks itself up
    spec.loader.exec_module(module)
    return module


def table_of(hours: int, *, without: int) -> str:
    """Return counts as the package has them: days begin at six, and one hour has no count."""
    lines = ["date,hour,year,here"]
    for number in range(hours):
        at = MONDAY + timedelta(hours=6 + number)
        day = (at - timedelta(hours=6)).date()
        count = "" if number == without else str(number)
        lines.append(f"{day},{at.hour}:00-{at.hour}:59,{day.year},{count}")
    return "\n".join(lines) + "\n"


def test_each_hour_of_a_sensor_is_in_one_record_at_most_and_gaps_are_in_none() -> None:
    prepare = example("traffic/prepare.py")
    counts = prepare.series_of(table_of(120, without=30))["here"]
    assert [*counts.values()] == [each for each in range(120) if each != 30]
    assert [*counts] == sorted(counts)
    windows = prepare.windows_of(counts)
    used = [round(math.expm1(each)) for _, logs in windows for each in logs]
    assert len(used) == len({*used}) == 4 * 25
    assert 30 not in used
    assert all(logs == sorted(logs) for _, logs in windows)


def test_the_tables_are_divided_by_year(tmp_path: Path) -> None:
    prepare = example("traffic/prepare.py")
    assert prepare.write(table_of(120, without=30), tmp_path) == (1, 3)
    with (tmp_path / "test.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows[0]) == 1 + 24 + 4 + 1
    assert float(rows[0]["before_1h"]) < float(rows[0]["count"])


def made_up(people: int, films: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ratings of a generator: films differ, and so do people."""
    rng = np.random.default_rng(0)
    worth = rng.normal(0.0, 0.7, films)
    seen = [rng.permutation(films)[: films // 2] for _ in range(people)]
    return [(each, np.clip(3.5 + rng.normal(0.0, 0.3) + worth[each], 0.5, 5.0)) for each in seen]


def test_films_are_learnt_at_the_budget_and_a_person_s_vector_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommend = example("recommendation/recommend.py")
    monkeypatch.setattr(recommend, "FILMS", 20)
    people = [recommend.Ratings(*each) for each in made_up(60, 20)]
    train, test = recommend.split(people, 0)
    start = recommend.first_table(1, 0)
    ledger = tmp_path / "films.db"
    table = recommend.train(train, start, epsilon=8.0, norm=2.0, rate=1.0, rounds=4, ledger=ledger)
    assert table.shape == start.shape  # what travels has a row a film, and none a person
    assert recommend.error(table, train, test) < 0.8 * recommend.error(start, train, test)
    with PrivacyLedger.read(ledger) as spent:
        assert spent.epsilon().best <= 8.0
        assert spent.rounds_committed == 4


def test_an_update_names_the_films_that_were_rated_and_moves_no_other() -> None:
    recommend = example("recommendation/recommend.py")
    films = np.array([3, 7])
    own = recommend.Ratings(films, np.array([5.0, 1.0]))
    start = np.zeros((20, 2))
    (moved,), _, sent = recommend.Person(own).fit([start], {})
    assert sent == {}
    assert {*np.flatnonzero(np.abs(moved - start).sum(1))} == {*films}
