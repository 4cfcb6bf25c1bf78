"""Kinds of noise in shares at one promise: who takes part in a round, its error and its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Column, Table

from fl_dp.accounting.noise_comparison import NoisePrice

from .noise_comparison_view import MIB, NoiseComparisonView

_ABOUT_TWO_POLLS = 0.5  # seconds of a round that pass anyway: the server looks four times a second
_A_SHORT_TRAINING = 600.0  # seconds of all rounds together that nobody saves at a price in accuracy


@dataclass(frozen=True, kw_only=True)
class SharedNoiseView(NoiseComparisonView):
    """Prices of `compare_shared_noise` with everything that is shown of them.

    Attributes:
        unit: `client` or `record`.
        nodes: Of a sum.
        seconds: This machine's, for the gradients of all records of one client; None: unknown.
    """

    unit: str
    nodes: int
    seconds: float | None

    @property
    def pick(self) -> NoisePrice:
        """Everybody where that is quick, or nobody knows; else the better of turns and coins."""
        everybody, *others = self.prices
        quick = max(_ABOUT_TWO_POLLS, _A_SHORT_TRAINING / self.wanted.rounds)
        if not others or self.seconds is None or self.seconds <= quick:
            return everybody
        return min(others, key=lambda price: price.error)

    @property
    def why(self) -> str:
        """The pick, and why it is."""
        pick, everybody = self.pick, self.prices[0]
        text = f"Pick: {pick.name}"
        if pick is everybody:
            text += ". No noise at the same promise and number of rounds leaves a smaller error"
            if self.seconds is not None:
                text += f"; a client's gradients take {self.seconds:.2g} s a round here"
            elif len(self.prices) > 1:
                text += f". Where a {self.unit} can't take part in every round, take the next line"
        else:
            text += (
                f". All {self.unit}s in every round would leave {everybody.error / pick.error:.2f} "
                f"of its error, and take a client {self.seconds or 0.0:.2g} s a round here"
            )
        if pick.remembered:
            text += (
                f". Who reads a node's file opens its share of the noise of {pick.remembered} "
                "rounds, as if it had colluded in them"
            )
        return text + "."

    @property
    def settings(self) -> str:
        """The settings of the pick."""
        rate = self.wanted.sampling_rate
        if self.pick is self.prices[0]:
            return "selection.sampling_rate=1 privacy.secure_sum.reply_after=null"
        if self.pick.remembered:
            return f"selection.sampling_rate={rate:.4g} noise=cyclic"
        return f"selection.sampling_rate={rate:.4g} privacy.secure_sum.reply_after=..."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        document = super().to_dict()
        for entry, price in zip(document["prices"], self.prices, strict=True):
            entry["share_of_gradients"] = self._share(price)
        return document | {"nodes": self.nodes, "seconds_of_all_gradients": self.seconds}

    def table(self) -> Table:
        """Return the prices as a table for the terminal."""
        wanted, reference = self.wanted, self.prices[0].error
        table = Table(
            "who takes part",
            Column("multi-\nplier", justify="right"),
            Column("rela-\ntive\nerror", justify="right"),
            Column(f"{self.unit}s\na round", justify="right"),
            Column("seconds\na client", justify="right"),
            Column("MiB kept\nat a node", justify="right"),
            "secret,\nbesides shares",
            title=(
                f"Noise in shares for epsilon {wanted.epsilon:g}, delta {wanted.delta:.3g}: "
                f"{wanted.rounds} rounds, {wanted.num_units} {self.unit}s at {self.nodes} nodes"
            ),
            caption=f"error of the model, root mean square: 1 is {reference:.4g} clipping norms",
        )
        for price in self.prices:
            share = self._share(price)
            who, secret = _in_words(price)
            table.add_row(
                who,
                f"{price.noise_multiplier:.4f}",
                f"{price.error / reference:.3f}",
                f"{share * wanted.num_units:.4g}",
                "?" if self.seconds is None else f"{share * self.seconds:.2g}",
                f"{self._bytes(price) / MIB:.3g}" if price.remembered else "-",
                secret,
                style="bold" if price is self.pick else None,
            )
        return table

    def _share(self, price: NoisePrice) -> float:
        """Return the share of all units whose gradients a round needs."""
        return price.sampling.expected_cohort(self.wanted.num_units) / self.wanted.num_units


def _in_words(price: NoisePrice) -> tuple[str, str]:
    """Return who takes part, and what else than the shares has to stay secret."""
    if price.remembered:
        return f"turns of {price.groups}", "a file of each node"
    if price.everybody:
        return "all", "nothing"
    return "coins", "coins, time"
