"""What an app could do around its gate, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fl_dp.gate.isolation import Attempt

_SHOWN = 3  # of the places that an attempt got at


def isolation_table(attempts: Sequence[Attempt]) -> Table:
    """Return one row for each thing that an app could try.

    Args:
        attempts: What was tried, and what came of it.
    """
    table = Table("An app tries to", "Prevented", "It got at")
    for attempt in attempts:
        shown = list(attempt.successes[:_SHOWN])
        if len(attempt.successes) > _SHOWN:
            shown.append(f"and {len(attempt.successes) - _SHOWN} more")
        table.add_row(attempt.goal, "no" if shown else "yes", "\n".join(shown))
    return table
