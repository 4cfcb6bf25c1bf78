"""Apps of the gate's own user, which write to its ledger: what is wrong there pays for nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from gated_site import Site, adding

QUIET = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}
MODEL = {"w": np.zeros(1)}


def with_bytes(ledger: Path) -> None:
    with ledger.open("r+b") as file:
        file.write(b"nothing was ever charged" * 40)


def statement(text: str) -> Callable[[Path], None]:
    def write(ledger: Path) -> None:
        with closing(sqlite3.connect(ledger)) as database:
            database.execute(text)
            database.commit()

    return write


CHANGES: dict[str, Callable[[Path], None]] = {
    "bytes": with_bytes,
    "another entry": statement("UPDATE entries SET payload = replace(payload, 'train', 'trial')"),
    "an entry of its own": statement(
        "INSERT INTO entries SELECT sequence + 1, payload, hash FROM entries "
        "WHERE sequence = (SELECT max(sequence) FROM entries)"
    ),
    "no entries": statement("DELETE FROM entries WHERE sequence > 1"),
    "no ledger": Path.unlink,
}
# What takes the last entries away is seen by a witness alone, which lies elsewhere.
NEEDS_WITNESS = {"no entries", "no ledger"}


@pytest.mark.parametrize("change", CHANGES)
def test_after_an_app_has_written_to_the_ledger_nothing_of_its_data_leaves(
    site: Any, tmp_path: Path, change: str
) -> None:
    def app(message: Message) -> Any:
        yield from adding(1.0)(message)
        CHANGES[change](here.ledger)

    (tmp_path / "elsewhere").mkdir()
    witness = {"dp-witness-path": str(tmp_path / "elsewhere" / "witness")}
    here: Site = site(app, **QUIET, **(witness if change in NEEDS_WITNESS else {}))
    first, *others = here.answers(MODEL, rounds=3)
    # Eight standard deviations of the noise.
    assert first.arrays["w"] == pytest.approx([1.0], abs=8e-4)
    assert len(here.seen) == 1
    assert len(others) == 2
    for arrived in others:
        assert set(arrived.message.content) == {"arrays", "metrics"}
        assert arrived.arrays["w"] == pytest.approx([0.0], abs=8e-4)
