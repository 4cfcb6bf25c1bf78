"""LendingClub: 9,857 loans of early 2016, and which of them went bad.

The natural clients are the borrowers' states, fifty of them with the District of Columbia; a loan's
state is not an input. One loan in nineteen went bad, so accuracy says little: a model that never
warns is right 94.8 % of the time.

The table is `lending_club` of R's package modeldata. It is read from a CSV file, never from a
pickle; `fl-dp data lending_club` writes that file from Debian's build of the package, and
`write.csv(modeldata::lending_club, "lending_club.csv", row.names = FALSE)` in R writes it, too.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.columns import Columns, Number, codes, encode
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.held_out import with_test_part
from fl_dp.tasks.datasets.sources import SOURCES, read_plain

NUM_ROWS = 9857

# The constants are round numbers; nothing is fitted.
COLUMNS: Columns = {
    "funded_amnt": Number(centre=16_000, scale=9_000),
    "term": ("term_36", "term_60"),
    "int_rate": Number(centre=12, scale=5),
    "sub_grade": tuple(f"{grade}{step}" for grade in "ABCDEFG" for step in range(1, 6)),
    "verification_status": ("Not_Verified", "Source_Verified", "Verified"),
    "annual_inc": Number(centre=11, scale=1, logarithm=True),
    "emp_length": (
        "emp_unk", "emp_lt_1", "emp_1", "emp_2", "emp_3", "emp_4", "emp_5", "emp_6", "emp_7",
        "emp_8", "emp_9", "emp_ge_10",
    ),
    "delinq_2yrs": Number(scale=1, logarithm=True),
    "inq_last_6mths": Number(scale=1, logarithm=True),
    "revol_util": Number(centre=50, scale=25),
    "acc_now_delinq": Number(),
    "open_il_6m": Number(centre=1, scale=1, logarithm=True),
    "open_il_12m": Number(scale=1, logarithm=True),
    "open_il_24m": Number(centre=1, scale=1, logarithm=True),
    "total_bal_il": Number(centre=8, scale=4, logarithm=True),
    "all_util": Number(centre=60, scale=20),
    "inq_fi": Number(scale=1, logarithm=True),
    "inq_last_12m": Number(centre=1, scale=1, logarithm=True),
    "delinq_amnt": Number(scale=10, logarithm=True),
    "num_il_tl": Number(centre=2, scale=1, logarithm=True),
    "total_il_high_credit_limit": Number(centre=9, scale=3, logarithm=True),
}  # fmt: skip
STATES = (
    "AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DC", "DE", "FL", "GA", "HI", "ID", "IL", "IN", "KS",
    "KY", "LA", "MA", "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM",
    "NV", "NY", "OH", "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI",
    "WV", "WY",
)  # fmt: skip
_CLASSES = ("good", "bad")


def load_lending_club(data_dir: str | None = None) -> Dataset:
    """Load the loans with a fixed 20 % test part, stratified by label.

    Args:
        data_dir: Folder with `lending_club.csv`; None looks where `fl-dp data lending_club` puts
            it.

    Returns:
        Float32 rows `(n, 69)`; the label is 1 for a bad loan, the natural clients are 50 states.

    Raises:
        FileNotFoundError: If the folder or the file is missing.
        ValueError: If the file is not that table.
    """
    in_r = 'in R `write.csv(modeldata::lending_club, "lending_club.csv", row.names = FALSE)`'
    folder = sources.require_folder("lending_club", data_dir, in_r)
    ((file, md5),) = SOURCES["lending_club"].md5.items()
    return parse_lending_club(read_plain(sources.find(folder, file), md5).decode("utf-8"))


def parse_lending_club(text: str, num_rows: int = NUM_ROWS) -> Dataset:
    """Encode the table and split it.

    Args:
        text: CSV with a header. Not its digest but its content is checked, as programs quote
            differently.
        num_rows: How many rows the table must have.

    Raises:
        ValueError: If the table has other columns, values or a different number of rows.
    """
    table = list(csv.DictReader(io.StringIO(text)))
    if len(table) != num_rows:
        raise ValueError(
            f"lending_club.csv has {len(table)} rows, the table has {num_rows}; write it again"
        )
    rows = encode(table, COLUMNS)
    labels = codes("Class", [row.get("Class", "") for row in table], _CLASSES)
    clients = codes("addr_state", [row.get("addr_state", "") for row in table], STATES)
    whole = with_test_part(
        "lending_club", rows, labels, num_classes=2, clients=clients, client_names=STATES
    )
    return replace(whole, class_names=_CLASSES)
