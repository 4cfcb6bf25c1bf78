"""The options of `selection=NAME`: who takes part in each round; docs/selection.md compares them.

A selection draws by a law of the library. What makes it is a function of the number of clients, as
a run names shares of them and a law counts them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    OwnRatesSampling,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
    VisibleSampling,
)
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.option_errors import OptionError
from fl_dp.plan.hosting import Hosting

from .checks import AbsolutePath, Count, Natural, Positive, fraction
from .option import KeyRule, MadeBy, Option, key, made_by, option

if TYPE_CHECKING:
    from fl_dp.strategies import Selection


def _rate(name: str, value: float) -> None:
    fraction(name, value, "it is a probability, for example 0.1 for a tenth of the clients a round")


def _staleness_power(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0.0):
        raise OptionError(
            f"{name} must be finite and not negative: an old answer must not weigh more than a "
            f"new one, got {value}",
            option=name,
        )


Rate = Annotated[float, _rate]
"""Expected share of the clients in each round."""


def cohort(sampling_rate: float, num_clients: int) -> int:
    """Return the number of clients that take part, at least one."""
    return max(1, round(sampling_rate * num_clients))


def poisson(
    num_clients: int,
    groups: int | None = None,
    *,
    sampling_rate: Rate = 0.25,
    participation_cap: Count | None = None,
) -> Selection:
    """Return a secret coin for each client and round.

    Args:
        num_clients: Number of clients of the roster.
        groups: Number of public groups that take turns; None: all have each turn.
        sampling_rate: Expected share of the clients in each round, in (0, 1]; under `buffered`, the
            share whose answers trigger a release.
        participation_cap: Most rounds of one client; None charges every round. Under `poisson` it
            needs `selection.sampling_rate=1`.
    """
    rate = _rate_inside(groups, sampling_rate)
    law = PoissonSampling(sampling_rate=rate, participation_cap=participation_cap)
    return _by_law(law if groups is None else CyclicSampling(groups=groups, inside=law))


def truncated_poisson(
    num_clients: int,
    groups: int | None = None,
    *,
    sampling_rate: Rate = 0.25,
    max_cohort: Count | None = None,
) -> Selection:
    """Return a secret coin for each client and round, and a largest cohort.

    Args:
        num_clients: Number of clients of the roster.
        groups: As for `poisson`.
        sampling_rate: As for `poisson`.
        max_cohort: Largest cohort; None is the expected one plus 4.5 times its square root.
    """
    rate, units = _rate_inside(groups, sampling_rate), math.ceil(num_clients / (groups or 1))
    law = TruncatedPoissonSampling.comfortable(rate, units)
    if max_cohort is not None:
        law = replace(law, max_cohort=max_cohort)
    return _by_law(law if groups is None else CyclicSampling(groups=groups, inside=law))


def fixed(num_clients: int, *, sampling_rate: Rate = 0.25) -> Selection:
    """Return a cohort of one size, drawn at random."""
    return _by_law(FixedSizeSampling(cohort=cohort(sampling_rate, num_clients)))


def public(
    num_clients: int,
    separation: int = 1,
    *,
    sampling_rate: Rate = 0.25,
    participation_cap: Count | None = None,
) -> Selection:
    """Return a public list: the client that has waited longest comes first, and all may see it.

    Args:
        num_clients: Number of clients of the roster.
        separation: Least number of rounds from one participation of a client to the next.
        sampling_rate: As for `poisson`.
        participation_cap: As for `poisson`.
    """
    from fl_dp.strategies import PublicSelection

    size = cohort(sampling_rate, num_clients)
    law = VisibleSampling(cohort=size, participation_cap=participation_cap, separation=separation)
    return PublicSelection(law)


def exponential(
    num_clients: int,
    *,
    sampling_rate: Rate = 0.25,
    participation_cap: Count | None = None,
    epsilon: Positive = 0.05,
    utility: str = "loss",
    utility_high: Positive = 5.0,
    records_per_client: Count | None = None,
) -> Selection:
    """Return draws by the exponential mechanism, from what clients reported.

    Args:
        num_clients: Number of clients of the roster.
        sampling_rate: As for `poisson`.
        participation_cap: As for `poisson`.
        epsilon: Bounded range of one draw.
        utility: Utility to choose by: `loss`, `accuracy`, `records`, `update_norm` or `staleness`.
        utility_high: Upper end of a utility, which is clipped to [0, `utility_high`].
        records_per_client: Public lower bound on a client's records, for `privacy.unit=record`.
    """
    from fl_dp.strategies import ExponentialSelection

    size = cohort(sampling_rate, num_clients)
    return ExponentialSelection(
        VisibleSampling(cohort=size, participation_cap=participation_cap),
        epsilon=epsilon,
        utility=utility,
        utility_high=utility_high,
        records_per_client=records_per_client,
    )


def buffered(
    num_clients: int,
    *,
    sampling_rate: Rate = 0.25,
    participation_cap: Count | None = None,
    concurrency: Count | None = None,
    max_staleness: Natural = 10,
    staleness_power: Annotated[float, _staleness_power] = 0.5,
) -> Selection:
    """Return releases of the answers that come first, which wait for no slow client.

    Args:
        num_clients: Number of clients of the roster.
        sampling_rate: As for `poisson`.
        participation_cap: As for `poisson`.
        concurrency: Clients asked at any time; None is twice the answers of a release.
        max_staleness: Releases after which an answer counts as zero.
        staleness_power: An answer that is `s` releases old weighs (1 + s) to minus this power; 0
            weighs all 1.
    """
    from fl_dp.strategies import BufferedSelection

    size = cohort(sampling_rate, num_clients)
    return BufferedSelection(
        BufferedSampling(cohort=size, participation_cap=participation_cap),
        concurrency=concurrency,
        max_staleness=max_staleness,
        staleness_power=staleness_power,
    )


def own_budgets(
    num_clients: int,
    *,
    sampling_rate: Rate = 0.25,
    budgets: tuple[float, ...] | None = None,
    shares: tuple[float, ...] | None = None,
    owners: AbsolutePath | None = None,
) -> Selection:
    """Return a rate or a noise of its own for each group; a plan still has to find its rates.

    Args:
        num_clients: Number of clients of the roster.
        sampling_rate: As for `poisson`.
        budgets: Epsilon of each group, increasing; the last is `privacy.epsilon`.
        shares: Public share of the clients in each group.
        owners: Absolute, public file with a line `name: epsilon` per node (by `dp-unit-name`), in
            place of `budgets` and `shares`.
    """
    named = epsilon_of_owners(owners)
    if (named is None) != bool(budgets and shares):
        raise OptionError(
            "selection=own_budgets needs selection.budgets=[1,3,8] and "
            "selection.shares=[0.5,0.3,0.2], or a file, selection.owners=..., and not both",
            option="selection.budgets" if named is None else "selection.owners",
        )
    if named is not None:
        if len(named) != num_clients:
            raise OptionError(
                f"selection.owners names {len(named)} nodes, and the training has "
                f"task.num_clients={num_clients}",
                option="selection.owners",
            )
        sizes = Counter(named.values())
        budgets = tuple(sorted(sizes))
        shares = tuple(sizes[epsilon] / num_clients for epsilon in budgets)
    return _by_law(OwnRatesSampling.at(sampling_rate, budgets=budgets or (), shares=shares or ()))


def epsilon_of_owners(file: str | None) -> dict[str, float] | None:
    """Return the epsilon of each node by its name, as a file of owners has them; None without one.

    Raises:
        OptionError: If the file can't be read, or a line is not a name with an epsilon.
    """
    if file is None:
        return None
    import yaml

    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError(
            f"selection.owners={file} can't be read: {error}", option="selection.owners"
        ) from error
    named: dict[str, float] = {}
    lines = content.items() if isinstance(content, dict) else [(None, content)]
    for name, epsilon in lines:
        if not isinstance(name, str) or type(epsilon) not in (int, float):
            raise OptionError(
                f"selection.owners={file} must have lines like 'hospital-a: 3', "
                f"got {name!r}: {epsilon!r}",
                option="selection.owners",
            )
        named[name] = float(epsilon)
    return named


def _by_law(law: Sampling) -> Selection:
    from fl_dp.strategies import LawSelection

    return LawSelection(law)


def _rate_inside(groups: int | None, sampling_rate: float) -> float:
    """Rate inside the group whose turn it is, at which cohorts are as large as without groups."""
    rate = (groups or 1) * sampling_rate
    if rate > 1.0 + 1e-9:
        raise OptionError(
            f"each of privacy.groups={groups} groups would have to fill a cohort of "
            f"selection.sampling_rate={sampling_rate:g} alone: write at most "
            f"{math.floor(1.0 / sampling_rate + 1e-9)} groups",
            option="privacy.groups",
        )
    return min(1.0, rate)


class SelectionOption(Option):
    """Who takes part in each round.

    Attributes:
        law: Law of its cohorts, for all that have each turn.
    """

    law: ClassVar[type[Sampling]]

    if TYPE_CHECKING:
        sampling_rate: float


def _selection(
    maker: Callable[..., Selection], law: type[Sampling], *more: MadeBy, **keys: KeyRule
) -> type[SelectionOption]:
    made = made_by(maker, sampling_rate=key(), **keys)
    return option("selection", maker.__name__, made, *more, base=SelectionOption, law=law)


_COINS = made_by(Hosting, coins_at_nodes=key())

SELECTIONS: dict[str, type[SelectionOption]] = {
    made.option: made
    for made in (
        _selection(poisson, PoissonSampling, _COINS, participation_cap=key()),
        _selection(truncated_poisson, TruncatedPoissonSampling, max_cohort=key()),
        _selection(fixed, FixedSizeSampling),
        _selection(public, VisibleSampling, participation_cap=key()),
        _selection(
            exponential,
            VisibleSampling,
            participation_cap=key(),
            epsilon=key(),
            utility=key(choices=("loss", "accuracy", "records", "update_norm", "staleness")),
            utility_high=key(),
            records_per_client=key(),
        ),
        _selection(
            buffered,
            BufferedSampling,
            participation_cap=key(),
            concurrency=key(),
            max_staleness=key(),
            staleness_power=key(),
        ),
        _selection(
            own_budgets,
            OwnRatesSampling,
            budgets=key(),
            shares=key(),
            owners=key(tracked=False),
        ),
    )
}
