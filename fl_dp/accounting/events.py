"""Releases as plain data: an event describes one release and interprets nothing.

Sampled cohorts' events, and the types of a history; `fl_dp/mechanisms/mechanism_events.py` has
mechanisms' events and the meaning of multipliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, ClassVar, TypeAlias, get_args

from fl_dp.codec import JSONForm, encode, known_kind
from fl_dp.mechanisms.mechanism_events import (
    Checked,
    GaussianEvent,
    MechanismEvent,
)
from fl_dp.option_errors import require_count

from .random_stopping import RunsLaw

_MOST_RELEASES = 2**53  # every accountant computes with floats, which count no further


@dataclass(frozen=True, kw_only=True)
class PoissonGaussianEvent(Checked):
    """Gaussian noise on a sum over a Poisson sample of the units.

    Attributes:
        noise_multiplier: Noise standard deviation on the sum over its L2 sensitivity.
        sampling_rate: Upper bound on each unit's probability of being in the sample, independently
            of all others and unseen by the adversary. 1 means all units.
    """

    kind: ClassVar[str] = "poisson-gaussian"
    noise_multiplier: float
    sampling_rate: float


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonGaussianEvent(Checked):
    """As `PoissonGaussianEvent`, but a sample above `max_cohort` is cut to a random part.

    Attributes:
        noise_multiplier: Noise standard deviation on the sum over its L2 sensitivity.
        sampling_rate: Each unit's probability before the cut.
        num_units: Number of units that coins are flipped for; public.
    """

    kind: ClassVar[str] = "truncated-poisson-gaussian"
    noise_multiplier: float
    sampling_rate: float
    num_units: int
    max_cohort: int


@dataclass(frozen=True, kw_only=True)
class FixedSizeGaussianEvent(Checked):
    """Gaussian noise on a sum over exactly `cohort` of `num_units` units, drawn uniformly.

    When a unit enters such a sample another leaves, so Poisson bounds are false. It is charged
    without amplification, except by the Renyi bound for replace-one neighbours. That holds for
    zero-out, too: zero is one way to be replaced. Under add-or-remove, another unit replaces the
    one that left: even without amplification the sum moves by twice the clipping norm.

    Attributes:
        noise_multiplier: Noise standard deviation on the sum over the clipping norm.
        num_units: Number of units to draw from; public.
    """

    kind: ClassVar[str] = "fixed-size-gaussian"
    noise_multiplier: float
    num_units: int
    cohort: int

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        super().__post_init__()
        if not 1 <= self.cohort <= self.num_units:
            raise ValueError(
                f"cohort must lie between 1 and num_units = {self.num_units}, got {self.cohort}"
            )


@dataclass(frozen=True, kw_only=True)
class RandomStoppingEvent:
    """The best of a random number of runs; no other run, nor their number, is ever released.

    Attributes:
        releases: Each run's releases, with counts; the same for all runs.
        mean_runs: Expected number of runs.
        shape: Shape of its truncated negative binomial law: 1 is geometric, 0 logarithmic.
    """

    kind: ClassVar[str] = "random-stopping"
    releases: FrozenHistory
    mean_runs: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range, or a run releases nothing.
        """
        _ = self.law
        if not self.releases:
            raise ValueError("a run of a random number of runs has to release something")

    @property
    def law(self) -> RunsLaw:
        """The law of the number of runs."""
        return RunsLaw(mean=self.mean_runs, shape=self.shape)


PrivacyEvent: TypeAlias = (
    MechanismEvent
    | PoissonGaussianEvent
    | TruncatedPoissonGaussianEvent
    | FixedSizeGaussianEvent
    | RandomStoppingEvent
)
_KINDS: dict[str, type[PrivacyEvent]] = {kind.kind: kind for kind in get_args(PrivacyEvent)}

History: TypeAlias = (
    Mapping[PrivacyEvent, int] | Sequence[PrivacyEvent] | Sequence[tuple[PrivacyEvent, int]]
)
"""Releases, as counts or one by one, in any order."""


def freeze(history: History) -> FrozenHistory:
    """Merge equal events and put them in one fixed order.

    Raises:
        ValueError: If a count is negative, no whole number, or larger than floats can count.
    """
    merged: dict[PrivacyEvent, int] = {}
    entries = history.items() if isinstance(history, Mapping) else history
    for entry in entries:
        event, count = entry if isinstance(entry, tuple) else (entry, 1)
        if not 0 <= count <= _MOST_RELEASES or count != int(count):
            raise ValueError(f"{event} can't have happened {count} times")
        if isinstance(event, PoissonGaussianEvent) and event.sampling_rate == 1.0:
            event = GaussianEvent(noise_multiplier=event.noise_multiplier)
        if count:
            merged[event] = merged.get(event, 0) + count
    return tuple(sorted(merged.items(), key=lambda pair: _order(pair[0])))


def event_to_dict(event: PrivacyEvent) -> dict[str, Any]:
    """The event as plain JSON values; `event` is its kind, as in ledgers' entries."""
    written = encode(event)
    return {"event": written.pop("kind"), **written}


def event_from_dict(fields: Mapping[str, Any]) -> PrivacyEvent:
    """The event that `event_to_dict` described; other keys are ignored.

    Raises:
        ValueError: If the kind is unknown: it may be a charge that this version can't read.
    """
    kind = known_kind(_KINDS, fields["event"], of="an event")
    if kind is RandomStoppingEvent:
        fields = {**fields, "releases": history_from_list(fields["releases"])}
    return kind(**{field.name: fields[field.name] for field in dataclass_fields(kind)})


def history_to_list(history: FrozenHistory) -> list[dict[str, Any]]:
    """Releases as plain JSON values: each event, and `count`."""
    return [{**event_to_dict(event), "count": count} for event, count in history]


def history_from_list(releases: Sequence[Mapping[str, Any]]) -> FrozenHistory:
    """The releases that `history_to_list` described.

    Raises:
        ValueError: As for `release_from_dict`.
    """
    return freeze([release_from_dict(release) for release in releases])


def release_from_dict(fields: Mapping[str, Any]) -> tuple[PrivacyEvent, int]:
    """An event and its count, as `history_to_list` described them.

    Raises:
        ValueError: As for `event_from_dict`, or if `count` is no count up to 2^53.
    """
    count = fields["count"]
    require_count(count=count)
    if count > _MOST_RELEASES:
        raise ValueError(f"count must be at most 2^53, got a number of {len(str(count))} digits")
    return event_from_dict(fields), count


def _order(event: PrivacyEvent) -> tuple[str, tuple[float, ...]]:
    if isinstance(event, RandomStoppingEvent):
        return event.kind, (event.mean_runs, event.shape)
    return event.kind, tuple(asdict(event).values())


FrozenHistory: TypeAlias = Annotated[
    tuple[tuple[PrivacyEvent, int], ...], JSONForm(write=history_to_list, read=history_from_list)
]
"""A history with equal events merged, in one fixed order: the key of caches."""
