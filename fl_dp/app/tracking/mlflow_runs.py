"""Runs in MLflow: in a database beside the run, or at a server.

mlflow ui --backend-store-uri sqlite:///runs/NAME/mlflow/mlflow.db
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fl_dp.files import private_file, private_folder

from .tracker import RunStart, Scalar, whole_minute

if TYPE_CHECKING:
    from mlflow import MlflowClient

_IDENTITY, _GROUP, _STATE = "fl_dp.run", "fl_dp.sweep", "fl_dp.state"
_NOTE = "mlflow.note.content"  # MLflow shows it above a run's figures
_MOST_AT_ONCE = 100  # parameters that MLflow takes in one request
_LONGEST = 500  # characters of one that every store takes
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflowTracker:
    """Writes one MLflow run; a resumed run continues in it."""

    def __init__(self, uri: str | None, *, experiment: str, folder: Path) -> None:
        """Set the destination: a server or store at `uri`; None: a database in `folder`.

        `experiment` is the name of the experiment that holds the run.
        """
        self._uri, self._experiment, self._folder = uri, experiment, folder
        self._client: MlflowClient | None = None
        self._run = ""
        self._began = 0

    def started(self, run: RunStart) -> None:
        """Create the run with settings and promise as parameters, or find the resumed one."""
        # Disables reports of usage to MLflow's makers, unless the caller wants them.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.entities import Param

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._began = round(whole_minute(time.time()) * 1000)
        if self._uri is None:
            private_folder(self._folder)
        with self._alone():
            uri = self._uri or f"sqlite:///{self._folder.absolute()}/mlflow.db"
            # Passed here, so that MLFLOW_TRACKING_URI of the environment sends nothing elsewhere.
            client = self._client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
            experiment = self._experiment_id(client)
        if run.resumed:
            earlier = client.search_runs(
                [experiment], filter_string=f"tags.`{_IDENTITY}` = '{run.identity}'", max_results=1
            )
            if earlier:
                self._run = earlier[0].info.run_id
                client.update_run(self._run, status="RUNNING")
                return
        tags = {_IDENTITY: run.identity, _NOTE: run.guarantee}
        if run.group:
            tags[_GROUP] = run.group
        new = client.create_run(experiment, start_time=self._began, tags=tags, run_name=run.name)
        self._run = new.info.run_id
        facts = [
            Param(key, str(value)[:_LONGEST])
            for key, value in {**run.settings, **run.promise}.items()
        ]
        for start in range(0, len(facts), _MOST_AT_ONCE):
            client.log_batch(self._run, params=facts[start : start + _MOST_AT_ONCE])

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Log one metric per value, with the round as its step."""
        self._log(values, server_round)

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Log what was spent, and close the run."""
        numbers = {key: value for key, value in final.items() if not isinstance(value, str)}
        self._log(numbers, 0)
        client = self._started()
        client.set_tag(self._run, _STATE, state)
        if "final/guarantee" in final:
            client.set_tag(self._run, _NOTE, final["final/guarantee"])
        now = round(whole_minute(time.time()) * 1000)
        client.set_terminated(self._run, _STATUS[state], end_time=max(now, self._began))

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(key, float(value), self._began, step) for key, value in values.items()]
        self._started().log_batch(self._run, metrics=metrics)

    def _started(self) -> MlflowClient:
        if self._client is None:
            raise RuntimeError("the run was not started")
        return self._client

    def _experiment_id(self, client: MlflowClient) -> str:
        experiment = client.get_experiment_by_name(self._experiment)
        if experiment is not None:
            return str(experiment.experiment_id)
        # Without a location MLflow would store the folder in which this process happens to run.
        location = None if self._uri else (self._folder.absolute() / "artifacts").as_uri()
        return str(client.create_experiment(self._experiment, artifact_location=location))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one of a sweep's trainings at a time create their shared database."""
        if self._uri is not None:
            yield
            return
        lock = self._folder / "lock"
        private_file(lock)
        with lock.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
