"""This project's own strategies; those of fl-dp are `fl_dp.strategies`."""

from .logging_dp_fedavg import LoggingDPFedAvg
from .region_selection import RegionSelection

__all__ = ["LoggingDPFedAvg", "RegionSelection"]
