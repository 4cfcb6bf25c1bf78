"""Releases of the next answers, whoever gives them: buffers as in FedBuff, with noise.

Reference: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.option_errors import OptionError

from .plan import require_capped, require_public_roster
from .server_noise import ServerNoisePlan


@dataclass(frozen=True, kw_only=True)
class BufferedPlan(ServerNoisePlan):
    """A buffer that is released, with noise at the server, whenever it is full.

    Privacy: as of `CentralPlan`, for one client, against who sees who took part. When an answer
    arrives was taken not to depend on data.

    Attributes:
        sampling: The buffer's size.
        participation_cap: Largest number of buffers that a client is asked for.
        Others: See `ServerNoisePlan`.
    """

    kind: ClassVar[str] = "buffered"

    sampling: BufferedSampling
    participation_cap: int | None = None

    def check(self) -> None:
        """Refuse a cap at which clients can't fill the buffers."""
        require_public_roster(self, "a cohort that is seen")
        require_capped(self, self.participation_cap)
        cap, needed = self.participation_cap, self.rounds * self.expected_cohort
        if cap is not None and cap * self.num_clients < needed:
            raise OptionError(
                f"{self.num_clients} clients that are asked at most participation_cap={cap} "
                f"times each can't fill {self.rounds} buffers of {self.expected_cohort:g}: allow "
                f"at least {-(-needed // self.num_clients):.0f}, and some more for answers that "
                "never come"
            )
