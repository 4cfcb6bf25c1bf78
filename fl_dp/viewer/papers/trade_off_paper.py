"""Trade-off curve of a run's promise, as numbers and a picture."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fl_dp.accounting.trade_off import epsilon_delta_trade_off
from fl_dp.app.pictures import COLOURS, PALE, new_picture, save_picture
from fl_dp.terminal.sheets import write_sheet

from .facts import Facts

_LEAST, _POINTS = 1e-6, 241


def write_trade_off(facts: Facts, target: Path) -> list[Path]:
    """Write false-negative against false-positive rates, and draw them if matplotlib is installed.

    A false positive says of a unit that did not take part that it did; a false negative is the
    other error. No adversary of the promise has both rates below the curve.

    `target` is the CSV; the picture has its name with `.png`. The written files are returned.

    Raises:
        ValueError: If the run promises nothing finite.
        OSError: If it can't be written.
    """
    statement = facts.promise
    if facts.epsilon is None:
        raise ValueError("no finite epsilon is known of this run, so there is no curve")
    allowed = epsilon_delta_trade_off(statement.best_epsilon, statement.delta)
    curve = facts.trade_off
    rates = np.concatenate([[0.0], np.geomspace(_LEAST, 1.0, _POINTS)])
    by_pair = 1.0 - allowed(rates)
    # Both hold, so the larger of the two false-negative rates does.
    by_all = by_pair
    if curve is not None:
        by_all = np.maximum(by_pair, 1.0 - curve(rates))
    rows = []
    for rate, *bounds in zip(rates, by_all, by_pair, strict=True):
        # Rounded down: a lower bound stays one.
        texts = [f"{math.floor(1e9 * bound) / 1e9:.9f}" for bound in bounds]
        rows.append([repr(float(rate)), *texts])
    headings = ("false_positive_rate", "false_negative_rate", "by_epsilon_delta_alone")
    write_sheet(target, headings, rows)
    picture = new_picture(size=(5.0, 4.4))
    if picture is None:
        return [target]
    figure, (axes,) = picture
    if curve is not None:
        axes.plot(rates, by_all, color=COLOURS[0], label="privacy-loss distribution")
    axes.plot(rates, by_pair, color=COLOURS[1], linestyle="--", label="epsilon and delta alone")
    axes.plot([0, 1], [1, 0], color=PALE, linewidth=1, linestyle=":", label="guessing")
    axes.set(
        xlabel="false-positive rate",
        ylabel="false-negative rate",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"No attack lies below\n{facts.guarantee}",
    )
    axes.title.set_fontsize(9)
    path = target.with_suffix(".png")
    save_picture(figure, path)
    return [target, path]
