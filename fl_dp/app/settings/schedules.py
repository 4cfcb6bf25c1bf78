"""Settings of how the budget is spread over the rounds, a class for each `schedule=NAME`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fl_dp.accounting.schedules import SHAPES, NoiseSchedule, PlateauSchedule

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
        try:
            # The schedules check the rest; they are plain shapes, and know nothing of settings.
            _ = self.noise_schedule, self.plateau_schedule
        except ValueError as error:
            is_key = str(error).partition(" ")[0] in self.__dataclass_fields__
            raise ValueError(f"schedule{'.' if is_key else ': '}{error}") from error

    @property
    def noise_schedule(self) -> NoiseSchedule:
        """The declared shape."""
        return NoiseSchedule()

    @property
    def plateau_schedule(self) -> PlateauSchedule | None:
        """Reaction of the noise to the training; None: it does not react."""
        return None

    @property
    def metric(self) -> str:
        """Public metric of the model that the noise reacts to, if it does."""
        return "accuracy"


@dataclass(kw_only=True)
class ShapeSettings(ScheduleSettings):
    """A shape of the literature.

    Attributes:
        spend: Where the larger part goes, `early` or `late`; null is the shape's own (early for
            `seed_rule`, late for the others).
        floor: Smallest relative spend of a round.
        levels: Most different noise multipliers; null gives each round its own, and accounting is
            then slow beyond some hundred rounds.
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
        weights: Relative spend of each round, needed.
        levels: Most different noise multipliers; null gives each round its own, and accounting is
            then slow beyond some hundred rounds.
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


@dataclass(kw_only=True)
class PlateauSettings(ScheduleSettings):
    """Less noise when a public metric stalls, gated by a privacy filter.

    Attributes:
        metric: Public metric of the model that the noise reacts to, `accuracy` (R2, where the
            label is a number) or `loss`.
        patience: Evaluated rounds without an improvement before the noise is lowered.
        factor: Factor by which the noise is lowered then.
        first: Noise of the first rounds, relative to the constant noise that spends the budget.
        smallest: Least noise, relative to the same.
        min_improvement: Least change of the metric that counts as an improvement.
    """

    name: str = told("plateau")
    metric: str = told("accuracy")
    patience: int = told(5)
    factor: float = told(0.7)
    first: float = told(2.0)
    smallest: float = told(0.5)
    min_improvement: float = told(1e-3)

    @property
    def plateau_schedule(self) -> PlateauSchedule:
        """Reaction of the noise to the training."""
        shape = {key: value for key, value in asdict(self).items() if key not in ("name", "metric")}
        return PlateauSchedule(**shape, mode="max" if self.metric == "accuracy" else "min")


SCHEDULES: tuple[ScheduleSettings, ...] = (
    ScheduleSettings(),
    *(ShapeSettings(name=name) for name in SHAPES if name != "constant"),
    CustomSettings(),
    PlateauSettings(),
)
"""What `schedule=NAME` chooses among."""
