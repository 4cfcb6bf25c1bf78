"""Adult as a table whose clients are pairs of occupation and education, for `task=csv`.

`python benchmarks/accuracy.py natural` trains on it.

    $ python benchmarks/adult_jobs.py                  # writes runs/adult_jobs
"""

from __future__ import annotations

import csv
from pathlib import Path

from fl_dp.tasks.datasets.adult import parse_adult

SOURCE = Path.home() / ".cache/fl-dp/adult"  # where `fl-dp data adult` puts it
TARGET = Path("runs/adult_jobs")


def main() -> None:
    """Write `train.csv` and `test.csv`."""
    TARGET.mkdir(parents=True)
    for file, part in (("adult.data", "train"), ("adult.test", "test")):
        text = (SOURCE / file).read_text()
        lines = [line.split(", ") for line in text.splitlines() if line[:1].isdigit()]
        rows, labels = parse_adult(text)
        with (TARGET / f"{part}.csv").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["job", *(f"x{column}" for column in range(rows.shape[1])), "label"])
            for line, row, label in zip(lines, rows, labels, strict=True):
                occupation, education = line[6], line[3]
                features = [f"{feature:.6g}" for feature in row]
                table.writerow([f"{occupation}, {education}", *features, label])


if __name__ == "__main__":
    main()
