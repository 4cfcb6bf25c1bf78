"""Attackers who share an account's file, are killed, and put copies back, stay within its cap."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from accounts import CAP
from attacked_account import attack
from processes import Forked

from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.ledger import SpentLedger, witness_at

Told = list[dict[str, Any]]


def begun(file: Path, heads: Path | None, who: str, seed: int, *, capped: bool = True) -> Forked:
    return Forked(lambda: attack(file, heads, who=who, seed=seed, capped=capped))


def told_by(process: Forked) -> Told:
    """All that a process tells until its end."""
    told: Told = []
    while (line := next_line(process)) is not None:
        told.append(line)
        process.stdin.write("\n")  # it waits after each line
        process.stdin.flush()
    assert process.wait() == 0
    return told


def next_line(process: Forked) -> dict[str, Any] | None:
    """The next release that a process tells of, before it goes on; None at its end."""
    line = process.stdout.readline()
    return json.loads(line) if line else None


def killed(process: Forked) -> None:
    """Kill a process that waits in the middle of a training."""
    process.kill()
    assert process.wait() == -9


def spent(told: Iterable[dict[str, Any]]) -> float:
    """Epsilon of all releases together at the cap's delta, exactly: Gaussians of one mu.

    A client that is replaced covers one that contributes zero, so its noise counts as it is.
    """
    mu = math.sqrt(math.fsum(release["noise"] ** -2 for release in told))
    return gaussian_epsilon(1.0 / mu, CAP.delta)


def test_no_attack_spends_beyond_the_cap(tmp_path: Path) -> None:
    """Three at once, one of them killed; it begins again; then an older copy; then all there is."""
    file, heads = tmp_path / "people.db", tmp_path / "elsewhere" / "people.heads"
    heads.parent.mkdir()
    stopped = begun(file, heads, "first", 1)
    released = next_line(stopped)
    assert released is not None
    copy = file.read_bytes()
    with ThreadPoolExecutor(2) as pool:  # while the first is in the middle of a training
        others = pool.map(
            lambda who, seed: told_by(begun(file, heads, who, seed)), ("second", "third"), (2, 3)
        )
        told = [released, *(release for other in others for release in other)]
    killed(stopped)
    told += told_by(begun(file, heads, "first", 4))  # whose names are known
    newest = file.read_bytes()
    assert newest != copy
    file.write_bytes(copy)
    assert told_by(begun(file, heads, "fourth", 5)) == [{"refused": "corrupted"}]
    file.write_bytes(newest)
    for seed in range(6, 9):
        told += told_by(begun(file, heads, f"later-{seed}", seed))
    epsilon = spent(told)
    assert 0.4 * CAP.epsilon < epsilon <= CAP.epsilon
    with SpentLedger.read(file, witness=witness_at(str(heads))) as ledger:
        account = ledger.account
        assert epsilon <= account.total(account.neighbours) <= CAP.epsilon * (1 + 1e-9)
        charged = sum(len(state.reserved) for state in account.trainings.values())
        assert charged >= len(told)  # who was killed may have told less than was charged


def test_the_attack_would_spend_more_without_a_cap(tmp_path: Path) -> None:
    """The power: the same attackers, in accounts that have none."""
    told: Told = []
    for seed in range(4):
        told += told_by(begun(tmp_path / f"{seed}.db", None, f"{seed}", seed, capped=False))
    assert spent(told) > 1.2 * CAP.epsilon
