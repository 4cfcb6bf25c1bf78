"""Folders of `fl-dp attack membership`, as it would write them, but without a training."""

from __future__ import annotations

import csv
from pathlib import Path

from pngs import write_png

COLUMNS = (
    "task",
    "model",
    "unit",
    "models",
    "members",
    "others",
    "attack",
    "auc",
    "asked_fpr",
    "fpr",
    "tpr",
    "tpr_low",
    "tpr_high",
    "allowed_by_epsilon_delta",
    "allowed",
    "exceeds",
)


def write_attack(path: Path, *, attack: str = "loss threshold", tpr: object = 0.031) -> Path:
    """Write the folder of an attack, and return it.

    `tpr` is the share of members found at a false-positive rate of 1 %.
    """
    path.mkdir(parents=True)
    row = ("digits", "logistic", "client", 8, 800, 800, attack, 0.512, 0.01, 0.01)
    with (path / "membership.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerow([*row, tpr, 0.02, 0.045, 0.36, 0.21, False])
    write_png(path / "roc.png", 90, 50)
    return path
