"""Settings of an experiment: many trainings as one configuration, and the pictures of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches

from fl_dp.option_errors import OptionError
from fl_dp.tasks.public_scores import NUMBERS

from .checks import at_least, distinct

PANELS = ("accuracy", "loss", "epsilon", "noise_multiplier", "noise_of_mean", *NUMBERS)
"""Results that are drawn against an axis: columns of `results.csv`."""

SWEEP = "sweep.json"
"""File of a sweep's folder with these settings and its trainings."""

FORMULAS = ("udp", "exposures")
"""Formulas of the literature for the noise of an epsilon: `fl_dp.accounting.gaussian_formulas`."""


@dataclass(kw_only=True)
class CurveSettings:
    """One curve of an experiment.

    Attributes:
        overrides: Settings of this curve, as on the command line.
        axis: Key that moves along this curve; null is the sweep's.
        values: Its places on the axis; null takes the sweep's.
        at: The one place of a curve that does not move: a number, or `inf`.
        formula: Formula that makes `privacy.noise_multiplier` of a place on the axis, an epsilon
            that it claims: `udp` or `exposures`; the results say what is really spent.
    """

    overrides: list[str] = field(default_factory=list)
    axis: str | None = None
    values: list[str] | None = None
    at: str | None = None
    formula: str | None = None


@dataclass(kw_only=True)
class SweepSettings:
    """Experiment: trainings along an axis, for each curve and each seed. `-m` runs them all.

    Attributes:
        axis: Key along the horizontal axis; null: accuracy over the rounds.
        values: Values of that key; `-m KEY=1,2` replaces them.
        label: Words under the axis; null is the key.
        curves: Curves by name, each with `overrides` and perhaps `values`, `axis`, `at` or
            `formula`; none: no experiment.
        only: Names of the curves to run; null runs all.
        seeds: Seeds of the trainings; `-m seed=0,1` replaces them, null is the run's `seed`.
        panels: Results to draw: `accuracy`, `loss`, `epsilon`, `noise_multiplier`, `noise_of_mean`
            or a number of `metrics.public`; null is `accuracy`.
        side_by_side: Trainings at a time; null is one per processor with
            `simulation.engine=in_process`, else one per four.
    """

    axis: str | None = None
    values: list[str] | None = None
    label: str | None = None
    curves: dict[str, CurveSettings] = field(default_factory=dict)
    only: list[str] | None = None
    seeds: list[int] | None = None
    panels: list[str] | None = None
    side_by_side: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for key, kind in (("axis", str), ("label", str), ("side_by_side", int)):
            value = getattr(self, key)
            if value is not None and type(value) is not kind:  # from a file, without types
                wanted = "a whole number" if kind is int else "a text"
                raise OptionError(
                    f"sweep.{key} must be {wanted}, got {value!r}", option=f"sweep.{key}"
                )
        for key in ("values", "only", "panels"):
            distinct(f"sweep.{key}", getattr(self, key), least=1)
        at_least("sweep.side_by_side", self.side_by_side, 1)
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise OptionError(
                f"sweep.seeds must be different whole numbers, got {self.seeds}",
                option="sweep.seeds",
            )
        _require_names("sweep.panels", self.panels or (), PANELS)
        if not self.curves:
            self._require_empty()
            return
        # From JSON, where a curve is a mapping.
        self.curves = {
            name: curve if isinstance(curve, CurveSettings) else CurveSettings(**curve)
            for name, curve in self.curves.items()
        }
        _require_names("sweep.only", self.only or (), self.curves)
        for name, curve in self.curves.items():
            self._check(f"sweep.curves.{name}", curve)

    @property
    def chosen(self) -> dict[str, CurveSettings]:
        """The curves to run, in their order; empty without an experiment."""
        only = self.only or self.curves
        return {name: curve for name, curve in self.curves.items() if name in only}

    def require_none(self) -> None:
        """Check that one training is meant, not an experiment.

        Raises:
            ValueError: If it is an experiment; the text says what to write.
        """
        if self.curves:
            raise OptionError(
                f"this is an experiment of many trainings ({', '.join(self.chosen)}): add -m, as "
                "in `fl-dp run -m experiment=NAME`, or leave the experiment out",
                option="experiment",
            )

    def axis_of(self, curve: CurveSettings) -> str | None:
        """Return the key that moves along a curve; None for one that does not move."""
        if curve.at is not None:
            return None
        return curve.axis or self.axis

    def _require_empty(self) -> None:
        """Check that no key of an experiment is set where there is none."""
        names = [setting.name for setting in fields(self) if setting.name != "side_by_side"]
        written = [f"sweep.{name}={getattr(self, name)}" for name in names if getattr(self, name)]
        if written:
            raise OptionError(
                f"{', '.join(written)} is for an experiment, and there is none: write -m "
                "experiment=NAME too, or leave it out",
                options=[text.partition("=")[0] for text in written],
            )

    def _check(self, key: str, curve: CurveSettings) -> None:
        distinct(f"{key}.values", curve.values, least=1)
        formulas = () if curve.formula is None else (curve.formula,)
        _require_names(f"{key}.formula", formulas, FORMULAS)
        if curve.at is not None:
            if curve.values or curve.axis or curve.formula:
                raise OptionError(
                    f"{key}.at={curve.at} is the one place of a curve that does not move: leave "
                    "its values, axis and formula out",
                    option=f"{key}.at",
                )
            try:
                position = float(curve.at)
            except ValueError:
                position = math.nan
            if math.isnan(position):
                raise OptionError(
                    f"{key}.at must be a number, or inf, got '{curve.at}'", option=f"{key}.at"
                )
        if self.axis is None:
            if curve.at or curve.values or curve.axis or curve.formula:
                raise OptionError(
                    f"{key} has a place on an axis, and sweep.axis is null", option=key
                )
        elif curve.at is None and not (curve.values or self.values):
            raise OptionError(
                f"{key} has no values, and sweep.values is null: write either", option=key
            )


def _require_names(key: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    for name in names:
        if name not in allowed:
            near = "".join(f": did you mean {n}?" for n in get_close_matches(name, allowed, 1))
            raise OptionError(
                f"{key} must be of {', '.join(allowed)}, got '{name}'{near}", option=key
            )
