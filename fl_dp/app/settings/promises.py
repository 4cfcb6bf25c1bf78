"""The options of `privacy=NAME`: the promise, by the kind of plan that fulfils it.

`none` and `dp_sgd` promise nothing to clients and have no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from fl_dp.accounting import PrivacyBudget, default_delta
from fl_dp.arguments import hints_of
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.schemes import SCHEMES
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan
from fl_dp.plan.as_json import KINDS

from .checks import (
    AbsolutePath,
    Count,
    Natural,
    Positive,
    account_name,
    between_0_and_1,
    epsilon_and_delta,
    positive,
)
from .correlation import banded, rounds_apart
from .fitting import Fitting, fitting_of
from .option import KeyRule, MadeBy, Option, key, made_by, option
from .secure_sum import OF_CLIENTS, OF_RECORDS


def budget(
    num_units: Callable[[], int],
    *,
    epsilon: Positive | None = 8.0,
    delta: Annotated[float, between_0_and_1] | None = None,
) -> PrivacyBudget:
    """Return the budget of each unit.

    Args:
        num_units: Counts the units, which may need the data.
        epsilon: Budget of each unit over the whole training; None only with a noise multiplier.
        delta: Probability with which epsilon may fail; None is the number of units to the power of
            -1.1.
    """
    if delta is None:
        delta = default_delta(num_units())
    return PrivacyBudget(epsilon=epsilon or 1.0, delta=delta)


def witness(*, witness_dir: AbsolutePath | None = None) -> str | None:
    """Return the folder of a witness of each run's ledger.

    Args:
        witness_dir: Absolute folder on another disk that notes each ledger's length: an older copy
            is refused. None: none.
    """
    return witness_dir


def account(
    *,
    account: Annotated[str, account_name] | None = None,
    account_cap: Annotated[list[float], epsilon_and_delta] | None = None,
) -> tuple[str | None, PrivacyBudget | None]:
    """Return name and cap of the account that a run's budget is added to.

    Args:
        account: Account of all runs on the same people: a name (a file beside the runs), a whole
            path, or a database URL. None: one for each data set of your own; public data have none.
        account_cap: Largest `[epsilon, delta]` of all runs of the account, fixed when it is made,
            for the unit and neighbours of its first run. None: that of the account, or no cap.
    """
    if account_cap is None:
        return account, None
    return account, PrivacyBudget(epsilon=account_cap[0], delta=account_cap[1])


def randomness(*, insecure_seed: Natural | None = None) -> SecureRandom:
    """Return the source of the server's noise and coins.

    Args:
        insecure_seed: For tests and simulations only: seed of the server's noise and coins, which
            ledger and statement report for good.
    """
    return SecureRandom(insecure_seed=insecure_seed)


def record_roster(
    num_clients: int,
    count: Callable[[], int],
    *,
    num_records: Count | None = None,
    max_records: Count | None = None,
) -> dict[str, int]:
    """Return the fields of a plan whose units are records.

    Args:
        num_clients: Number of clients.
        count: Counts the training part of the server.
        num_records: About how many records all clients have; None counts the server's training
            part, if it has one.
        max_records: Most records of one client, public; None is all of them.

    Raises:
        OptionError: If the clients can't have as many.
    """
    records = count() if num_records is None else num_records
    most = max_records or records
    if num_clients * most < records:
        raise OptionError(
            f"{num_clients} clients of at most privacy.max_records={most} records do not have "
            f"privacy.num_records={records}: raise the first or lower the second",
            option="privacy.max_records",
        )
    return {"num_records": records, "max_records": most}


class PromiseOption(Option):
    """The promise.

    Attributes:
        kind: The kind of plan that fulfils it; None: it promises nothing to clients.
        fitting: What goes with it.
        unit: The unit that it protects, `client` or `record`, where no key says so.
    """

    kind: ClassVar[type[Plan] | None] = None
    fitting: ClassVar[Fitting]
    noised_by: ClassVar[str] = "nobody"  # or "server", "nodes" by shares, "clients" each
    unit: ClassVar[str] = "client"

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.kind is not None and self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "privacy.epsilon and privacy.noise_multiplier are both null: write a "
                "budget, for example privacy.epsilon=2",
                option="privacy.epsilon",
            )

    def of_plan(self) -> dict[str, Any]:
        """Return the fields of the plan that are keys of the promise."""
        assert self.kind is not None  # as `Settings.promise` checks
        return self.arguments(self.kind)

    def rng(self) -> SecureRandom:
        """Return a new source of the server's noise and coins."""
        return randomness(insecure_seed=self.get("insecure_seed"))


_RELATION = made_by(Plan, neighboring_relation=key())
_ACCOUNT = made_by(account, account=key(tracked=False), account_cap=key())
_SEED = made_by(randomness, insecure_seed=key(tracked=False))


def _promise(name: str, fitting: Fitting, *makers: MadeBy, **own: Any) -> type[PromiseOption]:
    made = option("privacy", name, *makers, base=PromiseOption, chosen_by="mode", **own)
    made.fitting = fitting
    return made


def _planned(
    name: str,
    *more: MadeBy,
    plan: str | None = None,
    statistics: tuple[str, ...] = (),
    **keys: KeyRule,
) -> type[PromiseOption]:
    """Return the promise that a kind of plan fulfils, with its own fields among `keys`.

    The kind is called like the promise, unless `plan` names it.
    """
    kind = KINDS[plan or name]
    noised_by = "nodes" if kind.masked else "server" if kind.of_sums else "clients"
    makers = (
        made_by(budget, epsilon=key(), delta=key()),
        made_by(
            kind,
            neighboring_relation=key(),
            noise_multiplier=key(check=positive),
            contribution_check=key(),
            **keys,
        ),
        made_by(witness, witness_dir=key(tracked=False)),
        _ACCOUNT,
        *([_SEED] if noised_by == "server" else []),
        *more,
    )
    of_kind = {"kind": kind, "noised_by": noised_by}
    if "max_records" in hints_of(kind):
        of_kind["unit"] = "record"
    return _promise(name, fitting_of(kind, *statistics), *makers, **of_kind)


PROMISES: dict[str, type[PromiseOption]] = {
    made.option: made
    for made in (
        _planned("central", unit=key(), statistics=("statistic.query", "statistic.law")),
        _planned(
            "correlated",
            made_by(rounds_apart, separation=key(), groups=key()),
            made_by(banded, bands=key()),
            unit=key(),
        ),
        _planned("buffered"),
        _planned("grouped"),
        _planned("local", unit=key(), scheme=key(choices=tuple(SCHEMES))),
        _planned(
            "distributed", secure_sum=key(default=OF_CLIENTS), statistics=("statistic.query",)
        ),
        _planned(
            "distributed_records",
            made_by(record_roster, num_records=key(), max_records=key()),
            secure_sum=key(default=OF_RECORDS),
        ),
        _promise("dp_sgd", Fitting(dp_sgd=("on",)), _RELATION, _ACCOUNT),
        _promise(
            "none", Fitting(dp_sgd=("off",), keys=("weight_cap",)), _RELATION, _ACCOUNT, _SEED
        ),
    )
}
