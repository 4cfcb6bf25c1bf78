"""Settings of secure sums: who may be lost or collude, and how values travel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_dp.option_errors import OptionError

from .checks import tracked

if TYPE_CHECKING:
    from fl_dp.plan import SecureSum


@dataclass(kw_only=True)
class SecureSumSettings:
    """Secure sums of `privacy=distributed`; null means what suits the number of nodes.

    Attributes:
        least: Fewest nodes whose replies open a sum; null is 90 % of the nodes.
        colluding: Nodes that may tell the server what they added: of a sum, or with a roster of all
            nodes. Null: 1 up to 10 nodes, 2 up to 20, 5 up to 200, else 10.
        committee: Members that hold shares of every client's seeds; null is all nodes up to 20,
            else 40, and 60 from 500 on.
        threshold: Members that open a sum together; null is 80 % of the committee, or more where
            many may collude.
        degree: Neighbours that a client shares masks with, even. Null: all up to 64 nodes, 20 up to
            200, else 40; twice as many if over 10 % may drop out.
        bits: Bits of each summed coordinate; null is 16, or 20 where needed. With too few, sums are
            rotated and cut.
        element_cap: Largest entry of one node's sum, in clipping norms. Null: what its clients can
            reach, or a quarter to save bits.
        cross_check: Members first agree on who replied, in one more exchange; then a lying server
            opens no sum below `least`.
        roster: Absolute file with all nodes' identities, as in `dp-secagg-roster`. Null: the
            promise needs a server that follows the protocol.
        reply_after: Seconds after which every node answers, at least 4, so that time shows no coin.
            Required where nodes flip coins; null: as soon as ready.
        max_parameters: Most parameters of a model: the accounting's own error is computed for them.
    """

    least: int | None = tracked(None)
    colluding: int | None = tracked(None)
    committee: int | None = tracked(None)
    threshold: int | None = tracked(None)
    degree: int | None = tracked(None)
    bits: int | None = tracked(None)
    element_cap: float | None = tracked(None)
    cross_check: bool = tracked(False)
    roster: str | None = None
    reply_after: float | None = None
    max_parameters: int = tracked(10_000_000)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.roster is not None and not Path(self.roster).is_absolute():
            raise OptionError(
                f"secure_sum.roster must be absolute, got '{self.roster}': a ServerApp does "
                "not run where you called Flower from"
            )

    @property
    def options(self) -> SecureSum:
        """The options in the form that a plan takes.

        Raises:
            ValueError: If a number is out of range.
        """
        from fl_dp.plan import SecureSum  # with SciPy, which no client's settings need

        return SecureSum(**asdict(self) | {"roster": self.roster is not None})
