"""The queue of trainings that `fl-dp run` runs: one by one, or several side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rich.console import Console

from fl_dp.files import HeldElsewhere, held_alone

from .console import doing, fail, warn

if TYPE_CHECKING:
    from fl_dp.app.local.launch import Engine
    from fl_dp.terminal.progress import CellsLeft, OnRound, ProgressLines
    from fl_dp.terminal.results import Result

    from .jobs import Job, Jobs


class _Stopped(Exception):
    """Another training failed, or somebody stopped them all."""


class Queue:
    """Trainings that run one after the other, or `jobs.side_by_side` at a time.

    Each of these slots has an engine of its own, which gets its part of the machine.
    """

    def __init__(
        self,
        jobs: Jobs,
        console: Console,
        *,
        prepare: Callable[[Jobs], Jobs] | None = None,
    ) -> None:
        """Set the trainings.

        `prepare` makes the slow checks while engines start; None: they were made before.
        """
        from fl_dp.terminal.progress import CellsLeft, ProgressLines

        from .outcomes import results_so_far

        self._jobs = jobs
        self._console = console
        self._prepare, self._prepared = prepare, False
        pending = [job.variant for job in jobs.trainings if not job.finished]
        self._slots = min(jobs.side_by_side, len(pending))
        self._time_left: CellsLeft = CellsLeft(pending, at_once=max(1, self._slots))
        self._lines: ProgressLines = ProgressLines(console)
        self._free: SimpleQueue[Mapping[str, Engine]] = SimpleQueue()
        self._stopping = threading.Event()
        self._done: set[str] = set()
        self._results = results_so_far(jobs)

    def work_off(self) -> list[Result]:
        """Run what is not finished, and return the result of each training.

        Raises:
            typer.Exit: If a training failed, or somebody stopped them. What happened is printed,
                and the statements of begun trainings are written.
        """
        from fl_dp.app.local.launch import LaunchError

        try:
            with ExitStack() as stack:
                self._start(stack)
                if self._prepare is not None:
                    self._jobs = self._prepare(self._jobs)
                self._prepared = True
                if self._jobs.sweep is not None:
                    self._jobs.sweep.mkdir(parents=True, exist_ok=True)
                    lock = self._jobs.sweep / "sweep.lock"
                    stack.enter_context(held_alone(lock, f"works off {self._jobs.sweep}"))
                self._jobs.note()
                from .job_accounts import enter_together  # with the ledger: engines start by now

                enter_together(self._jobs)
                if self._slots > 1:
                    stack.enter_context(self._lines)
                self._train_all()
        # Only now, when all that Flower had started has stopped, does nobody else write.
        except LaunchError as error:
            self._leave_valid()
            fail(str(error), status=1)
        except KeyboardInterrupt:
            if not self._prepared:
                raise
            if len(self._done) < len(self._jobs.trainings):
                begun = self._leave_valid() or self._jobs.sweep is not None
                goes_on = f"; `fl-dp run resume={self._jobs.path}` continues it" if begun else ""
                fail(f"stopped; what was reserved stays spent{goes_on}", status=130)
        return [self._results[job.path.name] for job in self._jobs.trainings]

    def _start(self, stack: ExitStack) -> None:
        from fl_dp.app.local.devices import Machine
        from fl_dp.app.local.engines import engine

        if not self._slots:
            return
        share = Machine.here().shared_by(self._slots) if self._slots > 1 else None
        pending = [job for job in self._jobs.trainings if not job.finished]
        names = list(dict.fromkeys(job.settings.simulation.engine for job in pending))
        with doing("starting the engine"):
            for _ in range(self._slots):
                self._free.put(
                    {name: stack.enter_context(engine(name, machine=share)) for name in names}
                )

    def _train_all(self) -> None:
        with ThreadPoolExecutor(max(1, self._slots)) as pool:
            begun = {
                pool.submit(self._train, number, job): job
                for number, job in enumerate(self._jobs.trainings, 1)
            }
            try:
                for future in as_completed(begun):
                    self._take(begun[future], future)
            except BaseException:
                self._stopping.set()
                for future in begun:
                    future.cancel()
                raise

    def _train(self, number: int, job: Job) -> float | None:
        """Run one training to its end, and return the seconds that all of it took."""
        from fl_dp.app.local.launch import run_and_follow

        count = len(self._jobs.trainings)
        position = f"[{number}/{count}] " if count > 1 else ""
        if job.finished:
            self._console.print(f"{position}{job.title}: finished before", markup=False)
            return None
        self._go_on()
        free = self._free.get()
        try:
            begun = time.monotonic()
            with self._progress(
                f"{position}{self._time_left.in_words()}{job.title}", job
            ) as on_round:
                engine = free[job.settings.simulation.engine]
                run_and_follow(engine, job.settings, job.sent, job.folder, on_round, self._go_on)
            seconds = time.monotonic() - begun
        except BaseException:
            self._stopping.set()  # before this thread takes the next training
            raise
        finally:
            self._free.put(free)
        self._time_left.took(job.variant, seconds)
        return None if job.resumed else seconds

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _progress(self, title: str, job: Job) -> AbstractContextManager[OnRound]:
        from fl_dp.terminal.progress import progress_line

        rounds = job.settings.rounds
        lines = job.folder.read_metrics() if job.resumed else []
        done = int(lines[-1]["round"]) if lines else 0
        if self._slots > 1:
            return self._lines.line(title, rounds=rounds, done=done)
        return progress_line(self._console, title, rounds=rounds, done=done)

    def _take(self, job: Job, future: Future[float | None]) -> None:
        """Read the result of a training, and write the results so far."""
        from fl_dp.terminal.results import write_results

        from .outcomes import result_of

        name, seconds = job.path.name, future.result()
        if job.finished and name in self._results:
            seconds = self._results[name].seconds
        self._results[name] = result_of(job, seconds)
        self._done.add(name)
        if self._jobs.sweep is None:
            return
        names = [job.path.name for job in self._jobs.trainings]
        results = [self._results[name] for name in names if name in self._results]
        write_results(results, self._jobs.results)

    def _leave_valid(self) -> bool:
        """Write the statements of trainings that could not write them themselves."""
        from fl_dp.ledger import LedgerCorrupted

        begun = []
        for job in self._jobs.trainings:
            if job.path.name not in self._done and job.folder.config.is_file():
                begun.append(job)
        for job in begun:
            try:
                with job.folder.held():
                    job.folder.write_statement_of_ledger()
            except HeldElsewhere:
                continue  # the process that trains there writes it
            except (OSError, ValueError, LedgerCorrupted) as error:
                warn(f"no privacy statement could be written: {error}")
        return bool(begun)
