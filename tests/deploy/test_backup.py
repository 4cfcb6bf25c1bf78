"""Copies of ledgers: whole, verified, and of no use to whoever wants a budget back."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import backup
import node_charges
import pytest
from flat_plans import noised_plan
from node_charges import charges_of

from fl_dp import PrivacyLedger
from fl_dp.commands.shown_ledger import show_ledger
from fl_dp.ledger import LedgerCorrupted, witness_at


def charge(ledger: Path, witness: str) -> None:
    node_charges.charge(ledger, epsilon=50.0, noise=2.0, witness=witness_at(witness))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "node" / "ledger.db"


@pytest.fixture
def witness(tmp_path: Path) -> str:
    return str(tmp_path / "elsewhere" / "ledger.heads")


def test_a_copy_is_the_whole_ledger_and_its_owner_s_alone(
    ledger: Path, witness: str, tmp_path: Path
) -> None:
    charge(ledger, witness)
    charge(ledger, witness)
    copy = backup.back_up(ledger, tmp_path / "copies", witness=witness)
    assert charges_of(copy) == 2
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert list(copy.parent.iterdir()) == [copy]


def test_a_copy_that_is_put_back_late_is_refused_and_the_newest_is_not(
    ledger: Path, witness: str, tmp_path: Path
) -> None:
    charge(ledger, witness)
    older = backup.back_up(ledger, tmp_path / "older", witness=witness)
    charge(ledger, witness)
    newest = backup.back_up(ledger, tmp_path / "newest", witness=witness)

    shutil.copy(older, ledger)
    with pytest.raises(LedgerCorrupted):
        charge(ledger, witness)
    with pytest.raises(LedgerCorrupted):
        backup.back_up(ledger, tmp_path / "late", witness=witness)
    assert list((tmp_path / "late").iterdir()) == []  # and so no good copy is replaced

    shutil.copy(newest, ledger)
    charge(ledger, witness)
    assert charges_of(ledger) == 3


def test_a_training_s_ledger_is_copied_too(tmp_path: Path) -> None:
    plan = noised_plan(
        1.0, delta=1e-3, rounds=9, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
    )
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as kept:
        kept.commit(kept.reserve(round=1))
    copy = backup.back_up(tmp_path / "ledger.db", tmp_path / "copies", witness=None)
    with PrivacyLedger.read(copy) as read:
        assert read.rounds_committed == 1


def test_the_oldest_copies_go(ledger: Path, witness: str, tmp_path: Path) -> None:
    charge(ledger, witness)
    folder = tmp_path / "copies"
    folder.mkdir()
    for day in range(10, 15):
        (folder / f"ledger-2020-01-{day}.db").touch()
    others = {"ledger-north.db", "ledger-north-2020-01-01.db", "ledger-2020-01-01.db.old"}
    for other in others:
        (folder / other).touch()
    copy = backup.back_up(ledger, folder, witness=witness, keep=3)
    assert sorted({file.name for file in folder.iterdir()} - others) == [
        "ledger-2020-01-13.db",
        "ledger-2020-01-14.db",
        copy.name,
    ]
    assert all((folder / other).exists() for other in others)


def test_a_charge_between_the_copy_and_the_look_at_the_witness_is_copied_again(
    ledger: Path, witness: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(ledger, witness)
    late = [True]

    def show_late(*arguments: Any, **options: Any) -> Any:
        if late:
            charge(ledger, witness)
            late.pop()
        return show_ledger(*arguments, **options)

    monkeypatch.setattr(backup, "show_ledger", show_late)
    assert charges_of(backup.back_up(ledger, tmp_path / "copies", witness=witness)) == 2


def test_what_is_no_ledger_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("x")
    for name in ("x.db", "none.db"):
        with pytest.raises(SystemExit, match=r"error: .*"):
            backup.main([str(tmp_path / name), "--to", str(tmp_path / "copies")])
    with pytest.raises(SystemExit, match="--keep"):
        backup.main([str(tmp_path / "x.db"), "--to", str(tmp_path), "--keep", "0"])
