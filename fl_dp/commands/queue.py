"""The queue of trainings that `fl-dp run` works off: in turn, or several side by side."""

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
    from fl_dp.commands.terminal.progress import CellsLeft, OnRound, ProgressLines
    from fl_dp.commands.terminal.summary import RunSummary

    from .jobs import Job, Jobs


class _Stopped(Exception):
    """Another training failed, or somebody stopped them all."""


class Queue:
    """Trainings that are done one after the other, or as many at a time as `jobs.side_by_side`.

    Each place has an engine of its own, which is given its part of the machine.
    """

    def __init__(
        self,
        jobs: Jobs,
        console: Console,
        *,
        prepare: Callable[[Jobs], Jobs] | None = None,
    ) -> None:
        """Take what is to be done.

        Args:
            jobs: The trainings.
            console: Where progress is shown.
            prepare: Checks what takes time, while engines start; None: that is done.
        """
        from fl_dp.commands.terminal.progress import CellsLeft, ProgressLines

        from .outcomes import results_so_far

        self._jobs = jobs
        self._console = console
        self._prepare, self._prepared = prepare, False
        self._places = min(jobs.side_by_side, sum(not job.finished for job in jobs.each))
        self._left: CellsLeft = CellsLeft(
            [job.variant for job in jobs.each if not job.finished], at_once=max(1, self._places)
        )
        self._lines: ProgressLines = ProgressLines(console)
        self._free: SimpleQueue[Mapping[str, Engine]] = SimpleQueue()
        self._stopping = threading.Event()
        self._done: dict[str, RunSummary] = {}
        self._results = results_so_far(jobs)

    def work_off(self) -> list[RunSummary]:
        """Do what is not finished, and return what each training came to.

        Raises:
            typer.Exit: If a training failed, or somebody stopped them; what happened is said, and
                the statements of what was begun are written.
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
                if self._places > 1:
                    stack.enter_context(self._lines)
                self._train_all()
        # Only now, when what Flower had started is stopped, does nobody write beside us.
        except LaunchError as error:
            self._leave_valid()
            fail(str(error), status=1)
        except KeyboardInterrupt:
            if not self._prepared:
                raise
            if len(self._done) < len(self._jobs.each):
                begun = self._leave_valid() or self._jobs.sweep is not None
                goes_on = f"; `fl-dp run resume={self._jobs.path}` continues it" if begun else ""
                fail(f"stopped; what was reserved stays spent{goes_on}", status=130)
        return [self._done[job.path.name] for job in self._jobs.each]

    def _start(self, stack: ExitStack) -> None:
        from fl_dp.app.local.devices import Machine
        from fl_dp.app.local.engines import engine

        if not self._places:
            return
        share = Machine.here().shared_by(self._places) if self._places > 1 else None
        each = (job.settings.simulation.engine for job in self._jobs.each if not job.finished)
        names = list(dict.fromkeys(each))
        with doing("starting the engine"):
            for _ in range(self._places):
                self._free.put(
                    {name: stack.enter_context(engine(name, machine=share)) for name in names}
                )

    def _train_all(self) -> None:
        with ThreadPoolExecutor(max(1, self._places)) as pool:
            begun = {
                pool.submit(self._train, number, job): job
                for number, job in enumerate(self._jobs.each, 1)
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

        place = f"[{number}/{len(self._jobs.each)}] " if len(self._jobs.each) > 1 else ""
        if job.finished:
            self._console.print(f"{place}{job.title}: finished before", markup=False)
            return None
        self._go_on()
        free = self._free.get()
        try:
            begun = time.monotonic()
            with self._progress(f"{place}{self._left.in_words()}{job.title}", job) as on_round:
                engine = free[job.settings.simulation.engine]
                run_and_follow(engine, job.settings, job.sent, job.folder, on_round, self._go_on)
            seconds = time.monotonic() - begun
        except BaseException:
            self._stopping.set()  # here, before this thread takes the next training
            raise
        finally:
            self._free.put(free)
        self._left.took(job.variant, seconds)
        return None if job.resumed else seconds

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _progress(self, title: str, job: Job) -> AbstractContextManager[OnRound]:
        from fl_dp.commands.terminal.progress import progress_line

        rounds, budget = job.settings.rounds, job.budget
        lines = job.folder.read_metrics() if job.resumed else []
        done = int(lines[-1]["round"]) if lines else 0
        if self._places > 1:
            return self._lines.line(title, rounds=rounds, budget=budget, done=done)
        return progress_line(self._console, title, rounds=rounds, budget=budget, done=done)

    def _take(self, job: Job, future: Future[float | None]) -> None:
        """Read what a training came to, and write the results so far."""
        from fl_dp.commands.terminal.results import write_results

        from .outcomes import result_of, summary_of

        name, seconds = job.path.name, future.result()
        self._done[name] = summary_of(job)
        if self._jobs.sweep is None:
            return
        if not job.finished or name not in self._results:
            self._results[name] = result_of(job, seconds)
        names = [each.path.name for each in self._jobs.each]
        known = [self._results[name] for name in names if name in self._results]
        write_results(known, self._jobs.results)

    def _leave_valid(self) -> bool:
        """Write the statements of trainings that could not do so themselves.

        Returns:
            Whether any had begun.
        """
        from fl_dp.ledger import LedgerCorrupted

        begun = [
            job
            for job in self._jobs.each
            if job.path.name not in self._done and job.folder.config.is_file()
        ]
        for job in begun:
            try:
                with job.folder.held():
                    job.folder.write_statement_of_ledger()
            except HeldElsewhere:
                continue  # who trains there writes it
            except (OSError, ValueError, LedgerCorrupted) as error:
                warn(f"no privacy statement could be written: {error}")
        return bool(begun)
