"""Flower's grid on a Ray cluster: workers on all its machines answer for simulated nodes.

The server is one process and holds nodes' states; a worker answers one message at a time. If a
worker is lost, so is its message: that node contributes nothing to the round, which is charged as
planned. Another worker starts where there is room.
"""

from __future__ import annotations

import importlib
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from fl_dp.app.in_process import InProcessGrid, answer_of
from fl_dp.clients.owner.node_privacy import simulated_nodes
from fl_dp.files import private_folder
from fl_dp.protocol.flower_compat import ErrorCode, be_in_a_run

from .cluster import code_digest, join, members, ray
from .devices import WORKER_MEMORY

_FIRST_WORKER = 600.0  # seconds: it loads the data
_OTHER_WORKERS = 30.0  # after the first one; later ones join a running training
_WITHOUT_WORKER = 45.0  # Ray ends a process 60 s after its head is gone, without a word on runs
_LOOK = 0.05

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every worker of a run needs.

    Attributes:
        client: Module with the `ClientApp`.
        settings: The run's settings, JSON; the worker loads their data.
        code: Digest of the server's fl-dp.
    """

    client: str
    run_id: int
    settings: str
    code: str


class Worker:
    """Answers messages in its own process, on a machine that Ray chooses."""

    def __init__(self, work: Work) -> None:
        """Store the work; what can fail is in `ready`."""
        self._work = work

    def ready(self, shared: Sequence[str]) -> tuple[str, str | None]:
        """Load code and data; return this machine's address, and an error or None.

        Every machine must see the files `shared`.
        """
        from fl_dp.app.settings import Settings
        from fl_dp.app.workload import check_data

        host = str(ray().util.get_node_ip_address())
        if (code := code_digest()) != self._work.code:
            return host, (
                f"its fl-dp has other code than the server's (SHA-256 {code[:8]}, not "
                f"{self._work.code[:8]}): install the same on every machine"
            )
        try:
            be_in_a_run(self._work.run_id)
            self._app = importlib.import_module(self._work.client).app
            check_data(Settings.from_json(self._work.settings))
        except Exception as error:
            return host, f"{type(error).__name__}: {error}"
        return host, self.lacks(shared)

    def lacks(self, shared: Sequence[str]) -> str | None:
        """An error if this machine does not see a file, or None."""
        unseen = next((path for path in shared if not Path(path).is_file()), None)
        if unseen is None:
            return None
        return (
            f"it does not see {Path(unseen).parent}, where simulated nodes keep their ledgers: "
            "share that folder among all machines, or write privacy=central"
        )

    def answer(self, message: Message, context: Context) -> tuple[RecordDict, Message]:
        """The node's state afterwards, and its reply."""
        with simulated_nodes():
            reply = answer_of(self._app, message, context)
        return context.state, reply


class ClusterGrid(InProcessGrid):
    """Nodes whose messages wait for a free worker of the cluster."""

    answers_in_turn = False

    def __init__(
        self,
        node_configs: Sequence[Mapping[str, Any]],
        *,
        address: str,
        client: str,
        settings: str,
        num_workers: int | None,
        num_gpus: float,
        run_id: int,
        run_config: Mapping[str, Any],
    ) -> None:
        """Join a cluster and start workers; nodes and run are as in `InProcessGrid`.

        Without `num_workers` there is one per CPU, as memory and GPUs allow. `num_gpus` is each
        one's share of a GPU.

        Raises:
            ValueError: It can't be joined, no worker starts, or one lacks code or data.
        """
        super().__init__(_never_called, node_configs, run_id=run_id, run_config=run_config)
        join(address)
        self._ray, self._address = ray(), address
        self._make: Any = self._ray.remote(
            num_cpus=1, num_gpus=num_gpus, memory=WORKER_MEMORY, scheduling_strategy="SPREAD"
        )(Worker)
        self._work = Work(client=client, run_id=run_id, settings=settings, code=code_digest())
        self._shared: list[Path] = []
        self._hosts: dict[Any, str] = {}  # of each worker that has started
        self._coming: dict[Any, Any] = {}
        self._idle: deque[Any] = deque()
        self._waiting: deque[str] = deque()
        self._running: dict[Any, tuple[str, Any, Any]] = {}
        self._done: dict[str, Any] = {}
        self._alone_since: float | None = None
        self._logged: str | None = None
        room = sum(member.worker_slots(num_gpus) for member in members())
        for _ in range(min(num_workers or room, room)):
            self._start_worker()
        self._wait_for_workers()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages for the workers; return their ids."""
        self._log_workers()
        ids = list(super().push_messages(messages))
        self._waiting.extend(ids)
        self._look(0.0)
        return ids

    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """One reply that has come, or nothing; others stay in the cluster.

        Raises:
            RuntimeError: The cluster has had no worker for a while.
        """
        self._look(_LOOK)
        for message_id in message_ids:
            if message_id in self._done:
                reply = self._done.pop(message_id)
                if not isinstance(reply, Message):
                    reply = self._fetched(reply)
                return [reply]
        return []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies that come within the time."""
        missing, replies = list(self.push_messages(messages)), []
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        while missing and time.monotonic() < deadline:
            for reply in self.replies_to(missing):
                missing.remove(reply.metadata.reply_to_message_id)
                replies.append(reply)
        return replies

    def require_shared(self, folders: Iterable[Path]) -> None:
        """Check that every machine sees these folders; later workers are checked at their start.

        Raises:
            ValueError: A machine does not see one.
        """
        for folder in folders:
            private_folder(folder)
            mark = folder / f".every-machine-sees-{secrets.token_hex(8)}"
            mark.touch()
            self._shared.append(mark)
        for coming in list(self._coming.values()):  # they do not know these files
            self._ray.kill(coming)
        count, self._coming = len(self._coming), {}
        for _ in range(count):
            self._start_worker()
        paths = [str(mark) for mark in self._shared]
        for worker, host in self._hosts.items():
            error = self._ray.get(worker.lacks.remote(paths))
            if error is not None:
                raise ValueError(f"{host}: {error}")

    def close(self) -> None:
        """Leave the cluster, which ends the workers."""
        for mark in self._shared:
            mark.unlink(missing_ok=True)
        self._ray.shutdown()

    def _start_worker(self) -> None:
        worker = self._make.remote(self._work)
        self._coming[worker.ready.remote([str(mark) for mark in self._shared])] = worker

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + _FIRST_WORKER
        while self._coming and time.monotonic() < deadline:
            ready, _ = self._ray.wait(list(self._coming), timeout=1.0)
            for started in ready:
                if (error := self._welcome(started)) is not None:
                    raise ValueError(error)
                deadline = min(deadline, time.monotonic() + _OTHER_WORKERS)
        if not self._hosts:
            raise ValueError(
                f"the Ray cluster {self._address} has no room for a worker: each needs a CPU, "
                f"{WORKER_MEMORY / 1e9:g} GB and simulation.num_gpus"
            )

    def _welcome(self, ready: Any) -> str | None:
        """Let a started worker wait for messages, or return its error."""
        worker = self._coming.pop(ready)
        try:
            host, problem = self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            host, problem = getattr(error, "ip", "a machine"), _last_line(error)
        if problem is not None:
            return f"{host}: {problem}"
        self._hosts[worker] = host
        self._idle.append(worker)
        return None

    def _look(self, seconds: float) -> None:
        """Handle what has happened; hand messages to idle workers."""
        self._hand_out()
        expected = [*self._running, *self._coming]
        if expected and self._ray.wait(expected, timeout=seconds)[0]:
            ready, _ = self._ray.wait(expected, num_returns=len(expected), timeout=0.0)
            for done in ready:
                if done in self._running:
                    self._take(done)
                elif (error := self._welcome(done)) is not None:
                    logger.warning("%s; that machine is not used", error)
            self._hand_out()
        self._require_a_worker()

    def _take(self, state: Any) -> None:
        """Store a node's state and a reference to its reply; replace a lost worker."""
        message_id, worker, reply = self._running.pop(state)
        message = self._asked.pop(message_id)
        try:
            self._contexts[message.metadata.dst_node_id].state = self._ray.get(state)
        except self._ray.exceptions.RayError as error:
            self._done[message_id] = Message(
                Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=type(error).__name__),
                reply_to=message,
            )
            self._lose(worker)
            return
        self._done[message_id] = reply
        self._idle.append(worker)

    def _lose(self, worker: Any) -> None:
        host = self._hosts.pop(worker)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker)  # it may still run where nobody can reach it
        remaining = len(self._hosts)
        logger.warning(
            "A worker on %s is lost, and what it was at; workers left: %d", host, remaining
        )
        self._start_worker()

    def _fetched(self, reply: Any) -> Message:
        fetched: Message = self._ray.get(reply)
        return fetched

    def _hand_out(self) -> None:
        while self._idle and self._waiting:
            message_id = self._waiting.popleft()
            message = self._asked[message_id]
            if time.time() > message.metadata.created_at + message.metadata.ttl:
                del self._asked[message_id]  # its time is over
                continue
            worker = self._idle.popleft()
            context = self._contexts[message.metadata.dst_node_id]
            state, reply = worker.answer.options(num_returns=2).remote(message, context)
            self._running[state] = (message_id, worker, reply)

    def _require_a_worker(self) -> None:
        if self._hosts:
            self._alone_since = None
            return
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since > _WITHOUT_WORKER:
            raise RuntimeError(
                f"the Ray cluster {self._address} has no worker any more; what was reserved stays "
                "spent, and `fl-dp run resume=FOLDER` continues when its machines are back"
            )

    def _log_workers(self) -> None:
        """Log where workers are, if that has changed."""
        counts = sorted(Counter(self._hosts.values()).items())
        line = ", ".join(f"{host} {count}" for host, count in counts)
        if line != self._logged:
            self._logged = line
            logger.info("Workers on the Ray cluster %s: %s", self._address, line or "none")


def _never_called(message: Message, context: Context) -> Message:
    raise AssertionError("workers answer")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        return lines[-1]
    return type(error).__name__
