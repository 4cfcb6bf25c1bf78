"""This machine's resources for a simulation: processors, memory, GPUs.

Flower's engine does not say that its clients can't see the GPU, and says too late that there is
none. Both are checked here, before anything starts, without importing a framework.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fl_dp.app.settings import Settings, SimulationSettings
from fl_dp.machine import free_memory, processors

WORKER_MEMORY = 500_000_000
"""Bytes of one worker: 270 MB with PyTorch and Flower imported, and its clients' data."""

# Measured on 2 processors with PyTorch: 4 workers train 1.4 times as fast as 2, 6 are slower again.
_SPARE_WORKERS = 2
_MOST_WORKERS = 32  # Flower's engine gives work to no more
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Resources that a simulation may use.

    Attributes:
        cpus: Processors that this process may run on.
        free_memory: Bytes free without swapping; None if unknown.
        gpus: Visible NVIDIA GPUs.
    """

    cpus: int
    free_memory: int | None
    gpus: int

    @classmethod
    def here(cls) -> Self:
        """This machine's resources."""
        return cls(cpus=processors(), free_memory=free_memory(), gpus=visible_gpus())

    def shared_by(self, trainings: int) -> Self:
        """Each training's share, if several run at a time."""
        if trainings == 1:
            return self
        memory = None if self.free_memory is None else self.free_memory // trainings
        return replace(self, cpus=max(1, self.cpus // trainings), free_memory=memory)


def check_devices(settings: Settings, machine: Machine) -> str | None:
    """A warning if there is a GPU that the clients will not see, or None.

    Raises:
        ValueError: The machine has no GPU, or less than the share that the settings ask for.
    """
    share = settings.simulation.num_gpus
    if share == 0:
        if not machine.gpus:
            return None
        return (
            f"{_gpus(machine.gpus)} visible, but with simulation.num_gpus=0 the clients can't see "
            "it and train on the CPU: write simulation=gpu, or CUDA_VISIBLE_DEVICES= before the "
            "command if the CPU is what you want"
        )
    if not machine.gpus:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES='{hidden}')"
        raise ValueError(
            f"simulation.num_gpus={share:g} needs a GPU, and none is visible{reason}: write "
            "simulation=cpu, or simulation.num_gpus=0"
        )
    if share > machine.gpus:
        raise ValueError(
            f"simulation.num_gpus={share:g} is what each worker gets, and there is only "
            f"{machine.gpus} in all: write simulation.num_gpus={machine.gpus} or less, for example "
            "0.25 for four workers on each GPU"
        )
    return None


def num_workers(settings: Settings, machine: Machine) -> int:
    """Number of workers that the simulation starts.

    By default two more than processors, as free memory allows: two handle messages while others
    train. Never more than nodes; fewer start once the GPUs' shares are used up.
    """
    simulation = settings.simulation
    asked = simulation.workers or simulation.num_cpus
    if asked is not None:
        return asked
    workers = _within_memory(machine.cpus + _SPARE_WORKERS, machine)
    return min(workers, simulation.num_nodes(settings.task.num_clients))


def busy_workers(simulation: SimulationSettings, machine: Machine) -> int:
    """How many workers a machine keeps busy, each with one message per round.

    By default one per processor, as memory and GPUs allow; one where nodes answer in one process.
    """
    if simulation.engine == "in_process":
        return 1
    asked = simulation.workers or simulation.num_cpus
    if simulation.engine == "cluster":
        workers = min(asked or machine.cpus, machine.cpus)
    else:
        workers = _within_memory(machine.cpus, machine) if asked is None else asked
    if simulation.num_gpus > 0:
        workers = min(workers, workers_on(machine.gpus, simulation.num_gpus))
    return max(1, workers)


def workers_on(gpus: float, share: float) -> int:
    """How many workers fit on one machine's GPUs; Ray takes a share below 1 from one GPU."""
    if share < 1:
        return int(gpus) * int(1 / share)
    return int(gpus / share)


def _within_memory(workers: int, machine: Machine) -> int:
    workers = min(workers, _MOST_WORKERS)
    if machine.free_memory is not None:
        workers = min(workers, machine.free_memory // 2 // WORKER_MEMORY)
    return max(1, workers)


def visible_gpus(
    environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER, tool: str = "nvidia-smi"
) -> int:
    """Number of NVIDIA GPUs that CUDA would find here, without loading CUDA.

    Args:
        environment: Environment that may have `CUDA_VISIBLE_DEVICES`.
        driver: Folder where the driver lists its GPUs.
        tool: Command to run without such a folder, as under Windows.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        devices = [device.strip() for device in chosen.split(",")]
        # CUDA stops reading at the first invalid entry.
        refused = next((i for i, device in enumerate(devices) if device in _NO_DEVICE), None)
        devices = devices[:refused]
        if not devices:
            return 0
    installed = _installed_gpus(driver, tool)
    if chosen is None:
        return installed
    return min(installed, len(devices))


_NO_DEVICE = ("", "-1", "NoDevFiles", "none", "void")


def _installed_gpus(driver: Path, tool: str) -> int:
    listed_by_driver = sum(1 for _ in driver.iterdir()) if driver.is_dir() else 0
    if listed_by_driver:
        return listed_by_driver
    # In containers and small virtual machines the folder may be empty or missing.
    command = shutil.which(tool)
    if command is None:
        return 0
    try:
        listed = subprocess.run(
            [command, "-L"], capture_output=True, text=True, check=True, timeout=10.0
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _gpus(count: int) -> str:
    return "a GPU is" if count == 1 else f"{count} GPUs are"
