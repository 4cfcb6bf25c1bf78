"""`model.initial`: first weights come from a file, which is checked before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from app_trainings import grid_of, trained_in_process
from safetensors.torch import save_file
from torch import Tensor

from fl_dp.app.compose import compose_settings
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings_encoder import require_public_files
from fl_dp.app.workload import initial_arrays_of, model_of, with_digests
from fl_dp.files import sha256_of
from fl_dp.tasks.datasets.forms import Form
from fl_dp.tasks.models import build_model

MLP = ("model=mlp", "model.hidden=4", "task.num_clients=3", "rounds=1", "client.epochs=1")


def weights() -> dict[str, Tensor]:
    model = build_model("mlp", input_shape=(1, 8, 8), num_classes=10, hidden=4, seed=99)
    return dict(model.state_dict())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(weights(), tmp_path / "first.safetensors")
    return tmp_path / "first.safetensors"


def trained(folder: Path, *overrides: str) -> RunFolder:
    return trained_in_process(folder, *MLP, "selection.sampling_rate=0.9", *overrides)


def test_training_starts_from_the_file_and_the_statement_says_so(
    tmp_path: Path, file: Path
) -> None:
    settings = compose_settings([*MLP, f"model.initial={file}"])
    for name, array in initial_arrays_of(settings).items():
        assert (torch.tensor(array.numpy()) == weights()[name]).all()
    run = trained(tmp_path, f"model.initial={file}")
    digest = sha256_of(file)
    assert run.read_settings().model.initial_digest == digest
    assert run.read_statement()["public_inputs"] == [
        f"the first weights, {file.name}, SHA-256 {digest}: nothing is promised to the data that "
        "they were trained on"
    ]
    assert digest in run.statement_page.read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"1.weight": None}, "lacks '1.weight'"),
        ({"1.weight": torch.zeros(4, 63)}, r"'1.weight' is \(4, 63\) and should be \(4, 64\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_there_is_a_run(
    tmp_path: Path, file: Path, change: dict[str, Tensor | None], said: str
) -> None:
    arrays = {**weights(), **change}
    save_file({name: each for name, each in arrays.items() if each is not None}, file)
    with pytest.raises(ValueError, match=said) as refused:
        trained(tmp_path / "runs", f"model.initial={file}")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there_or_another_one_is_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model\.initial=/no/such/file can't be read here"):
        trained(tmp_path / "runs", "model.initial=/no/such/file")
    with pytest.raises(ValueError, match=r"model\.initial_digest is abc, and .* here has"):
        trained(tmp_path / "runs", f"model.initial={file}", "model.initial_digest=abc")
    assert not (tmp_path / "runs").exists()


def test_a_run_is_not_resumed_from_other_first_weights(tmp_path: Path, file: Path) -> None:
    """What stays at a node, or is frozen, starts from them again."""
    run = trained(tmp_path, f"model.initial={file}", "model.lora_rank=2")
    save_file({name: each + 1 for name, each in weights().items()}, file)
    settings = compose_settings([f"resume={run.path}"])
    with pytest.raises(ValueError, match=r"model\.initial_digest is"):
        train(grid_of(run.read_settings()), settings, run_id="2")


def test_frozen_weights_are_those_of_the_file(file: Path) -> None:
    settings = with_digests(compose_settings([*MLP, f"model.initial={file}", "model.lora_rank=2"]))
    model = model_of(settings).cpu()
    linear = model.state_dict()["1.base.weight"]
    assert (linear == weights()["1.weight"]).all()
    # Nodes build the frozen part themselves, from the same file.
    assert settings.for_clients().model == settings.model


def test_a_node_with_data_of_its_own_reads_no_file_of_which_the_server_says_no_digest(
    tmp_path: Path, file: Path
) -> None:
    settings = compose_settings([*MLP, f"model.initial={file}"])
    with pytest.raises(ValueError, match=r"model\.initial_digest is null"):
        require_public_files(settings, {"dp-data-path": str(tmp_path)})


def test_clients_who_get_all_weights_are_told_of_no_file(file: Path) -> None:
    settings = with_digests(compose_settings([*MLP, f"model.initial={file}"]))
    sent = settings.for_clients().model
    assert sent.initial is None
    assert sent.initial_digest is None


def test_a_model_that_no_machine_has_memory_for_is_told_in_one_line() -> None:
    settings = compose_settings(["model=mlp", "model.hidden=2000000"])
    with pytest.raises(ValueError, match=r"^model.hidden=2000000: this machine has no memory"):
        model_of(settings, Form(input_shape=(1,), num_classes=2))
