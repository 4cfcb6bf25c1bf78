"""Trackers by their names, made with their packages when a run begins."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from .names import TRACKERS
from .tracker import Tracker


def require_installed(name: str) -> None:
    """Check that a tracker's package is there, without importing it; `none` needs none.

    Raises:
        ModuleNotFoundError: If it is not, with what to install.
    """
    if name != "none" and find_spec(name) is None:
        raise ModuleNotFoundError(
            f"tracking={name} needs the package {name}: pip install 'fl-dp[{name}]'"
        )


def make_tracker(
    name: str, folder: Path, *, shared: Path, project: str, uri: str | None, online: bool
) -> Tracker:
    """Return a tracker; it writes nothing yet.

    Args:
        name: One of `TRACKERS`.
        folder: Of the run.
        shared: Of its sweep, or of the run alone.
        project: Name of the project at W&B, of the experiment in MLflow.
        uri: Of MLflow's server or store; None: a database in `shared`.
        online: Whether W&B sends, rather than keeps everything in `folder`.

    Raises:
        ModuleNotFoundError: If its package is missing.
        ValueError: If there is no such tracker.
    """
    if name not in TRACKERS:
        raise ValueError(f"a tracker is one of {', '.join(TRACKERS)}, got '{name}'")
    require_installed(name)
    # Here, in the training's own thread: W&B's import parses source, which Python 3.11 gives up
    # with a SystemError where a finalizer or another thread parses, too. What failed is tried once
    # more when the tracker starts, and told.
    with suppress(Exception):
        import_module(name)
    if name == "tensorboard":
        from .tensorboard_files import TensorBoardTracker

        return TensorBoardTracker(folder / "tensorboard")
    if name == "mlflow":
        from .mlflow_runs import MLflowTracker

        return MLflowTracker(uri, experiment=project, folder=shared / "mlflow")
    from .wandb_runs import WandbTracker

    return WandbTracker(folder, project=project, online=online)
