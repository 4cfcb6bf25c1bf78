"""What a machine has, what a simulation makes of it, and the two ways to miss the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fl_dp.app.local.devices import WORKER_MEMORY, Machine, check_devices, num_workers, visible_gpus
from fl_dp.app.local.launch import federation_config
from fl_dp.app.settings import TASK, Settings, SimulationSettings

PLENTY = 10**12


def machine(*, cpus: int = 8, free_memory: int | None = PLENTY, gpus: int = 0) -> Machine:
    return Machine(cpus=cpus, free_memory=free_memory, gpus=gpus)


def simulation(
    *,
    num_clients: int = 200,
    num_cpus: int | None = None,
    num_gpus: float = 0.0,
    workers: int | None = None,
    units_per_node: int = 1,
) -> Settings:
    return Settings(
        task=TASK(num_clients=num_clients),
        simulation=SimulationSettings(
            num_cpus=num_cpus, num_gpus=num_gpus, workers=workers, units_per_node=units_per_node
        ),
    )


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A machine with two GPUs, as the driver lists them."""
    folder = tmp_path / "gpus"
    for address in ("0000:07:00.0", "0000:0f:00.0"):
        (folder / address).mkdir(parents=True)
    return folder


def nvidia_smi(folder: Path, script: str) -> str:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


# GPUs are counted as CUDA would.


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (None, 2),
        ("0,1", 2),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1),
        ("0,1,2,3", 2),
        ("-1", 0),
        ("0,-1,1", 1),
    ],
)
def test_gpus_are_those_of_the_driver_that_are_not_hidden(
    driver: Path, chosen: str | None, count: int
) -> None:
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_gpus(environment, driver, "no such tool") == count


def test_without_the_driver_s_folder_the_tool_is_asked(tmp_path: Path) -> None:
    lines = "GPU 0: NVIDIA H200 (UUID: GPU-1)\\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\\n"
    tool = nvidia_smi(tmp_path, f"printf '{lines}'")
    assert visible_gpus({}, tmp_path / "none", tool) == 1


def test_a_driver_s_folder_that_lists_none_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    tool = nvidia_smi(tmp_path, "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    assert visible_gpus({}, tmp_path / "gpus", tool) == 1
    assert visible_gpus({}, tmp_path / "gpus", "no such tool") == 0


def test_a_tool_that_fails_or_is_not_there_means_no_gpu(tmp_path: Path) -> None:
    tool = nvidia_smi(tmp_path, "echo 'GPU 0: so it says'; exit 9")
    assert visible_gpus({}, tmp_path / "none", tool) == 0
    assert visible_gpus({}, tmp_path / "none", "no such tool") == 0


def test_hidden_gpus_are_not_even_looked_for(tmp_path: Path) -> None:
    tool = nvidia_smi(tmp_path, f"touch {tmp_path}/asked; echo 'GPU 0: a'")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path / "none", tool) == 0
    assert not (tmp_path / "asked").exists()


def test_this_machine_is_looked_at_without_importing_torch() -> None:
    code = (
        "import sys; from fl_dp.app.local.devices import Machine; here = Machine.here(); "
        "assert here.cpus >= 1 and here.gpus >= 0; "
        "assert here.free_memory is None or here.free_memory > 0; "
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The two ways to miss it are told before anything starts.


def test_a_gpu_that_the_clients_will_not_see_is_a_warning() -> None:
    warning = check_devices(simulation(), machine(gpus=2))
    assert warning is not None
    assert "2 GPUs are visible" in warning
    assert "simulation=gpu" in warning


def test_a_share_of_a_gpu_without_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ValueError, match=r"num_gpus=0\.25 needs a GPU, and none is visible:"):
        check_devices(simulation(num_gpus=0.25), machine())


def test_a_gpu_hidden_by_the_environment_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(ValueError, match=r"\(CUDA_VISIBLE_DEVICES='-1'\): write simulation=cpu"):
        check_devices(simulation(num_gpus=0.5), machine())


def test_more_gpus_a_worker_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"only 1 in all: write simulation.num_gpus=1 or less"):
        check_devices(simulation(num_gpus=2), machine(gpus=1))


@pytest.mark.parametrize(("share", "gpus"), [(0.0, 0), (0.25, 1), (2.0, 2)])
def test_settings_that_fit_the_machine_are_silent(share: float, gpus: int) -> None:
    assert check_devices(simulation(num_gpus=share), machine(gpus=gpus)) is None


# Workers.


@pytest.mark.parametrize(("cpus", "workers"), [(1, 3), (2, 4), (16, 18), (64, 32)])
def test_by_default_there_are_a_few_more_workers_than_processors(cpus: int, workers: int) -> None:
    assert num_workers(simulation(), machine(cpus=cpus)) == workers


def test_workers_leave_half_of_the_free_memory_alone() -> None:
    assert num_workers(simulation(), machine(cpus=64, free_memory=7 * WORKER_MEMORY)) == 3
    assert num_workers(simulation(), machine(cpus=64, free_memory=1)) == 1
    assert num_workers(simulation(), machine(cpus=8, free_memory=None)) == 10


def test_there_are_no_more_workers_than_nodes() -> None:
    assert num_workers(simulation(num_clients=5), machine(cpus=64)) == 5
    assert num_workers(simulation(num_clients=500, units_per_node=50), machine(cpus=64)) == 10


def test_what_the_settings_say_about_workers_is_done() -> None:
    small = machine(cpus=2, free_memory=1)
    assert num_workers(simulation(num_cpus=7), small) == 7
    assert num_workers(simulation(num_cpus=7, workers=3), small) == 3


# What Flower is told.


def test_flower_is_told_of_nodes_workers_and_shares() -> None:
    settings = simulation(num_clients=1001, units_per_node=50, num_gpus=0.25)
    assert federation_config(settings, machine(cpus=16, gpus=2)) == (
        "num-supernodes=21 client-resources-num-cpus=1 client-resources-num-gpus=0.25 "
        "init-args-num-cpus=18"
    )


def test_the_gpu_option_gives_each_worker_a_share() -> None:
    from fl_dp.app.compose import compose_settings

    settings = compose_settings(["simulation=gpu"])
    assert 0 < settings.simulation.num_gpus <= 1
    assert check_devices(settings, machine(gpus=1)) is None
