"""Numbers that clients report, as the modes read them: nothing a client writes can raise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flwr.app import MetricRecord, RecordDict

from fl_dp.documents import real_number

from ..roster import Unit
from ..selection import Observation


def numbers_of(content: RecordDict) -> dict[str, list[float]]:
    """Return every metric of a reply as a list of numbers."""
    records: Sequence[MetricRecord] = list(content.metric_records.values())
    return {
        str(name): [real_number(each) for each in (value if isinstance(value, list) else [value])]
        for record in records
        for name, value in record.items()
    }


def one_of(
    measured: Mapping[str, Sequence[float]], name: str, *, missing: float = math.nan
) -> float:
    """Return the metric of that name if the client reported one number under it."""
    values = measured.get(name, ())
    return values[0] if len(values) == 1 else missing


def observed(unit: Unit, server_round: int, norm: float, report: float) -> Observation:
    """Return what a reply said of a unit; a utility that is NaN was not reported."""
    return Observation(
        unit=unit,
        server_round=server_round,
        update_norm=norm,
        utility=None if math.isnan(report) else report,
    )
