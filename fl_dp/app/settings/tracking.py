"""Settings of where released values go besides a run's folder: one class per `tracking=NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fl_dp.option_errors import OptionError

from .checks import choices

if TYPE_CHECKING:
    from fl_dp.app.tracking import Tracker

_LAST_PORT = 65535


@dataclass(kw_only=True)
class TrackingSettings:
    """No tracker; each other option is a tracker that gets the released values of a training.

    Each needs its package, for example `pip install 'fl-dp[tensorboard]'`.

    Attributes:
        name: Option of the group.
        metrics_port: Port of 127.0.0.1 with `/metrics` for Prometheus (released values, the
            process's figures) and `/health`; null shows nothing.
    """

    name: str = "none"
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        choices("tracking", self)
        if self.metrics_port is not None and not 1 <= self.metrics_port <= _LAST_PORT:
            raise OptionError(
                f"tracking.metrics_port must lie in [1, {_LAST_PORT}], got {self.metrics_port}",
                option="tracking.metrics_port",
            )

    @property
    def is_on(self) -> bool:
        """Whether anything follows a training while it runs."""
        return self.name != "none" or self.metrics_port is not None

    @property
    def online(self) -> bool:
        """Whether each round may be sent to another machine."""
        return False

    def make(self, folder: Path, *, shared: Path) -> Tracker:
        """Return the tracker, which writes nothing yet; its package is installed.

        Args:
            folder: Folder of the run.
            shared: Folder of its sweep, or of the run without a sweep.

        Raises:
            ValueError: If there is no tracker.
        """
        raise OptionError(f"tracking={self.name} has no tracker: name one", option="tracking")


@dataclass(kw_only=True)
class TensorBoardSettings(TrackingSettings):
    """Event files in the run's folder."""

    name: str = "tensorboard"

    def make(self, folder: Path, *, shared: Path) -> Tracker:
        """Return the tracker."""
        from fl_dp.app.tracking.tensorboard_files import TensorBoardTracker

        return TensorBoardTracker(folder / "tensorboard")


@dataclass(kw_only=True)
class ProjectSettings(TrackingSettings):
    """A tracker that can be on another machine.

    Attributes:
        project: Name of the experiment in MLflow, or of the project at W&B.
        mode: `offline` sends nothing to other machines. `online` sends each round to
            `tracking.uri`, or to your W&B server.
    """

    project: str = "fl-dp"
    mode: str = "offline"

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if not self.project or not self.project.isprintable():
            raise OptionError(
                f"tracking.project must be a plain name, got {self.project!r}",
                option="tracking.project",
            )

    @property
    def online(self) -> bool:
        """Whether each round may be sent to another machine."""
        return self.mode == "online"


@dataclass(kw_only=True)
class MLflowSettings(ProjectSettings):
    """MLflow.

    Attributes:
        uri: MLflow's address, or an absolute path after `sqlite:///`; null is a database in the
            folder of the run or sweep.
    """

    name: str = "mlflow"
    uri: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.uri is not None:
            _check_uri(self.uri)
        if self.online and not self.remote:
            raise OptionError(
                "tracking.mode=online is for trackers on other machines: write the address of "
                "MLflow as tracking.uri too, or leave it out",
                option="tracking.mode",
            )
        if self.remote and not self.online:
            # Closed by default: only this word lets anything leave the machine.
            raise OptionError(
                "tracking.uri is on another machine, and tracking.mode is offline: write "
                "tracking.mode=online too, or leave tracking.uri out",
                option="tracking.uri",
            )

    @property
    def remote(self) -> bool:
        """Whether a server stores the runs."""
        return self.uri is not None and not self.uri.startswith("sqlite:")

    def make(self, folder: Path, *, shared: Path) -> Tracker:
        """Return the tracker; the trainings of a sweep share a database."""
        from fl_dp.app.tracking.mlflow_runs import MLflowTracker

        return MLflowTracker(self.uri, experiment=self.project, folder=shared / "mlflow")


@dataclass(kw_only=True)
class WandbSettings(ProjectSettings):
    """Weights & Biases."""

    name: str = "wandb"

    def make(self, folder: Path, *, shared: Path) -> Tracker:
        """Return the tracker."""
        from fl_dp.app.tracking.wandb_runs import WandbTracker

        return WandbTracker(folder, project=self.project, online=self.online)


def _check_uri(uri: str) -> None:
    """Check that a text can be an address of MLflow, without a password.

    Raises:
        ValueError: If it can't, or has a password, which is not repeated.
    """
    try:
        parts = urlsplit(uri)
        secret, scheme, host = parts.password or parts.username, parts.scheme, parts.hostname
    except ValueError:
        secret, scheme, host = None, "", None
    if secret is not None or "@" in uri:
        raise OptionError(
            "tracking.uri holds a user or a password, which the run's folder would keep: put "
            "them into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD of the environment",
            option="tracking.uri",
        )
    remote = scheme in ("http", "https") and host
    database = scheme == "sqlite" and uri.startswith("sqlite:////")
    if not (remote or database):
        raise OptionError(
            "tracking.uri must be like https://mlflow.example.org or "
            f"sqlite:////a/folder/mlflow.db (an absolute path), got '{uri}'",
            option="tracking.uri",
        )


TRACKINGS: tuple[TrackingSettings, ...] = (
    TrackingSettings(),
    TensorBoardSettings(),
    MLflowSettings(),
    WandbSettings(),
)
"""The options of `tracking=NAME`."""
