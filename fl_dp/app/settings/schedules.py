"""Settings of how the rounds share the budget, a class for each `schedule=NAME`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fl_dp.accounting.schedules import SHAPES, NoiseSchedule

from .checks import choices, tracked


@dataclass(kw_only=True)
class ScheduleSettings:
    """As much of the budget in every round; other options spread it otherwise.

    Attributes:
        name: Option of the group.
    """

    name: str = tracked("constant")

    def __post_init__(self) -> None:
        """Check the values."""
        choices("schedule", self)
        self.check()

    def check(self) -> None:
        """Check that the values make a schedule.

        Raises:
            ValueError: If a value is missing or out of range.
        """
        _ = self.noise_schedule  # checks the rest

    @property
    def noise_schedule(self) -> NoiseSchedule:
        """The declared shape."""
        return NoiseSchedule()


@dataclass(kw_only=True)
class ShapeSettings(ScheduleSettings):
    """A shape of the literature.

    Attributes:
        spend: Where the larger part goes, `early` or `late`; null is early for `seed_rule`, late
            for the others.
        floor: Smallest relative spend of a round.
        levels: Most different noise multipliers; null gives each round its own, which is slow
            beyond some hundred rounds.
    """

    spend: str | None = tracked(None)
    floor: float = tracked(0.5)
    levels: int | None = tracked(16)

    @property
    def noise_schedule(self) -> NoiseSchedule:
        """The declared shape."""
        return NoiseSchedule(**asdict(self))


@dataclass(kw_only=True)
class CustomSettings(ScheduleSettings):
    """Relative spends as written.

    Attributes:
        weights: Relative spend of each round; required.
        levels: Most different noise multipliers; null gives each round its own, which is slow
            beyond some hundred rounds.
    """

    name: str = tracked("custom")
    weights: list[float] | None = tracked(None)
    levels: int | None = tracked(16)

    def __post_init__(self) -> None:
        """Check the values; weights have no default, and may be written later."""
        if self.weights is not None:
            self.check()

    @property
    def noise_schedule(self) -> NoiseSchedule:
        """The declared shape."""
        weights = None if self.weights is None else tuple(self.weights)
        return NoiseSchedule(name="custom", weights=weights, levels=self.levels)


SCHEDULES: tuple[ScheduleSettings, ...] = (
    ScheduleSettings(),
    *(ShapeSettings(name=name) for name in SHAPES if name != "constant"),
    CustomSettings(),
)
"""The options of `schedule=NAME`."""
