"""Settings of where a run's released values go besides its folder."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from fl_dp.option_errors import IncompatibleOptions, OptionError

from .checks import choices

_LAST_PORT = 65535


@dataclass(kw_only=True)
class TrackingSettings:
    """Tracker that a training tells its released values, round by round.

    Attributes:
        name: `none`, `tensorboard`, `mlflow` or `wandb` (Weights & Biases); each needs its package,
            for example `pip install 'fl-dp[tensorboard]'`.
        project: Name of the experiment in MLflow, of the project at W&B.
        uri: Where MLflow keeps runs: an address, or an absolute path after `sqlite:///`; null is a
            database in the run's folder, or in that of its sweep.
        mode: `offline` sends nothing to any other machine. `online` sends each round at once: to
            MLflow's `tracking.uri`, or to the W&B server that you are logged in to.
        metrics_port: Port of 127.0.0.1 on which a training shows released values and figures of
            its process to Prometheus, at `/metrics`, and that it is alive, at `/health`; null shows
            nothing.
    """

    name: str = "none"
    project: str = "fl-dp"
    uri: str | None = None
    mode: str = "offline"
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        choices("tracking", self)
        if not self.project or not self.project.isprintable():
            raise OptionError(f"{{tracking.project}} must be a plain name, got {self.project!r}")
        if self.metrics_port is not None and not 1 <= self.metrics_port <= _LAST_PORT:
            raise OptionError(
                f"{{tracking.metrics_port}} must lie in [1, {_LAST_PORT}], got {self.metrics_port}"
            )
        if self.uri is not None:
            if self.name != "mlflow":
                raise IncompatibleOptions(
                    "{tracking.uri} is for MLflow: write {tracking=mlflow} too, or leave it out"
                )
            _check_uri(self.uri)
        if self.online and not (self.name == "wandb" or self.remote):
            raise IncompatibleOptions(
                "{tracking.mode=online} is for trackers on other machines: write "
                "{tracking=wandb} too, "
                "or {tracking=mlflow} with its address as {tracking.uri}"
            )
        if self.remote and not self.online:
            # Closed by default: nothing leaves the machine that was not asked for by this word.
            raise IncompatibleOptions(
                "{tracking.uri} is on another machine, and {tracking.mode} is offline: write "
                "{tracking.mode=online} too, or leave {tracking.uri} out"
            )

    @property
    def told(self) -> bool:
        """Whether anybody is told of a training while it goes on."""
        return self.name != "none" or self.metrics_port is not None

    @property
    def online(self) -> bool:
        """Whether each round may be sent to another machine."""
        return self.mode == "online"

    @property
    def remote(self) -> bool:
        """Whether MLflow's runs are kept by a server."""
        return self.uri is not None and not self.uri.startswith("sqlite:")


def _check_uri(uri: str) -> None:
    """Check that it can be an address of MLflow's, and names no password.

    Raises:
        ValueError: If it can't, or does; the password is not repeated.
    """
    try:
        parts = urlsplit(uri)
        secret, scheme, host = parts.password or parts.username, parts.scheme, parts.hostname
    except ValueError:
        secret, scheme, host = None, "", None
    if secret is not None or "@" in uri:
        raise OptionError(
            "{tracking.uri} holds a user or a password, which the run's folder would keep: put "
            "them "
            "into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD of the environment"
        )
    remote = scheme in ("http", "https") and host
    database = scheme == "sqlite" and uri.startswith("sqlite:////")
    if not (remote or database):
        raise OptionError(
            "{tracking.uri} must be like https://mlflow.example.org or "
            "sqlite:////a/folder/mlflow.db "
            f"(an absolute path), got '{uri}'"
        )
