"""Everything that real trackers have written, read back from their own files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Written:
    """What a tracker's files hold.

    Attributes:
        rounds: Values of each round, by round.
        facts: Settings, promise and what was spent, by name.
        times: Every time that goes with a round's values, in seconds.
    """

    rounds: dict[int, dict[str, float]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    times: set[float] = field(default_factory=set)

    def note(self, server_round: int, name: str, value: float) -> None:
        self.rounds.setdefault(server_round, {})[name] = value


def tensorboard_files(folder: Path) -> Written:
    """Read TensorBoard's event files as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    files, read = Written(), EventAccumulator(str(folder))
    read.Reload()
    tags = read.Tags()
    for name in tags["scalars"]:
        for event in read.Scalars(name):
            files.note(event.step, name, event.value)
            files.times.add(event.wall_time)
    for name in tags["tensors"]:
        [*_, event] = read.Tensors(name)
        files.times.add(event.wall_time)
        if name != metadata.SESSION_START_INFO_TAG:
            [table] = event.tensor_proto.string_val
            for row in table.decode().splitlines()[2:]:
                _, key, value, _ = row.split("|")
                files.facts[key.strip()] = value.strip()
            continue
        content = read.SummaryMetadata(name).plugin_data.content
        files.facts |= {
            key: str(value)
            for key, value in metadata.parse_session_start_info_plugin_data(content).hparams.items()
        }
    return files


def mlflow_run(folder: Path) -> Written:
    """Read the one run of a database of MLflow's."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    [run] = client.search_runs(experiments)
    files = Written(facts={**run.data.params, **run.data.tags})
    for name in run.data.metrics:
        if name.startswith("final/"):
            files.facts[name] = str(run.data.metrics[name])
            continue
        for metric in client.get_metric_history(run.info.run_id, name):
            files.note(metric.step, name, metric.value)
            files.times.add(metric.timestamp / 1000)
    files.facts["status"] = run.info.status
    return files


def wandb_runs(folder: Path) -> list[Written]:
    """Read what `wandb sync` would send, one for each start of the run."""
    return [_wandb_run(file) for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def _wandb_run(file: Path) -> Written:
    import json

    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    files = Written()
    for read in records_of_wandb(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(read)
        match record.WhichOneof("record_type"):
            case "run":
                for item in record.run.config.update:
                    files.facts[item.key] = item.value_json
                files.facts |= {"group": record.run.run_group, "id": record.run.run_id}
                assert {record.run.host, record.run.git.remote_url} == {"-", ""}
                assert record.run.notes == "no privacy"  # its seed is known
            case "summary":
                for item in record.summary.update:
                    if item.key:
                        files.facts[item.key] = item.value_json
            case "history":
                row = {item.nested_key[0]: item.value_json for item in record.history.item}
                files.times.add(float(row.pop("_timestamp")))
                row.pop("_runtime")
                server_round = int(row.pop("_step"))
                for name, value in row.items():
                    files.note(server_round, name, json.loads(value))
            case "header" | "telemetry" | "exit" | "final" | "footer":
                pass
            case kind:
                raise AssertionError(f"W&B keeps a record of its own, {kind}: {record}")
    return files


def records_of_wandb(written: bytes) -> Iterator[bytes]:
    """Yield the records of W&B's file: blocks of LevelDB's log, after 7 bytes of its own.

    The last record may be half written: W&B's own process goes on after the run's end.
    """
    assert b":W&B".startswith(written[:4])
    offset, whole, head, block = 7, b"", 7, 1 << 15
    while offset + head <= len(written):
        left = block - offset % block
        if left < head:
            offset += left
            continue
        _, length, kind = struct.unpack("<IHB", written[offset : offset + head])
        if offset + head + length > len(written):
            return
        whole += written[offset + head : offset + head + length]
        offset += head + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""
