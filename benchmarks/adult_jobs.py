"""Adult as a table whose clients are pairs of occupation and education, for `task=csv`.

`python benchmarks/accuracy.py natural` trains on it.

    $ python benchmarks/adult_jobs.py                  # writes runs/adult_jobs
"""

from __future__ import annotations

import csv
from pathlib import Path

from fl_dp.tasks.datasets.public_tables import SCHEMAS, adult_rows

SOURCE = Path.home() / ".cache/fl-dp/adult"  # where `fl-dp data adult` puts it
TARGET = Path("runs/adult_jobs")


def main() -> None:
    """Write `train.csv`, `test.csv` and their schema."""
    TARGET.mkdir(parents=True)
    schema = (SCHEMAS / "adult.yaml").read_text(encoding="utf-8")
    (TARGET / "schema.yaml").write_text(schema + "client_column: job\n", encoding="utf-8")
    for file, part in (("adult.data", "train"), ("adult.test", "test")):
        rows = adult_rows((SOURCE / file).read_text())
        for row in rows:
            row["job"] = f"{row['occupation']}, {row['education']}"
        with (TARGET / f"{part}.csv").open("w", newline="") as stream:
            table = csv.DictWriter(stream, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
