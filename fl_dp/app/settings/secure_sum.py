"""Settings of secure sums: who may be lost or collude, and how values travel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_dp.option_errors import OptionError

from .checks import told

if TYPE_CHECKING:
    from fl_dp.plan import SecureSum


@dataclass(kw_only=True)
class SecureSumSettings:
    """Secure sums of `privacy=distributed`; null means what suits the number of nodes.

    Attributes:
        least: Fewest repliers that a sum is opened with; null means 90 % of the nodes.
        colluding: Nodes that may tell the server what they added; null means 1 up to 10 nodes, 2
            up to 20, 5 up to 200 and 10 above: of a sum, and with a roster of all nodes.
        committee: Members who hold shares of every client's seeds; null means all nodes up to 20,
            else 40, and 60 from 500 on.
        threshold: Members who can open a sum together; null means 80 % of the committee, or more
            where many may collude.
        degree: Neighbours that a client shares masks with, even; null means everybody up to 64
            nodes, else 20 up to 200 and 40 above, twice as many if over 10 % may drop out.
        bits: Each coordinate is summed modulo 2^bits; null means 16, or 20 where needed. Fewer are
            fewer bytes, and where they are too few for all that clients can reach, sums are
            rotated, and then cut.
        element_cap: Largest entry of one node's sum, in clipping norms; null means what its
            clients can reach, or a quarter of it where that saves bits.
        cross_check: Members agree on who replied before they open: one more exchange, and a lying
            server opens no sum below `least`.
        roster: Absolute file with the identities of all nodes, as their owners have it in
            `dp-secagg-roster`; null means none, and the promise is against a server that follows
            the protocol.
        reply_after: Seconds after which every node answers, so that its time does not show its
            coins, at least 4; needed where nodes flip coins (`selection.coins_at_nodes=true`, and
            always of records), unless `selection.sampling_rate=1`; null means as soon as it is
            ready.
        max_parameters: Most parameters of the model, which the accounting's own error is for.
    """

    least: int | None = told(None)
    colluding: int | None = told(None)
    committee: int | None = told(None)
    threshold: int | None = told(None)
    degree: int | None = told(None)
    bits: int | None = told(None)
    element_cap: float | None = told(None)
    cross_check: bool = told(False)
    roster: str | None = None
    reply_after: float | None = None
    max_parameters: int = told(10_000_000)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.roster is not None and not Path(self.roster).is_absolute():
            raise OptionError(
                f"secure_sum.roster must be absolute, got '{self.roster}': a ServerApp does "
                "not run where you called Flower from"
            )

    @property
    def options(self) -> SecureSum:
        """What a plan is made of.

        Raises:
            ValueError: If a number is out of range.
        """
        from fl_dp.plan import SecureSum  # with SciPy, which no client's settings need

        return SecureSum(**asdict(self) | {"roster": self.roster is not None})
