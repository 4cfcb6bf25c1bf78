"""Kinds of noise at one promise, side by side: a table, a pick, a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from fl_dp.accounting.noise_comparison import (
    WITHIN,
    NoisePrice,
    NoiseRequest,
    best_noise,
    error_after,
)
from fl_dp.app.pictures import COLOURS, PALE, new_picture, save_picture

_POINTS = 40
MIB = 2.0**20


@dataclass(frozen=True, kw_only=True)
class NoiseComparisonView:
    """Prices with everything that is shown of them.

    Attributes:
        wanted: The training.
        prices: As from `compare_noise`.
        size: Coordinates of the model.
    """

    wanted: NoiseRequest
    prices: tuple[NoisePrice, ...]
    size: int

    @property
    def pick(self) -> NoisePrice:
        """The noise to use."""
        return best_noise(self.prices)

    @property
    def least(self) -> NoisePrice:
        """The noise with the least error."""
        return min(self.prices, key=lambda price: price.error)

    @property
    def why(self) -> str:
        """The pick, and why it is."""
        pick, least, reference = self.pick, self.least, self.prices[0]
        text = f"Pick: {pick.name}"
        if pick is not least:
            text += f". It is simpler than {least.name}, and within {WITHIN - 1.0:.0%} of its error"
        elif pick is reference:
            text += ". Nothing that remembers noise has a smaller error here"
        else:
            text += f". It has {pick.error / reference.error:.3f} of the error of {reference.name}"
        if pick.remembered:
            text += (
                f". Who reads the server's memory can open the last {pick.remembered} rounds' sums "
                "beside the current one"
            )
        return text + "."

    @property
    def settings(self) -> str:
        """The settings of the pick."""
        pick = self.pick
        match pick.noise:
            case "spaced":
                return (
                    f"noise=spaced noise.separation={pick.separation} "
                    f"noise.bands={pick.bands} selection=public "
                    f"selection.participation_cap={pick.charged_rounds}"
                )
            case "cyclic":
                return f"noise=cyclic noise.groups={pick.groups} noise.bands={pick.bands}"
        if pick.sampling.visible:
            return f"selection=public selection.participation_cap={pick.charged_rounds}"
        return "selection=poisson"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        reference = self.prices[0].error
        return {
            "epsilon": self.wanted.epsilon,
            "delta": self.wanted.delta,
            "rounds": self.wanted.rounds,
            "num_clients": self.wanted.num_units,
            "cohort": self.wanted.cohort,
            "prices": [
                price.to_dict()
                | {"relative_error": price.error / reference, "memory_bytes": self._bytes(price)}
                for price in self.prices
            ],
            "pick": self.prices.index(self.pick),
            "why": self.why,
            "settings": self.settings,
        }

    def table(self) -> Table:
        """Return the prices as a table for the terminal."""
        wanted, reference = self.wanted, self.prices[0].error
        table = Table(
            Column("noise", min_width=13),
            Column("multi-\nplier", justify="right"),
            Column("error", justify="right"),
            Column("rela-\ntive", justify="right"),
            Column("noise kept\nin memory", justify="right"),
            "the promise rests on",
            title=(
                f"Noise for epsilon {wanted.epsilon:g}, delta {wanted.delta:.3g}: {wanted.rounds} "
                f"rounds, cohorts of {wanted.cohort:g} out of {wanted.num_units}"
            ),
            caption="error: root mean square of a coordinate of the model, in clipping norms",
        )
        for price in self.prices:
            kept = f"{price.remembered} rounds\n{self._bytes(price) / MIB:.3g} MiB"
            table.add_row(
                price.name,
                f"{price.noise_multiplier:.4f}",
                f"{price.error:.4g}",
                f"{price.error / reference:.3f}",
                kept if price.remembered else "-",
                price.promise,
                style="bold" if price is self.pick else None,
            )
        return table

    def draw(self, target: Path) -> bool:
        """Draw the errors, and how they grow over the rounds, as a PNG.

        Returns:
            Whether it was drawn: False when matplotlib is not installed.
        """
        made = new_picture((1.0, 1.2), size=(10.0, 3.8))
        if made is None:
            return False
        figure, (bars, growth) = made
        names = [price.name for price in self.prices]
        errors = [price.error for price in self.prices]
        inks = [COLOURS[0] if price is self.pick else PALE for price in self.prices]
        drawn = bars.barh(names[::-1], errors[::-1], color=inks[::-1])
        bars.bar_label(drawn, labels=[f"{each:.3g}" for each in errors[::-1]], padding=3)
        bars.margins(x=0.18)
        bars.set(xlabel="error of the model / clipping norm", title="Mean over rounds")
        rounds = sorted(
            {int(each) for each in np.geomspace(1, self.wanted.rounds, _POINTS).round()}
        )
        shown = [self.prices[0], *(p for p in self.prices[1:] if p.noise != "cyclic")]
        cyclic = [price for price in self.prices if price.noise == "cyclic"]
        if cyclic:
            shown.append(self.pick if self.pick in cyclic else min(cyclic, key=lambda p: p.error))
        for price, ink in zip(shown, COLOURS, strict=False):
            after = [error_after(price, self.wanted, each) for each in rounds]
            growth.loglog(rounds, after, color=ink, label=price.name)
        growth.set(
            xlabel="round",
            ylabel="error / clipping norm",
            title=f"After each round, epsilon {self.wanted.epsilon:g} in all",
        )
        save_picture(figure, target)
        return True

    def _bytes(self, price: NoisePrice) -> int:
        """Return what the noise that is kept takes, in float64."""
        return price.remembered * self.size * 8
