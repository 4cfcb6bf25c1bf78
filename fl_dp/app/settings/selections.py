"""Settings of who takes part in each round, a class for each `selection=NAME`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, choices, fraction, positive, tracked

if TYPE_CHECKING:
    from fl_dp.strategies import Selection


@dataclass(kw_only=True)
class SelectionSettings:
    """Selection of the clients that take part in a round; docs/selection.md compares the rules.

    Attributes:
        name: Option of the group.
        sampling_rate: Expected share of the clients in each round, in (0, 1]; under `buffered`, the
            share whose answers trigger a release.
    """

    name: str = tracked("")
    sampling_rate: float = tracked(0.25)

    def __post_init__(self) -> None:
        """Check the values."""
        choices("selection", self)
        fraction(
            "selection.sampling_rate",
            self.sampling_rate,
            "it is a probability, for example 0.1 for a tenth of the clients a round",
        )

    def __str__(self) -> str:
        """Return the option."""
        return self.name

    @property
    def participation_cap(self) -> int | None:
        """Most rounds of one client; None charges every round."""
        return None

    @property
    def coins_at_nodes(self) -> bool:
        """Whether each node flips the coins of its own units."""
        return False

    @property
    def utility(self) -> str | None:
        """Utility of the clients by which it chooses; None: it uses none."""
        return None

    @property
    def records_per_client(self) -> int | None:
        """Public lower bound on a client's records; None: no bound."""
        return None

    def epsilon_of(self) -> dict[str, float] | None:
        """Return the epsilon of each node by its name; None: nodes are not named."""
        return None

    def cohort(self, num_clients: int) -> int:
        """Return the number of clients that take part, at least one."""
        return max(1, round(self.sampling_rate * num_clients))

    def make(self, num_clients: int) -> Selection:
        """Return the selection for a roster of clients."""
        raise NotImplementedError


@dataclass(kw_only=True)
class PoissonSettings(SelectionSettings):
    """A secret coin for each client and round.

    Attributes:
        participation_cap: Most rounds of one client; null charges every round. Under `poisson` it
            needs `selection.sampling_rate=1`.
        coins_at_nodes: Each node flips the coins of its own units.
    """

    name: str = tracked("poisson")
    participation_cap: int | None = tracked(None)
    coins_at_nodes: bool = tracked(False)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("selection.participation_cap", self.participation_cap, 1)

    def make(self, num_clients: int) -> Selection:
        """Return the selection."""
        from fl_dp.accounting import PoissonSampling
        from fl_dp.strategies import LawSelection

        law = PoissonSampling(
            sampling_rate=self.sampling_rate, participation_cap=self.participation_cap
        )
        return LawSelection(law)


@dataclass(kw_only=True)
class TruncatedPoissonSettings(SelectionSettings):
    """A secret coin for each client and round, and a largest cohort.

    Attributes:
        max_cohort: Largest cohort; null is the expected one plus 4.5 times its square root.
    """

    name: str = tracked("truncated_poisson")
    max_cohort: int | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("selection.max_cohort", self.max_cohort, 1)

    def make(self, num_clients: int) -> Selection:
        """Return the selection."""
        from fl_dp.accounting import TruncatedPoissonSampling
        from fl_dp.strategies import LawSelection

        law = TruncatedPoissonSampling.comfortable(self.sampling_rate, num_clients)
        if self.max_cohort is not None:
            law = replace(law, max_cohort=self.max_cohort)
        return LawSelection(law)


@dataclass(kw_only=True)
class FixedSettings(SelectionSettings):
    """A cohort of one size, drawn at random."""

    name: str = tracked("fixed")

    def make(self, num_clients: int) -> Selection:
        """Return the selection."""
        from fl_dp.accounting import FixedSizeSampling
        from fl_dp.strategies import LawSelection

        return LawSelection(FixedSizeSampling(cohort=self.cohort(num_clients)))


@dataclass(kw_only=True)
class ExponentialSettings(SelectionSettings):
    """Draws by the exponential mechanism, from what clients reported.

    Attributes:
        participation_cap: Most rounds of one client; null charges every round.
        epsilon: Bounded range of one draw.
        utility: Utility to choose by: `loss`, `accuracy`, `records`, `update_norm` or `staleness`.
        utility_high: Upper end of a utility, which is clipped to [0, `utility_high`].
        records_per_client: Public lower bound on a client's records, for `privacy.unit=record`.
    """

    name: str = tracked("exponential")
    participation_cap: int | None = tracked(None)
    epsilon: float = tracked(0.05)
    utility: str = tracked("loss")
    utility_high: float = tracked(5.0)
    records_per_client: int | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for key in ("participation_cap", "records_per_client"):
            at_least(f"selection.{key}", getattr(self, key), 1)
        positive("selection.epsilon", self.epsilon)
        positive("selection.utility_high", self.utility_high)
        bounded = self.records_per_client is not None
        if bounded and self.utility == "accuracy" and self.utility_high < 1.0:
            raise OptionError(
                "one record moves an accuracy by one over the records: write "
                f"selection.utility_high=1, got {self.utility_high}"
            )

    def make(self, num_clients: int) -> Selection:
        """Return the selection."""
        from fl_dp.accounting import VisibleSampling
        from fl_dp.strategies import ExponentialSelection

        law = VisibleSampling(
            cohort=self.cohort(num_clients), participation_cap=self.participation_cap
        )
        return ExponentialSelection(
            law,
            epsilon=self.epsilon,
            utility=self.utility,
            utility_high=self.utility_high,
            records_per_client=self.records_per_client,
        )


@dataclass(kw_only=True)
class PublicSettings(SelectionSettings):
    """A public list: the client that has waited longest comes first. Everybody may see the cohort.

    Attributes:
        participation_cap: Most rounds of one client; null charges every round.
    """

    name: str = tracked("public")
    participation_cap: int | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("selection.participation_cap", self.participation_cap, 1)

    def make(self, num_clients: int, *, separation: int = 1) -> Selection:
        """Return the selection.

        Args:
            num_clients: Number of clients of the roster.
            separation: Least number of rounds from one participation of a client to the next.
        """
        from fl_dp.accounting import VisibleSampling
        from fl_dp.strategies import PublicSelection

        law = VisibleSampling(
            cohort=self.cohort(num_clients),
            participation_cap=self.participation_cap,
            separation=separation,
        )
        return PublicSelection(law)


@dataclass(kw_only=True)
class BufferedSettings(SelectionSettings):
    """Releases of the answers that come first, which wait for no slow client.

    Attributes:
        participation_cap: Most releases of one client; null charges every one.
        concurrency: Clients asked at any time; null is twice the answers of a release.
        max_staleness: Releases after which an answer counts as zero.
        staleness_power: An answer that is `s` releases old weighs (1 + s) to minus this power; 0
            weighs all 1.
    """

    name: str = tracked("buffered")
    participation_cap: int | None = tracked(None)
    concurrency: int | None = tracked(None)
    max_staleness: int = tracked(10)
    staleness_power: float = tracked(0.5)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for key, least in (("participation_cap", 1), ("concurrency", 1), ("max_staleness", 0)):
            at_least(f"selection.{key}", getattr(self, key), least)
        if not (math.isfinite(self.staleness_power) and self.staleness_power >= 0.0):
            raise OptionError(
                "selection.staleness_power must be finite and not negative: an old answer must "
                f"not weigh more than a new one, got {self.staleness_power}"
            )

    def make(self, num_clients: int) -> Selection:
        """Return the selection."""
        from fl_dp.accounting.sampling import BufferedSampling
        from fl_dp.strategies import BufferedSelection

        law = BufferedSampling(
            cohort=self.cohort(num_clients), participation_cap=self.participation_cap
        )
        return BufferedSelection(
            law,
            concurrency=self.concurrency,
            max_staleness=self.max_staleness,
            staleness_power=self.staleness_power,
        )


@dataclass(kw_only=True)
class OwnBudgetsSettings(SelectionSettings):
    """A rate or a noise of its own for each group, which has its own epsilon.

    Attributes:
        budgets: Epsilon of each group, increasing; the last is `privacy.epsilon`.
        shares: Public share of the clients in each group.
        owners: Absolute, public file with a line `name: epsilon` per node (by `dp-unit-name`), in
            place of `budgets` and `shares`.
    """

    name: str = tracked("own_budgets")
    budgets: list[float] | None = tracked(None)
    shares: list[float] | None = tracked(None)
    owners: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        absolute("selection.owners", self.owners)

    def epsilon_of(self) -> dict[str, float] | None:
        """Return the epsilon of each node by its name; None: clients are dealt to the groups.

        Raises:
            OptionError: If the file can't be read, or a line is not a name with an epsilon.
        """
        if self.owners is None:
            return None
        import yaml

        try:
            content = yaml.safe_load(Path(self.owners).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise OptionError(f"selection.owners={self.owners} can't be read: {error}") from error
        named: dict[str, float] = {}
        lines = content.items() if isinstance(content, dict) else [(None, content)]
        for name, epsilon in lines:
            if not isinstance(name, str) or type(epsilon) not in (int, float):
                raise OptionError(
                    f"selection.owners={self.owners} must have lines like 'hospital-a: 3', "
                    f"got {name!r}: {epsilon!r}"
                )
            named[name] = float(epsilon)
        return named

    def make(self, num_clients: int) -> Selection:
        """Return the selection; a plan still has to find its rates."""
        from fl_dp.accounting import OwnRatesSampling
        from fl_dp.strategies import LawSelection

        budgets, shares, owners = self.budgets or [], self.shares or [], self.epsilon_of()
        if (owners is None) != bool(budgets and shares):
            raise OptionError(
                "selection=own_budgets needs selection.budgets=[1,3,8] and "
                "selection.shares=[0.5,0.3,0.2], or a file, selection.owners=..., and not both"
            )
        if owners is not None:
            if len(owners) != num_clients:
                raise OptionError(
                    f"selection.owners names {len(owners)} nodes, and the training has "
                    f"task.num_clients={num_clients}"
                )
            sizes = Counter(owners.values())
            budgets = sorted(sizes)
            shares = [sizes[epsilon] / num_clients for epsilon in budgets]
        law = OwnRatesSampling.at(self.sampling_rate, budgets=budgets, shares=shares)
        return LawSelection(law)


SELECTIONS: tuple[SelectionSettings, ...] = (
    PoissonSettings(),
    TruncatedPoissonSettings(),
    FixedSettings(),
    PublicSettings(),
    ExponentialSettings(),
    BufferedSettings(),
    OwnBudgetsSettings(),
)
"""The options of `selection=NAME`."""
