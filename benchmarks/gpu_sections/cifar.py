"""Rounds of CIFAR-10 as pfl-research benchmarks it, of both frameworks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pfl_cifar10

from .bench import FULL, Bench, Row, Sizes
from .timing import if_possible


def rounds(bench: Bench, framework: str, *, private: bool, engine: str = "one process") -> None:
    """Train for some seconds by pfl-research's published configuration."""
    name = f"{framework}, {'with' if private else 'without'} privacy, {engine}"
    missing = {"pfl-research": "pfl"}.get(framework, "ray" if engine == "flower" else "flwr")
    if importlib.util.find_spec(missing) is None:
        bench.write({"case": name, "skipped": f"the package {missing} is not installed"})
        return
    with tempfile.TemporaryDirectory() as folder:
        data = write_images(Path(folder), bench.sizes)
        task = task_of(bench, folder) | {
            "framework": framework,
            "private": private,
            "engine": engine,
        }
        with contextlib.redirect_stdout(sys.stderr):  # where pfl-research prints its metrics
            measured = pfl_cifar10.done(task)
    bench.write({"case": name, "data": data} | pace(measured))


def task_of(bench: Bench, folder: str) -> dict[str, Any]:
    """What every process that trains by this configuration is told."""
    return {
        "folder": folder,
        "private": True,
        "clients": bench.sizes.clients,
        "cohort": bench.sizes.cohort,
        "seconds": bench.sizes.pace_s,
        "rounds": pfl_cifar10.PUBLISHED_ROUNDS,
        "noise_multiplier": pfl_cifar10.published_noise(),
        "seed": 0,
    }


def pace(measured: Mapping[str, float]) -> Row:
    """What a row says of a training's rounds."""
    keys = ("rounds", "seconds_per_round", "clients_per_s", "bytes")
    row = {key: measured[key] for key in keys if key in measured}
    minutes = pfl_cifar10.PUBLISHED_ROUNDS * measured["seconds_per_round"] / 60
    return {**row, "minutes_of_1500_rounds": minutes}


def users(bench: Bench) -> None:
    """Take cohorts from more and more users, with privacy, in one process."""
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), bench.sizes)
        for count in bench.sizes.users:
            task = task_of(bench, folder) | {"framework": "fl-dp", "clients": count}
            measure = partial(lambda task: pace(pfl_cifar10.done(task)), task)
            if_possible(bench, f"fl-dp, {count} users", measure)


def processes(bench: Bench) -> None:
    """Let several processes of pfl-research share the device, with privacy."""
    if importlib.util.find_spec("pfl") is None:
        bench.write({"case": "pfl-research", "skipped": "the package pfl is not installed"})
        return
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), bench.sizes)
        task = task_of(bench, folder) | {"framework": "pfl-research"}
        for count in bench.sizes.processes:
            name = f"pfl-research, with privacy, {count} processes"
            if_possible(bench, name, partial(side_by_side_processes, task, count))


def side_by_side_processes(task: dict[str, Any], count: int) -> Row:
    """Train in so many processes, whose rounds are the same; the first one's pace counts."""
    addresses = ",".join(f"localhost:{free_port()}" for _ in range(count))
    processes = [
        subprocess.Popen(
            pfl_cifar10.command_of(task, Path(sys.executable)),
            env=os.environ | {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else sys.stderr,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        output, _ = processes[0].communicate(timeout=120)
        return pace(pfl_cifar10.result_in(output))
    finally:
        for process in processes:  # others wait for the first one's next round
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        port: int = bound.getsockname()[1]
        return port


def write_images(folder: Path, sizes: Sizes) -> str:
    """Write CIFAR-10 if it is here, else made-up images of its shape; return which, in words."""
    if sizes is FULL:
        with contextlib.suppress(FileNotFoundError):
            pfl_cifar10.prepare(folder)
            return "CIFAR-10"
    pfl_cifar10.make_up(folder, train=sizes.clients * sizes.records, test=100)
    return "made up"
