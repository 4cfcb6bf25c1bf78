"""`fl-dp plan --compare`: kinds of the server's noise at one promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .console import doing, note, out, print_json, tell

if TYPE_CHECKING:
    from fl_dp.app.settings import Settings
    from fl_dp.commands.terminal.noise_comparison_view import NoiseComparisonView


def compared(
    settings: Settings, *, buffer_mib: float, cohort_seen: bool, available: float
) -> NoiseComparisonView:
    """Return the comparison for a training, and tell how it goes on.

    Raises:
        ValueError: If settings exclude each other, or no noise reaches the budget.
    """
    from fl_dp.accounting.noise_comparison import compare_noise
    from fl_dp.app.noise_choice import model_size
    from fl_dp.app.noise_comparison import wanted_noise
    from fl_dp.commands.terminal.noise_comparison_view import NoiseComparisonView

    size = model_size(settings)
    wanted = wanted_noise(
        settings,
        size=size,
        buffer_mib=buffer_mib,
        secret_cohorts=not cohort_seen,
        available=available,
    )
    with doing("comparing kinds of noise, some seconds each"):
        prices = compare_noise(wanted, progress=lambda what: note(f"calibrating {what}"))
    return NoiseComparisonView(wanted=wanted, prices=prices, size=size)


def show(view: NoiseComparisonView, *, as_json: bool, plot: Path | None) -> None:
    """Print a comparison."""
    if as_json:
        print_json(view.to_dict())
        return
    out.print(view.table())
    tell(view.why)
    tell(f"Write: {view.settings}")
    if plot is not None:
        out.print(f"Picture: {plot}", soft_wrap=True)
