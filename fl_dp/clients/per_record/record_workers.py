"""Worker processes that read records for DP-SGD: a record that ends its worker counts as none.

A `DataLoader` gives up with the first worker that dies: the record it was reading would decide
about all others. Here that batch's records are read again one by one. A record that ends its
worker again, or exceeds the loader's `timeout`, has no batch; a new worker reads the next one.

Workers that can't start (a lambda or a lock that can't be sent to them) are found by
`require_workers` before a charge, as far as no record decides it. After one, this process reads
instead: what one record holds must not end the training of all others.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fl_dp import clock
from fl_dp.user_code import Contained

from .persons import PersonBatches
from .record_batches import Batch, BatchForm, RecordBatches, joined_alike

logger = logging.getLogger("flwr.fl_dp.client")

_USUAL = ("__reduce_ex__", "__reduce__", "__getstate__")
"""Methods of `object` that copy an object without a look at what it holds."""

_ORPHAN = 5.0  # seconds between two looks at whether the parent is still alive


def batches_of_workers(
    records: RecordBatches | PersonBatches, samples: Iterable[list[int]], loader: DataLoader[Any]
) -> Iterator[list[Batch]]:
    """Yield each sample's batches in turn; each worker reads one sample ahead.

    Privacy: whether a record is in a batch depends on that record alone. This supposes that the
    data set has no state shared by records, and that the machine's load makes no record late.

    `samples` hold numbers of records. The loader gives the number of workers and how they start.
    Its `timeout`, if any, is for a sample, then each of its records; slower ones count as none.

    Raises:
        RuntimeError: A worker's successor can't start.
    """
    readers = [_RecordReader(records, loader, number) for number in range(loader.num_workers)]
    reading: deque[tuple[_RecordReader, list[int]]] = deque()
    try:
        with Contained("no worker of the loader can start: this process reads") as attempt:
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.wait()
        if attempt.failure is not None:
            for reader in readers:
                reader.end()
            yield from map(records.__getitems__, samples)
            return
        for rows in samples:
            batches = None
            if len(reading) < len(readers):
                reader = readers[len(reading)]
            else:
                reader, earlier = reading.popleft()
                batches = reader.finish(earlier)
            reader.begin(rows)
            reading.append((reader, rows))
            if batches is not None:
                yield batches
        for reader, rows in reading:
            yield reader.finish(rows)
    finally:
        for reader in readers:
            reader.end()


def require_workers(loader: DataLoader[Any]) -> None:
    """Check that a loader's workers can start, without a record.

    Of the data set its class is tried, and attributes that are code or can't be copied as such.

    Raises:
        ValueError: They can't; the text says what to write instead.
    """
    if not loader.num_workers:
        return
    context: Any = loader.multiprocessing_context or torch.multiprocessing
    no_record = RecordBatches([], loader.collate_fn, BatchForm())
    reader = _RecordReader(no_record, loader, 0)
    try:
        if context.get_start_method() == "fork":
            reader.start()
            reader.wait()
        else:  # which takes seconds to start, so what would be sent to it is tried
            for part in (no_record, loader.worker_init_fn, *_code_of(loader.dataset)):
                ForkingPickler.dumps(part)
    except Exception as error:
        raise ValueError(
            f"no worker of the loader can start ({error}): let collate_fn, worker_init_fn, and the "
            "data set's class and its functions stand at the top of a module, without a lock or an "
            "open file, or write num_workers=0"
        ) from error
    finally:
        reader.end()


def _code_of(dataset: Any) -> Iterator[Any]:
    """Yield what of a data set can be sent or not whatever its records are.

    Raises:
        TypeError: An attribute's type can't be sent.
    """
    yield type(dataset)
    for value in getattr(dataset, "__dict__", {}).values():
        if isinstance(value, Dataset):
            yield from _code_of(value)
        elif callable(value):
            yield value
        elif all(getattr(type(value), name) is getattr(object, name) for name in _USUAL):
            value.__reduce_ex__(4)  # without what it holds; raises for locks and open files
            yield type(value)


class _RecordReader:
    """One worker at a time: if it ends, a new one reads the next rows."""

    def __init__(
        self, records: RecordBatches | PersonBatches, loader: DataLoader[Any], number: int
    ) -> None:
        self._records, self._loader, self._number = records, loader, number
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._started = False  # whether the worker has reported its start

    def begin(self, rows: list[int]) -> None:
        """Make a worker read."""
        if self._process is None:
            self.start()
        assert self._connection is not None  # it was made with the process
        try:
            self._connection.send(rows)
        except OSError:
            logger.debug("worker %d has ended: `finish` will see it", self._number)

    def finish(self, rows: list[int]) -> list[Batch]:
        """Return the begun rows' batches, without records that end a worker or are too slow."""
        batches = self._received()
        if batches is not None:
            return batches
        logger.warning("a worker ended or was too slow: its records are read one by one")
        alone: list[Batch] = []
        for row in rows:
            self.begin([row])
            batch = self._received()
            if batch is None:
                logger.error("a record ended its worker or was too slow, and counts as none")
            else:
                alone += batch
        return joined_alike(alone)

    def end(self) -> None:
        """End the worker, whatever it is doing."""
        if self._process is None or self._connection is None:
            return
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._process = None
        self._started = False

    def start(self) -> None:
        """Start a worker.

        Raises:
            Exception: Any error of what it is sent, as a type that can't be.
        """
        context: Any = self._loader.multiprocessing_context or torch.multiprocessing
        self._connection, theirs = context.Pipe()
        worker = (self._number, self._loader.worker_init_fn, os.getpid())
        self._process = context.Process(
            target=_read, args=(self._records, theirs, *worker), daemon=True
        )
        try:
            self._process.start()
        except Exception:
            self._process = None
            raise
        finally:
            theirs.close()  # so that the worker's end is the end of the connection

    def wait(self) -> None:
        """Wait until the worker has reported its start, without a limit: it reads nothing before.

        Raises:
            RuntimeError: It ends before.
        """
        assert self._connection is not None  # it was made with the process
        try:
            self._connection.recv()
        except (EOFError, OSError):
            self.end()
            raise RuntimeError(
                "a worker of the loader ended before it could read: see its worker_init_fn"
            ) from None
        self._started = True

    def _received(self) -> list[Batch] | None:
        """The worker's batches; None if it has ended, or was too slow."""
        connection, limit = self._connection, self._loader.timeout or None
        assert connection is not None  # something was begun
        if not self._started:
            self.wait()
        try:
            # The worker ends after twice the time. The time that the worker took decides about a
            # record, whenever the parent reads the answer.
            patience = None if limit is None else 2.0 * limit
            if not clock.readable(connection, patience):
                self.end()
                return None
            seconds, batches = _answer(connection)
        except Exception:  # the connection's end, or half an answer
            self.end()
            return None
        if limit is not None and seconds > limit:
            return None
        return batches


def _answer(connection: Connection) -> tuple[float, list[Batch]]:
    """A worker's seconds and batches."""
    seconds, batches = connection.recv()
    return seconds, batches


def _read(
    records: RecordBatches | PersonBatches,
    connection: Connection,
    number: int,
    init: Callable[[int], None] | None,
    parent: int,
) -> None:
    """Run in a worker: read until the parent ends it, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Flower's would report the end of its process
    torch.set_num_threads(1)
    if init is not None:
        init(number)
    connection.send(None)
    while True:
        while not connection.poll(_ORPHAN):
            if os.getppid() != parent:
                return
        rows = connection.recv()
        began = clock.now()
        batches = records.__getitems__(rows)
        connection.send((clock.now() - began, batches))
