"""Private releases of the next answers, each charged before it is opened.

reserve -> [ask in the ledger -> push -> answer -> fold in the ledger -> clip -> add]* -> noise
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fl_dp.updates.arrays import array_bytes

from .buffer import Buffer, OpenBuffer
from .companions import Optimizer
from .compatibility import require_trainable
from .message_exchange import Federation
from .modes import BufferedMode
from .private_loop import PrivateLoop
from .round_loop import LoopOptions
from .selection import BufferedSelection


class BufferedLoop(PrivateLoop):
    """Releases of the next answers; requests outlast a release."""

    buffers = True

    def __init__(self, optimizer: Optimizer, options: LoopOptions, **private: Any) -> None:
        """Prepare.

        Raises:
            TypeError: If the selection is no `BufferedSelection`.
        """
        super().__init__(optimizer, options, **private)
        selection = options.selection
        if not isinstance(selection, BufferedSelection):
            raise TypeError(
                "a buffer asks units one by one: pass selection=BufferedSelection(...), got "
                f"{type(selection).__name__}"
            )
        self._buffer = Buffer(
            selection=selection,
            ledger=self.ledger,
            participations=self._participations,
            progress=self._progress,
            log=self._log,
        )

    def open(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Charge a release and open its buffer; `_replies` sends requests when there is room.

        Raises:
            PrivacyBudgetExhausted: If the release exceeds the budget, or nobody is left to ask or
                to wait for.
        """
        plan = self.plan
        draft = self._draft(
            server_round, arrays, config, grid, num_units=plan.num_clients, ledger=self.ledger
        )
        require_trainable(plan, draft.layout, len(draft.roster))
        if not self._buffer.under_way:
            self._participations.require_some_left(draft.roster, server_round=server_round)
        self._reservation = self.ledger.reserve(round=server_round, index=draft.draw.index)
        assert self._reservation.index is not None  # of every round
        mode = self.make_mode(self._reservation, draft.layout, draft.origin, draft.instruction)
        assert isinstance(mode, BufferedMode)  # of such a plan
        mode.open({}, draft.ask)
        self._open = OpenBuffer(
            draft=draft,
            mode=mode,
            cohort={},
            index=self._reservation.index,
            selection=self._buffer.selection,
        )
        self.bytes_down = array_bytes(draft.sent)
        self.bytes_up = mode.reply_bytes(draft.draw.model)
        return ()

    def _replies(self, federation: Federation, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the answers that fill the open buffer."""
        assert isinstance(self._open, OpenBuffer)  # configured just before
        return self._buffer.fill(federation.grid, self._open, timeout=federation.timeout)

    @property
    def _lifetime(self) -> float:
        """See `RoundLoop._lifetime`."""
        return self._buffer.lifetime(self._timeout)
