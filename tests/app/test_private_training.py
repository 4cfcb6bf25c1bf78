"""What a task's client takes from the server's settings under DP-SGD, and what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fl_dp.app import private_training
from fl_dp.app.compose import compose_settings
from fl_dp.app.run_folder import RunFolder, statement_of_records
from fl_dp.clients.per_record import dp_sgd
from fl_dp.plan import RecordPlan
from fl_dp.statement.stated_promise import RecordStatement

PLAN = RecordPlan.from_noise_multiplier(
    1.0, delta=1e-5, sampling_rate=0.5, steps=2, participations=2, clipping_norm=1.0
)


def records() -> private_training.Records:
    return private_training.Records(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(("simulated", "secure"), [(True, False), (False, True)])
def test_only_a_simulation_takes_torch_s_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool, secure: bool
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(private_training, "in_simulation", lambda: simulated)
    monkeypatch.setattr(
        "fl_dp.clients.opacus_client.PrivateSteps",
        lambda *args, how, **rest: seen.append(how.secure_randomness),
    )
    client = private_training.private_client(
        torch.nn.Linear(3, 2),
        records,
        plan=PLAN,
        settings=compose_settings(["privacy=dp_sgd", "dp_sgd.secure_randomness=false"]),
        context=Context(1, 1, {"dp-ledger-path": str(tmp_path / "l.db")}, RecordDict(), {}),
        config={},
        unit=0,
    )
    arrays = [each.detach().numpy() for each in torch.nn.Linear(3, 2).state_dict().values()]
    client.fit(arrays, {})
    assert seen == [secure]
    assert dp_sgd.DPSGD().secure_randomness


def test_a_batch_has_no_row_that_is_no_record_and_all_rows_are_counted() -> None:
    rows = private_training.Records(
        torch.arange(6.0).reshape(3, 2), torch.arange(3), fit=np.array([True, False, True])
    )
    _, labels = rows.__getitems__([0, 1, 2])
    assert labels.tolist() == [0, 2]
    assert len(rows) == 3  # which is public


def test_records_of_a_folder_are_known_by_its_files_however_they_are_read(tmp_path: Path) -> None:
    names = []
    for text, labels in (("a\n1\n", 0), ("a\n1\n", 1), ("a\n2\n", 0)):
        (tmp_path / "train.csv").write_text(text)
        rows = private_training.Records(
            torch.zeros(1, 1), torch.tensor([labels]), folder=str(tmp_path)
        )
        names.append(rows.fingerprint)
    assert names[0] == names[1] != names[2]


def test_nodes_count_each_run_by_a_name_of_its_own(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("one", "one", "other"))
    for folder in {first, other}:
        folder.mkdir()
    plans = [RunFolder(folder).keep_record_plan(PLAN) for folder in (first, again, other)]
    names = [plan.training for plan in plans if plan is not None]
    assert names[0] == names[1] != names[2] and all(names)


def test_a_real_node_without_a_ledger_trains_nothing() -> None:
    with pytest.raises(ValueError, match="keeps no ledger"):
        private_training.private_client(
            torch.nn.Linear(3, 2),
            records,
            plan=PLAN,
            settings=compose_settings(["privacy=dp_sgd"]),
            context=Context(1, 1, {"partition-id": 0}, RecordDict(), {}),
            config={},
            unit=0,
        )


def test_a_way_of_opacus_needs_a_form_to_be_compared_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grad_sample_mode=hooks is compared with gradients"):
        private_training.private_client(
            torch.nn.Linear(3, 2),
            records,
            plan=PLAN,
            settings=compose_settings(["privacy=dp_sgd", "dp_sgd.grad_sample_mode=hooks"]),
            context=Context(1, 1, {"dp-ledger-path": str(tmp_path / "l.db")}, RecordDict(), {}),
            config={},
            unit=0,
        )


@pytest.mark.parametrize(("chosen", "declared"), [("records", None), ("ghost", "ghost")])
def test_a_statement_names_a_way_whose_rows_were_declared_to_be_records(
    chosen: str, declared: str | None
) -> None:
    settings = compose_settings(["privacy=dp_sgd", f"dp_sgd.grad_sample_mode={chosen}"])
    statement = statement_of_records(PLAN, settings)
    assert statement.declared_gradients == declared
    named = "`grad_sample_mode=ghost`" in " ".join(statement.not_covered)
    assert named == (declared is not None)
    assert RecordStatement.from_dict(statement.to_dict()) == statement
