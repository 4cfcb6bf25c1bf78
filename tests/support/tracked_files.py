"""Names of everything that real trackers have written, read back from their own files."""

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

    found, read = Written(), EventAccumulator(str(folder))
    read.Reload()
    tags = read.Tags()
    for name in tags["scalars"]:
        for event in read.Scalars(name):
            found.note(event.step, name, event.value)
            found.times.add(event.wall_time)
    for name in tags["tensors"]:
        [*_, event] = read.Tensors(name)
        found.times.add(event.wall_time)
        if name != metadata.SESSION_START_INFO_TAG:
            [table] = event.tensor_proto.string_val
            for row in table.decode().splitlines()[2:]:
                _, key, value, _ = row.split("|")
                found.facts[key.strip()] = value.strip()
            continue
        content = read.SummaryMetadata(name).plugin_data.content
        found.facts |= {
            key: str(value)
            for key, value in metadata.parse_session_start_info_plugin_data(content).hparams.items()
        }
    return found


def mlflow_run(folder: Path) -> Written:
    """Read the one run of a database of MLflow's."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    [run] = client.search_runs(experiments)
    found = Written(facts={**run.data.params, **run.data.tags})
    for name in run.data.metrics:
        if name.startswith("final/"):
            found.facts[name] = str(run.data.metrics[name])
            continue
        for metric in client.get_metric_history(run.info.run_id, name):
            found.note(metric.step, name, metric.value)
            found.times.add(metric.timestamp / 1000)
    found.facts["status"] = run.info.status
    return found


def wandb_runs(folder: Path) -> list[Written]:
    """Read what `wandb sync` would send, a start of the run each."""
    return [_wandb_run(file) for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def _wandb_run(file: Path) -> Written:
    import json

    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    found = Written()
    for read in _records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(read)
        match record.WhichOneof("record_type"):
            case "run":
                for each in record.run.config.update:
                    found.facts[each.key] = each.value_json
                found.facts |= {"group": record.run.run_group, "id": record.run.run_id}
                assert {record.run.host, record.run.notes, record.run.git.remote_url} == {"-", ""}
            case "summary":
                for each in record.summary.update:
                    if each.key:
                        found.facts[each.key] = each.value_json
            case "history":
                row = {each.nested_key[0]: each.value_json for each in record.history.item}
                found.times.add(float(row.pop("_timestamp")))
                row.pop("_runtime")
                server_round = int(row.pop("_step"))
                for name, value in row.items():
                    found.note(server_round, name, json.loads(value))
            case "header" | "telemetry" | "exit" | "final" | "footer":
                pass
            case kind:
                raise AssertionError(f"W&B keeps a record of its own, {kind}: {record}")
    return found


def _records(written: bytes) -> Iterator[bytes]:
    """Yield the records of W&B's file: blocks of LevelDB's log, after 7 bytes of its own."""
    assert written[:4] == b":W&B"
    place, whole, head, block = 7, b"", 7, 1 << 15
    while place + head <= len(written):
        left = block - place % block
        if left < head:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", written[place : place + head])
        whole += written[place + head : place + head + length]
        place += head + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""
