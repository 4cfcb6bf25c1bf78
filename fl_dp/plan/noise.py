"""Kinds of noise: who adds it, how much in each round, and the charge for it.

A kind of noise stands for a promise: `CentralNoise` trusts the server, `ClientNoise`
trusts no other party. Each has its words for the privacy statement; what it excludes are rows of
`exclusions`. Noise in shares under a secure sum has a file of its own (`distributed_noise`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    PrivacyBudget,
    PrivacyEvent,
    Sampling,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.filters import DeclaredFilter, PrivacyFilter
from fl_dp.mechanisms import ClientScheme, client_scheme
from fl_dp.option_errors import Exclusion

from .correlation import Banded
from .hosting import Hosting
from .release import Release

_CONSTANT = NoiseSchedule()
_CLIPPING = {
    "fixed": "L2-clipped updates",
    "per-layer": "updates whose layers are L2-clipped one by one",
    "adaptive": "updates that are L2-clipped at a norm which follows a noisy quantile",
}
ANOTHER_APP = (
    "a server that sends another app than the one agreed on: a node runs it, unless its SuperNode "
    "verifies apps (`--trusted-entities`)"
)
"""Left out of every promise against the server, as Flower's nodes get their code from it."""
ITEMS_OF_SEVERAL_RECORDS = (
    "an app whose data set makes an item of several records (mix-up, overlapping windows, "
    "statistics of the whole set), or that carries something from one record to the next outside "
    "of its model"
)
"""Left out of every promise to single records: no check sees what an item is made of."""


@dataclass(frozen=True, kw_only=True)
class Noise(ABC):
    """The noise of a training: who adds it, and how much in each round.

    Attributes:
        multiplier: Noise standard deviation over the clipping norm, in the rounds with the least
            noise.
        schedule: How the noise changes over the rounds, declared beforehand.
    """

    kind: ClassVar[str]
    place: ClassVar[str]
    """The place where it is added, in one phrase."""
    of_sums: ClassVar[bool] = True
    """Whether it is the noise of a cohort's sums, or one message has noise of its own."""

    exclusions: ClassVar[tuple[Exclusion[Any], ...]] = ()
    """Rows of a kind that is not of this package, over `exclusions.Asked`."""

    multiplier: float
    schedule: NoiseSchedule = _CONSTANT

    @property
    def coefficients(self) -> tuple[int, ...] | None:
        """Those of noise that is correlated over rounds; None: each round's is independent."""
        return None

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences on what the promise leaves out because of who adds the noise."""
        return ()

    @property
    def slack(self) -> float:
        """Lambda: a bound on how far log-ratios of all releases lie from those of their events.

        A promise is larger than its events' by `2 lambda` in epsilon and `e^lambda` in delta.
        """
        return 0.0

    def event_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return what is left of a budget for events."""
        return budget

    def multipliers(self, rounds: int) -> tuple[float, ...]:
        """Return the multiplier of each round."""
        return self.schedule.multipliers(self.multiplier, rounds) if rounds else ()

    def filter(
        self, budget: PrivacyBudget, history: FrozenHistory, relation: NeighboringRelation
    ) -> PrivacyFilter:
        """Return the gate that every release has to pass, with nothing spent.

        Args:
            budget: Never exceeded.
            history: Every planned release.
            relation: Which populations are neighbours.
        """
        return DeclaredFilter(budget, history, neighboring_relation=relation)

    @abstractmethod
    def event(
        self, multiplier: float, *, sampling: Sampling, num_clients: int, release: Release
    ) -> PrivacyEvent:
        """Return what one unit is charged for a round of that multiplier."""

    @abstractmethod
    def adversary(self, *, unit: str, sampling: Sampling) -> str:
        """Return against whom the promise holds."""

    @abstractmethod
    def trusted(self, *, hosting: Hosting, sampling: Sampling) -> str:
        """Return who is trusted, and with what."""

    @abstractmethod
    def mechanism(self, release: Release) -> str:
        """Return what makes a round private."""

    def to_dict(self) -> dict[str, Any]:
        """Return the noise as plain JSON values."""
        return {"kind": self.kind, **asdict(self), "schedule": self.schedule.to_dict()}


@dataclass(frozen=True, kw_only=True)
class CentralNoise(Noise):
    """Gaussian noise that the server adds to a cohort's sums.

    Attributes:
        correlation: How the noise of later rounds takes that of earlier ones away; None: each
            round's is independent. `multiplier` is then that of one participation: the noise on a
            sum is larger, and the errors of many rounds cancel.
    """

    kind: ClassVar[str] = "central"
    place: ClassVar[str] = "at the server"

    correlation: Banded | None = None

    @property
    def coefficients(self) -> tuple[int, ...] | None:
        """Those of the correlation, if there is one."""
        return None if self.correlation is None else self.correlation.coefficients

    @property
    def not_covered(self) -> tuple[str, ...]:
        """With correlated noise: who reads memory."""
        return () if self.correlation is None else self.correlation.not_covered

    def event(
        self, multiplier: float, *, sampling: Sampling, num_clients: int, release: Release
    ) -> PrivacyEvent:
        """Return a Gaussian, amplified as the sampling allows."""
        return sampling.event(multiplier, num_clients)

    def adversary(self, *, unit: str, sampling: Sampling) -> str:
        """Return that it holds against who sees the models."""
        others = "all other clients' data"
        if unit == "record":
            others = "all other records, those of the same client included"
        seen = (
            "sees who took part"
            if sampling.visible
            else ("does not see who took part in which round")
        )
        return f"sees every released model and knows {others}; {seen}"

    def trusted(self, *, hosting: Hosting, sampling: Sampling) -> str:
        """Return that the server is, and nodes as far as they host several units."""
        kept = "" if self.correlation is None else f"; {self.correlation.kept}"
        return f"{hosting.trusted(sampling)}{kept}"

    def mechanism(self, release: Release) -> str:
        """Return what is summed, and what goes with it."""
        text = f"Gaussian on an integer grid, on the sum of {_CLIPPING[release.clipping.kind]}"
        if release.metrics:
            names = ", ".join(metric.name for metric in release.metrics)
            text += f", released as one with the clients' metrics {names}"
        return text if self.correlation is None else f"{text}; {self.correlation.in_words}"


@dataclass(frozen=True, kw_only=True)
class ClientNoise(Noise):
    """Noise that each client adds to its own update, so that it trusts no other party.

    `multiplier` is that of one client's own noise.

    Attributes:
        scheme: A name of `fl_dp.mechanisms.schemes.SCHEMES`.
    """

    kind: ClassVar[str] = "client"
    place: ClassVar[str] = "at each client"
    of_sums: ClassVar[bool] = False

    scheme: str

    @property
    def not_covered(self) -> tuple[str, ...]:
        """That the server could send another app."""
        return (ANOTHER_APP,)

    def scheme_of(self, multiplier: float, clipping_norm: float) -> ClientScheme:
        """Return what makes one client's message private."""
        return client_scheme(self.scheme, noise_multiplier=multiplier, clipping_norm=clipping_norm)

    def event(
        self, multiplier: float, *, sampling: Sampling, num_clients: int, release: Release
    ) -> PrivacyEvent:
        """Return the event of one message, in full: the server sees who sent it."""
        return self.scheme_of(multiplier, release.clipping_norm).event()

    def adversary(self, *, unit: str, sampling: Sampling) -> str:
        """Return that it holds against the server."""
        return "is the server itself: sees every message and who sent it, and knows all other data"

    def trusted(self, *, hosting: Hosting, sampling: Sampling) -> str:
        """Return that no other party is."""
        return "each client's own software, to add the noise of this plan; nobody with an update"

    def mechanism(self, release: Release) -> str:
        """Return what each client does."""
        return f"noise of the {self.scheme} scheme at each client, on its clipped update"
