"""Checkpoint of a training: released models and what was made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fl_dp.ledger import LedgerAnchor


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State from which a training continues in a new process. Nothing in it is secret.

    Attributes:
        server_round: The last released round.
        model: Its model.
        optimizer: The server optimizer's state, by name.
        clipping_norms: Those of the next round.
        ledger: The ledger's anchor at that time; None without privacy.
    """

    server_round: int
    model: ArrayRecord
    optimizer: dict[str, NDArray[Any]]
    clipping_norms: tuple[float, ...] | None = None
    ledger: LedgerAnchor | None = None

    def require_kind(self, *, ledger: bool, clipping_norms: tuple[float, ...] | None) -> None:
        """Check that the training to continue is of the same kind.

        Raises:
            ValueError: If not.
        """
        if (self.ledger is not None) != ledger:
            raise ValueError(
                "a training with a ledger goes on from a checkpoint with one, and one without "
                "privacy from one without: start anew"
            )
        before, now = self.clipping_norms, clipping_norms
        if (before is None) != (now is None) or len(before or ()) != len(now or ()):
            raise ValueError(
                f"the checkpoint is of a training with clipping norms {before}, and this one has "
                f"{now}"
            )
