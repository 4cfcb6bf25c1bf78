"""Releases of the next answers, from any clients: buffers as in FedBuff, with noise.

Reference: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.accounting.sampling import BufferedSampling

from .server_noise import ServerNoisePlan


@dataclass(frozen=True, kw_only=True)
class BufferedPlan(ServerNoisePlan):
    """A buffer released, with noise at the server, whenever it is full.

    Privacy: as of `CentralPlan`, for one client, against an adversary who sees the participants.
    The time at which an answer arrives is assumed not to depend on data.

    Attributes:
        sampling: The buffer's size, and the most buffers that a client is asked for.
        Others: See `ServerNoisePlan`.
    """

    kind: ClassVar[str] = "buffered"

    sampling: BufferedSampling

    @property
    def not_covered(self) -> tuple[str, ...]:
        """The time at which a client answers."""
        return (
            "when an answer arrives, and so which release it enters: that was taken not to depend "
            "on data. The server's operator sees it, and whoever watches the network may; pad "
            "training to a fixed time where it tells how many records a client has",
        )

    def check(self) -> None:
        """Refuse a cap at which clients can't fill the buffers."""
        self.sampling.require_filled(self.num_clients, self.rounds)
