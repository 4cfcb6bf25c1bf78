"""Hospital wards, each a real node with its own table, and a server with the public one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from deployment import Deployment

from fl_dp.app.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (
    "task=csv",
    "task.partition=nodes",
    "task.label_column=ill",
    "task.columns=[age,pressure]",
    "task.classes=[no,yes]",
    "model=logistic",
    "selection.sampling_rate=1",
    "server_optimizer=fedavg",
    "client.epochs=1",
    "client.learning_rate=0.5",
)


def write_tables(folder: Path, wards: tuple[str, ...]) -> None:
    """Write `WARD/train.csv` for each, and `public/test.csv`."""
    _write_table(folder / "public" / "test.csv", 0)
    for seed, ward in enumerate(wards, start=1):
        _write_table(folder / ward / "train.csv", seed)


def train_wards(
    deployment: Deployment, folder: Path, name: str, *overrides: str, **limits: float | None
) -> RunFolder:
    """Train to the end on all nodes of a deployment; return the run's folder."""
    paths = (f"task.data_dir={folder / 'public'}", f"output_dir={folder / 'runs'}")
    ended = deployment.run(ROOT, [*SETTINGS, *overrides, *paths, f"run_name={name}"], **limits)
    assert ended == "finished:completed", ended
    return RunFolder(folder / "runs" / name)


def _write_table(path: Path, seed: int) -> None:
    random = np.random.Generator(np.random.PCG64(seed))
    table = random.normal(size=(200, 2))
    rows = [f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}" for a, b in table]
    path.parent.mkdir(parents=True)
    path.write_text("age,pressure,ill\n" + "\n".join(rows) + "\n")
