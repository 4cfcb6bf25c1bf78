"""Settings of how the budget is spread over the rounds, a class for each `schedule=NAME`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fl_dp.accounting.schedules import SHAPES, NoiseSchedule

from .checks import choices, told


@dataclass(kw_only=True)
class ScheduleSettings:
    """As much of the budget in every round; other options spread it otherwise.

    Attributes:
        name: Option of the group.
    """

    name: str = told("constant")

    def __post_init__(self) -> None:
        """Check the values."""
        choices("schedule", self)
        self.check()

    def check(self) -> None:
        """Check that it is a schedule.

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

    spend: str | None = told(None)
    floor: float = told(0.5)
    levels: int | None = told(16)

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

    name: str = told("custom")
    weights: list[float] | None = told(None)
    levels: int | None = told(16)

    def __post_init__(self) -> None:
        """Check the values, but for weights that are still to come: they have no default."""
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
"""What `schedule=NAME` chooses among."""
