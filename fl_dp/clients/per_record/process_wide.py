"""Changes of the whole process that last as long as any thread's block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar


class ProcessWide(ABC):
    """A block with a change: the first of all threads' blocks makes it, the last one undoes it."""

    _lock = threading.Lock()
    _blocks: ClassVar[int] = 0  # of each subclass
    _undo: ClassVar[Callable[[], None]]

    @staticmethod
    @abstractmethod
    def change() -> Callable[[], None]:
        """Make the change, and return what undoes it."""

    def __enter__(self) -> None:
        """Begin a block."""
        kind = type(self)
        with self._lock:
            if not kind._blocks:
                kind._undo = self.change()
            kind._blocks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End a block."""
        with self._lock:
            type(self)._blocks -= 1
            if not self._blocks:
                type(self)._undo()
