"""An app's attempts to go around its gate, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fl_dp.gate.isolation import Attempt

_SHOWN = 3  # of the things that an attempt reached


def isolation_table(attempts: Sequence[Attempt]) -> Table:
    """Return one row for each attempt of an app."""
    table = Table("An app tries to", "Prevented", "It got at")
    for attempt in attempts:
        shown = list(attempt.successes[:_SHOWN])
        if len(attempt.successes) > _SHOWN:
            shown.append(f"and {len(attempt.successes) - _SHOWN} more")
        prevented = "no" if shown else "yes"
        table.add_row(attempt.goal, prevented, "\n".join(shown))
    return table
