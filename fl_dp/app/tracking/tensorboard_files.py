"""TensorBoard's event files, in a folder of the run.

    tensorboard --logdir runs/NAME

Their only time is the run's start: the time at which a round ended can tell who took part.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dp.files import private_folder

from .tracker import RunStart, Scalar, whole_minute

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter


class TensorBoardTracker:
    """Writes one event file per start; TensorBoard joins those of a resumed run."""

    def __init__(self, folder: Path) -> None:
        """Name the event files' folder, which need not exist yet."""
        self._folder = folder
        self._records: RecordWriter | None = None
        self._began = 0.0
        self._last = 0
        self._guarantee = ""

    def started(self, run: RunStart) -> None:
        """Write settings and promise, as text and for the hyper-parameter table."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        private_folder(self._folder)
        self._began = whole_minute(time.time())
        self._guarantee = run.guarantee
        self._last = run.before[-1][0] if run.before else 0
        # Named here: the library's own names contain the machine's name.
        name = f"events.out.tfevents.{time.time_ns():020d}.{secrets.token_hex(4)}"
        self._records = RecordWriter((self._folder / name).open("xb"))
        self._write(file_version="brain.Event:2")
        if run.resumed:  # drops what was written of rounds that are repeated
            again = SessionLog(status=SessionLog.START)
            self._write(step=self._last + 1, session_log=again)
        shown = {**run.settings, **run.promise}
        self._write(summary=hparams_pb(shown, run.identity, start_time_secs=self._began))
        self._text("settings", run.settings)
        self._text("promise", run.promise)

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write one scalar per value, with the round as its step."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        for scalar in scalars:
            if scalar.tag == "epsilon":
                metadata = SummaryMetadata(summary_description=self._guarantee)
                scalar.metadata.CopyFrom(metadata)
        self._last = server_round
        self._write(step=server_round, summary=Summary(value=scalars))

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Write how the run ended, and close the file."""
        self._text("final", {"state": state, **final}, step=self._last)
        if self._records is not None:
            self._records.close()

    def _text(self, tag: str, facts: Mapping[str, Scalar], step: int = 0) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        lines = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in facts.items()]
        table = "\n".join(["| | |", "|---|---|", *lines])
        tensor = TensorProto(
            dtype=DT_STRING,
            string_val=[table.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        value = Summary.Value(tag=tag, metadata=create_summary_metadata(tag, None), tensor=tensor)
        self._write(step=step, summary=Summary(value=[value]))

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        if self._records is None:
            raise RuntimeError("the run was not started")
        self._records.write(Event(wall_time=self._began, **event).SerializeToString())
        self._records.flush()  # a reader sees the round at once
