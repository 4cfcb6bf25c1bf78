"""DP-FedBuff: private releases of the next answers.

    >>> plan = BufferedPlan(..., sampling=BufferedSampling(cohort=20)).calibrated()
    >>> strategy = DPFedBuff(FedAvg(), plan=plan, ledger=ledger)

Reference: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation".
"""

from __future__ import annotations

from fl_dp.plan import BufferedPlan

from .buffered_loop import BufferedLoop
from .dp_fedavg import DPFedAvg


class DPFedBuff(DPFedAvg):
    """A Flower strategy whose every released model is private, without waiting for slow clients.

    Each release is made of the next answers, as many as the selection's buffer holds. A slow
    client's answer enters a later release, clipped there, with a public weight for its age.

    The plan has a `BufferedSampling`, the selection is a `BufferedSelection`; other arguments are
    as for `DPFedAvg`.

    Privacy: as `DPFedAvg` with visible cohorts. A unit is in each release at most once, in no two
    closer than the plan's separation, and asked at most as often as its cap says. The time at
    which an answer arrives is assumed not to depend on data.
    """

    loop_class = BufferedLoop
    plan_class = BufferedPlan
