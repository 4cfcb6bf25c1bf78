"""Whose data a training is of, as settings and arrays say it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fl_dp import PrivacyBudget
from fl_dp.accounting import PoissonSampling
from fl_dp.app import people_of_data
from fl_dp.app.accounts import RunAccount
from fl_dp.app.client_arrays import population_of_parts
from fl_dp.app.compose import compose_settings
from fl_dp.app.people_of_data import file_of, population_of
from fl_dp.app.private_module import train_private
from fl_dp.ledger import NATURAL, LedgerUnavailable, Population, PrivacyLedger, SpentLedger
from fl_dp.ledger.population import key_file
from fl_dp.mechanisms import FixedClipping
from fl_dp.option_errors import OptionError
from fl_dp.plan import CentralPlan, Plan


def table(folder: Path, rows: str = "1,ill\n2,well\n") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "train.csv").write_text(f"age,label\n{rows}")
    (folder / "test.csv").write_text("age,label\n1,ill\n")
    return folder


def of(folder: Path, *overrides: str) -> Population:
    population = population_of(
        compose_settings(["task=csv", f"task.data_dir={folder}", "task.num_clients=2", *overrides])
    )
    assert population is not None
    return population


def plan() -> Plan:
    return CentralPlan(
        budget=PrivacyBudget(epsilon=1.0, delta=1e-5),
        rounds=2,
        num_clients=20,
        sampling=PoissonSampling(sampling_rate=0.5),
        clipping=FixedClipping(norm=1.0),
    ).calibrated()


def test_a_copy_has_the_same_rows_and_changed_data_the_same_source(tmp_path: Path) -> None:
    folder = table(tmp_path / "patients")
    first = of(folder)
    copy = of(Path(shutil.copytree(folder, tmp_path / "copy")))
    assert copy.rows == first.rows and copy.source != first.source
    (folder / "test.csv").write_text("age,label\n9,ill\n")  # which is public
    assert of(folder) == first
    changed = of(table(folder, "1,ill\n2,well\n3,ill\n"))
    assert changed.source == first.source and changed.rows != first.rows
    assert not first.public


@pytest.mark.parametrize(
    "key",
    ["seed=1", "task.num_clients=1", "task.partition=shards", "task.validation=true"],
)
def test_what_deals_rows_anew_makes_other_clients(tmp_path: Path, key: str) -> None:
    folder = table(tmp_path / "patients")
    first, other = of(folder), of(folder, key)
    assert first.clients != other.clients and first.rows == other.rows
    # What deals nothing changes nobody.
    assert of(folder, "rounds=7", "client.learning_rate=0.5", "task.alpha=3") == first


def test_natural_clients_stay_who_they_are_and_real_nodes_say_nothing(tmp_path: Path) -> None:
    folder = table(tmp_path / "patients")
    natural = ["task.partition=natural", "task.client_column=clinic"]
    assert of(folder, *natural).clients == of(folder, *natural, "seed=3").clients == NATURAL
    nodes = compose_settings(["task=csv", f"task.data_dir={folder}", "task.partition=nodes"])
    assert population_of(nodes) is None


def test_what_comes_with_fl_dp_is_public_by_its_digest_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("digits", "breast_cancer"):
        shipped = population_of(compose_settings([f"task={name}"]))
        assert shipped is not None and shipped.public and shipped.source == name
    assert not of(table(tmp_path / "digits")).public
    monkeypatch.setattr(people_of_data, "_fingerprint_of_set", lambda name: "another set")
    replaced = population_of(compose_settings(["task=digits"]))
    assert replaced is not None and not replaced.public


def test_an_account_is_found_by_whom_it_is_of(tmp_path: Path) -> None:
    patients, visitors = table(tmp_path / "patients"), table(tmp_path / "visitors", "7,ill\n")
    files = []
    for folder in (visitors, patients):
        files.append(tmp_path / f"{folder.name}.db")
        PrivacyLedger.open(files[-1], plan(), population=of(folder)).close()
    undeclared = tmp_path / "undeclared.db"
    PrivacyLedger.open(undeclared, plan()).close()
    every = [undeclared, *files]
    copy = of(Path(shutil.copytree(patients, tmp_path / "copy")))
    assert file_of(of(patients), every) == file_of(copy, every) == files[1]
    assert file_of(of(visitors), every) == files[0]
    assert file_of(of(table(tmp_path / "others", "4,well\n")), every) is None
    key_file(files[1]).unlink()
    with pytest.raises(LedgerUnavailable, match=r"patients\.db\.key"):
        file_of(copy, every)  # a new account would forget what was spent


def test_runs_find_their_account_by_their_people_and_not_by_a_folder_s_name(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    first = table(tmp_path / "one" / "data")
    other = table(tmp_path / "other" / "data", "7,ill\n8,well\n")

    def account(folder: Path, *overrides: str) -> str:
        keys = ["task=csv", f"task.data_dir={folder}", "task.num_clients=2", *overrides]
        found = RunAccount.of(compose_settings(keys), runs / "a run")
        assert found is not None
        return Path(found.location).name

    assert account(first) == account(other) == "data.account.db"  # nobody has one yet
    PrivacyLedger.open(runs / "data.account.db", plan(), population=of(first)).close()
    copy = Path(shutil.copytree(first, tmp_path / "copy of it"))
    assert account(first, "seed=4") == account(copy) == "data.account.db"
    assert account(other) == "data-2.account.db"
    key_file(runs / "data.account.db").unlink()
    with pytest.raises(LedgerUnavailable, match="put it back"):
        account(first)


# In Python.


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def trained(file: Path, name: str, rows: tuple[torch.Tensor, torch.Tensor], **given: Any) -> None:
    train_private(
        nn.Linear(3, 2), rows, epsilon=1, rounds=1, ledger=file, name=name, progress=False, **given
    )


def test_arrays_of_other_people_are_refused_and_the_same_rows_in_another_order_are_not(
    tmp_path: Path,
) -> None:
    file, (x, y) = tmp_path / "people.db", data()
    trained(file, "first", (x, y), partition=8)
    with pytest.raises(OptionError, match="'second' is of other people than the account people"):
        trained(file, "second", data(1), partition=8)
    order = torch.from_numpy(np.random.default_rng(0).permutation(40))
    trained(file, "second", (x[order].double(), y[order]), partition=8)
    with SpentLedger.read(file) as ledger:
        totals = {(one.unit, str(one.relation)): n for one, n in ledger.account.totals().items()}
    # The deal is of rows by their number: so these are other clients, and their records count.
    assert totals["client", "zero-out"] == float("inf")
    assert 2.0 < totals["record", "replace-one"] < float("inf")


def test_clients_are_known_by_their_rows_whatever_their_order() -> None:
    x, y = data()
    parts = [(x[:10], y[:10]), (x[10:], y[10:]), (x[:0], y[:0])]
    again = [(x[10:].double(), y[10:]), (x[:0], y[:0]), (x[:10].flip(0), y[:10].flip(0))]
    assert population_of_parts(parts) == population_of_parts(again)
    other = population_of_parts([(x[:11], y[:11]), (x[11:], y[11:]), (x[:0], y[:0])])
    assert other.rows == population_of_parts(parts).rows
    assert other.clients != population_of_parts(parts).clients
