"""Settings of the rounds: who takes part in each, and how the budget is spread over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_dp.accounting.schedules import NoiseSchedule, PlateauSchedule
from fl_dp.option_errors import OptionError

from .checks import at_least, choices, fraction, positive
from .choices import UTILITIES_OF_EVERYBODY


@dataclass(kw_only=True)
class SelectionSettings:
    """Selection of the clients that take part in a round; docs/selection.md compares the rules.

    Attributes:
        name: `poisson`, `truncated_poisson`, `fixed`, `exponential`, `dp_utility`, `public` or
            `buffered`, which waits for no slow client.
        sampling_rate: Expected share of the clients in each round, in (0, 1]; of `buffered`, the
            share whose answers make a release.
        max_cohort: Largest cohort of `truncated_poisson`; null is the expected cohort plus 4.5
            times its square root.
        participation_cap: Most rounds of one client, where participants are visible (`exponential`,
            `public`, `buffered`, or everybody: `selection.sampling_rate=1`); null charges every
            round.
        coins: `server`, or `nodes`: each node flips the coins of its own units (`poisson` only).
        epsilon: Bounded range of one draw of `exponential`.
        utility: Utility by which `exponential` and `dp_utility` choose: `loss`, `accuracy` or
            `records`; for `exponential` also `update_norm` and `staleness`.
        utility_high: Upper end of a utility, which is clipped to [0, `utility_high`].
        records_per_client: Public lower bound on a client's records, for `exponential` with
            `privacy.unit=record`.
        largest_rate: Upper bound on a client's rate under `dp_utility`, which is what is charged;
            null is twice `sampling_rate`.
        smallest_rate: Lower bound on that rate.
        refresh_every: Rounds from one release of the noisy utilities to the next, for `dp_utility`.
        utility_noise: Noise on a utility, over half of its range, for `dp_utility`.
        sharpness: Growth of a client's rate with its utility, for `dp_utility`.
        concurrency: Clients that are asked at any time, for `buffered`; null is twice its answers
            in a release.
        max_staleness: Releases after which an answer counts as zero, for `buffered`.
        staleness_power: How fast the weight of an answer falls, for `buffered`: one that is `s`
            releases old weighs (1 + s) to minus this power. 0: all weigh 1.
    """

    name: str = "poisson"
    sampling_rate: float = 0.25
    max_cohort: int | None = None
    participation_cap: int | None = None
    coins: str = "server"
    epsilon: float = 0.05
    utility: str = "loss"
    utility_high: float = 5.0
    records_per_client: int | None = None
    largest_rate: float | None = None
    smallest_rate: float = 0.0
    refresh_every: int = 20
    utility_noise: float = 5.0
    sharpness: float = 1.0
    concurrency: int | None = None
    max_staleness: int = 10
    staleness_power: float = 0.5

    def __post_init__(self) -> None:
        """Check the values."""
        choices("selection", self)
        fraction(
            "selection.sampling_rate",
            self.sampling_rate,
            "it is a probability, for example 0.1 for a tenth of the clients a round",
        )
        if self.name == "dp_utility" and self.utility not in UTILITIES_OF_EVERYBODY:
            raise OptionError(
                f"{{selection.utility}}={self.utility} is what the server saw of participants: "
                f"dp_utility asks everybody for one of {', '.join(UTILITIES_OF_EVERYBODY)}"
            )
        self._check_buffer()
        for key in ("max_cohort", "participation_cap", "records_per_client", "refresh_every"):
            at_least(f"selection.{key}", getattr(self, key), 1)
        for key in ("epsilon", "utility_high", "utility_noise"):
            positive(f"selection.{key}", getattr(self, key))
        fraction("selection.largest_rate", self.largest_rate, "it is a probability")
        if not 0.0 <= self.smallest_rate <= 1.0:
            raise OptionError(
                f"{{selection.smallest_rate}} must lie in [0, 1], got {self.smallest_rate}"
            )

    def _check_buffer(self) -> None:
        at_least("selection.concurrency", self.concurrency, 1)
        at_least("selection.max_staleness", self.max_staleness, 0)
        if not (math.isfinite(self.staleness_power) and self.staleness_power >= 0.0):
            raise OptionError(
                "{selection.staleness_power} must be finite and not negative: an old answer must "
                f"not weigh more than a new one, got {self.staleness_power}"
            )


@dataclass(kw_only=True)
class ScheduleSettings:
    """Spread of the budget over the rounds. The last six keys are those of `plateau`.

    Attributes:
        name: `constant`, `seed_rule` (full spend in the first half, then falling to `floor`),
            `linear`, `exponential`, `step`, `cosine`, `custom` or `plateau`.
        spend: Where the larger part goes, `early` or `late`; null is the shape's own (early for
            `seed_rule`, late for the others).
        floor: Smallest relative spend of a round.
        levels: Most different noise multipliers; null gives each round its own, and accounting is
            then slow beyond some hundred rounds.
        weights: Relative spend of each round, for `custom`.
        metric: `plateau`: public metric of the model that the noise reacts to, `accuracy` or
            `loss`.
        patience: `plateau`: rounds without an improvement before the noise is lowered.
        factor: `plateau`: factor by which the noise is lowered then.
        first: `plateau`: noise of the first rounds, relative to the constant noise that spends the
            budget.
        smallest: `plateau`: least noise, relative to the same.
        min_improvement: `plateau`: least change of the metric that counts as an improvement.
    """

    name: str = "constant"
    spend: str | None = None
    floor: float = 0.5
    levels: int | None = 16
    weights: list[float] | None = None
    metric: str = "accuracy"
    patience: int = 5
    factor: float = 0.7
    first: float = 2.0
    smallest: float = 0.5
    min_improvement: float = 1e-3

    def __post_init__(self) -> None:
        """Check the values."""
        choices("schedule", self)
        try:
            # The schedules check the rest; they are plain shapes, and know nothing of settings.
            _ = self.noise_schedule, self.plateau_schedule
        except ValueError as error:
            is_key = str(error).partition(" ")[0] in self.__dataclass_fields__
            raise ValueError(f"schedule{'.' if is_key else ': '}{error}") from error

    @property
    def noise_schedule(self) -> NoiseSchedule:
        """The declared shape; constant under `plateau`."""
        if self.name == "plateau":
            return NoiseSchedule()
        return NoiseSchedule(
            name=self.name,
            spend=self.spend,
            floor=self.floor,
            levels=self.levels,
            weights=None if self.weights is None else tuple(self.weights),
        )

    @property
    def plateau_schedule(self) -> PlateauSchedule | None:
        """Reaction of the noise, under `plateau` only."""
        if self.name != "plateau":
            return None
        return PlateauSchedule(
            patience=self.patience,
            factor=self.factor,
            first=self.first,
            smallest=self.smallest,
            min_improvement=self.min_improvement,
            mode="max" if self.metric == "accuracy" else "min",
        )
