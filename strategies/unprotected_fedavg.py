"""Federated averaging without client-level privacy: for comparison, or clients with DP-SGD.

    >>> strategy = UnprotectedFedAvg(FedAvg(), selection=LawSelection(law))

Roster, rehearsal and selection are as in `DPFedAvg`: the difference is the price of privacy. With
a `record_plan`, clients protect their records themselves (`OpacusClient`); the server adds
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_dp.accounting import OwnRatesSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import RecordPlan
from fl_dp.updates import Compression

from .checkpoint import Checkpoint
from .companions import Companions
from .contributions import ContributionCheck
from .modes import UnprotectedMode
from .participations import Participations
from .preparation import TrainingRehearsal
from .round_loop import LoopOptions, RoundLoop
from .round_strategy import RoundStrategy
from .run_log import RunLog, log_record_promise
from .selection import Selection
from .server_optimizer import ServerOptimizer
from .unit_roster import UnitRoster

logger = logging.getLogger("flwr.fl_dp")


class UnprotectedLoop(RoundLoop):
    """Rounds of `UnprotectedFedAvg`."""

    def __init__(
        self, optimizer: ServerOptimizer, options: LoopOptions, companions: Companions
    ) -> None:
        """Prepare; `UnprotectedFedAvg` describes the options."""
        super().__init__(
            optimizer,
            options,
            companions=companions,
            roster=UnitRoster(timeout=options.roster_timeout),
            participations=Participations(),
            cohorts_are_visible=True,
            trained=None,
        )

    def open(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the cohort and write the messages. See `RoundLoop.open`."""
        draft = self._draft(server_round, arrays, config, grid)
        mode = UnprotectedMode(
            draft.layout,
            draft.origin,
            draft.instruction,
            weighted_by=self.optimizer.weight_key,
        )
        return self._ask_cohort(draft, mode, self.options.selection.select(draft.draw))

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the checkpoint's round. See `RoundLoop.resume`."""
        checkpoint.require_kind(ledger=False, clipping_norms=None)
        super().resume(checkpoint)


class UnprotectedFedAvg(RoundStrategy):
    """A Flower strategy that promises clients nothing: updates are averaged unclipped.

    Privacy: none for clients. With a `record_plan`, each record has the guarantee of its own
    client's DP-SGD, whatever the server does.
    """

    _weights_are_used = True

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        selection: Selection,
        weight_cap: float | None = None,
        window: int | None = None,
        roster_timeout: float = 60.0,
        rng: SecureRandom | None = None,
        after_round: Callable[[Checkpoint], None] | None = None,
        record_plan: RecordPlan | None = None,
        compression: Compression | None = None,
    ) -> None:
        """Put the rounds in front of `strategy`; arguments are as for `DPFedAvg`.

        `strategy` sees one mean per round, in which clients are weighted by its `weighted_by_key`;
        they apply a `weight_cap` themselves. `roster_timeout` is in seconds, for the first node
        and for a rehearsal's answers. `rng` draws coins alone. Clients that encode their updates
        (`compression`) all weigh the same.

        Raises:
            ValueError: If an option does not go with the record plan, or the selection is for
                buffers or has groups with their own budgets.
            TypeError: If the inner strategy can't work on a mean.
        """
        if isinstance(selection.sampling, BufferedSampling):
            raise ValueError(
                "a buffer is filled by answers that are clipped one by one: use DPFedBuff, or "
                "selection=PublicSelection(...)"
            )
        if isinstance(selection.sampling, OwnRatesSampling):
            raise ValueError(
                "each group's rate is found for its own budget, and without privacy there is "
                f"none: use a law with one rate, got {selection.sampling}"
            )
        options = LoopOptions(
            selection=selection,
            weight_cap=weight_cap,
            window=window,
            roster_timeout=roster_timeout,
            rng=rng if rng is not None else SecureRandom(),
            after_round=after_round,
            record_plan=record_plan,
            compression=compression if compression is not None else Compression(),
        )
        options.require_fit(None)
        super().__init__(strategy)
        words = " without privacy" if record_plan is None else ""
        log = RunLog(lambda: words)
        companions = Companions(
            log=log,
            preparation=TrainingRehearsal(
                plan=None, optimizer=self.optimizer, options=options, log=log
            ),
            contribution_check=ContributionCheck(None),
        )
        self.loop = UnprotectedLoop(self.optimizer, options, companions)

    def summary(self) -> None:
        """Log what is promised: nothing to clients, perhaps something to records."""
        logger.info("DP-FedAvg over %s:", type(self.optimizer.strategy).__name__)
        if self.record_plan is None:
            logger.warning("\t└── NO PRIVACY: updates are averaged unclipped")
        else:
            log_record_promise(self.record_plan, last=True)
