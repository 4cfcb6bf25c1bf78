"""Settings of the promise, a class for each `privacy=NAME`, and the options that each allows.

`privacy=NAME` names a kind of plan, a class of `fl_dp.plan.as_json.KINDS`. `none` and `dp_sgd`
promise nothing to clients and have no such plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, between_0_and_1, choices, positive, tracked
from .clippings import CLIPPINGS
from .schedules import SCHEDULES
from .secure_sum import SecureSumSettings
from .selections import SELECTIONS

if TYPE_CHECKING:
    from fl_dp.plan import Plan

_METRICS = ("metrics.loss", "metrics.accuracy", "metrics.scalar_noise_std")
_WEIGHTS = ("weight_cap", "total_weight")
_HELD_OUT = "metrics.private_epsilon"
_CAP = "selection.participation_cap"
_COINS = "selection.coins_at_nodes"
_UNITS = "simulation.units_per_node"
_STATISTIC = "statistic.query"
_OF_ONE_KIND = ("buffered", "own_budgets")  # of clients as units, with plans of their own
_EACH_SELECTION = tuple(option.name for option in SELECTIONS if option.name not in _OF_ONE_KIND)
_EACH_CLIPPING = tuple(CLIPPINGS)
_EACH_SCHEDULE = tuple(SCHEDULES)


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Options of other groups that a promise allows; the first of each is the default.

    Attributes:
        selection: Options that choose who takes part.
        clipping: Options of the bound on an update.
        schedule: Options that spread the budget over the rounds.
        dp_sgd: Whether clients may, or must, train by DP-SGD.
        keys: Keys of `fitting.KEYS` that it allows.
    """

    selection: tuple[str, ...] = ("poisson", "truncated_poisson", "fixed", "public")
    clipping: tuple[str, ...] = ("fixed",)
    schedule: tuple[str, ...] = ("constant",)
    dp_sgd: tuple[str, ...] = ("off", "on")
    keys: tuple[str, ...] = ()


@dataclass(kw_only=True)
class PrivacySettings:
    """The promise.

    Attributes:
        mode: Option of the group.
        neighboring_relation: `zero-out`, `add-or-remove-one` (the same numbers) or `replace-one`
            (about twice the noise).
    """

    fitting: ClassVar[Fitting]
    noised_by: ClassVar[str] = "nobody"  # or "server", "nodes" by shares, "clients" each
    mode: str = tracked("")
    neighboring_relation: str = tracked("zero-out")

    def __post_init__(self) -> None:
        """Check the values."""
        choices("privacy", self)

    def __str__(self) -> str:
        """Return the option."""
        return self.mode

    @property
    def unit(self) -> str:
        """The unit of the promise: `client` or `record`."""
        return "client"

    @property
    def epsilon(self) -> float | None:
        """The budget of a unit; None: no budget, or a noise multiplier determines it."""
        return None

    @property
    def delta(self) -> float | None:
        """The probability with which epsilon may fail; None: chosen by the number of units."""
        return None

    @property
    def noise_multiplier(self) -> float | None:
        """Noise standard deviation over the clipping norm; None: calibrated, or no noise."""
        return None

    @property
    def contribution_check(self) -> bool:
        """Whether a run to which no client contributes is ended."""
        return False

    @property
    def witness_dir(self) -> str | None:
        """Folder of a witness of each run's ledger; None: no witness."""
        return None

    @property
    def insecure_seed(self) -> int | None:
        """Seed of the server's noise and coins; None: secret randomness."""
        return None

    @property
    def scheme(self) -> str | None:
        """Noise that the clients add; None: none of their own."""
        return None

    @property
    def sums(self) -> SecureSumSettings | None:
        """Secure sums, in which each node adds a share of the noise; None: no secure sums."""
        return None

    @property
    def num_records(self) -> int | None:
        """Declared number of records, where records are the units; None: not declared."""
        return None


@dataclass(kw_only=True)
class NonePrivacySettings(PrivacySettings):
    """No promise to anybody.

    Attributes:
        insecure_seed: For tests and simulations only: seed of the server's noise and coins, which
            ledger and statement report for good.
    """

    fitting = Fitting(dp_sgd=("off",), keys=("weight_cap",))
    mode: str = tracked("none")
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("privacy.insecure_seed", self.insecure_seed, 0)


@dataclass(kw_only=True)
class DPSGDPrivacySettings(PrivacySettings):
    """Records alone are protected, by DP-SGD inside clients."""

    fitting = Fitting(dp_sgd=("on",))
    mode: str = tracked("dp_sgd")


@dataclass(kw_only=True)
class PromiseSettings(PrivacySettings):
    """A promise to each unit, by a plan.

    Attributes:
        epsilon: Budget of each unit over the whole training; null only with a noise multiplier.
        delta: Probability with which epsilon may fail; null is the number of units to the power of
            -1.1.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise. Null: what spends the budget.
        contribution_check: End a run to which no client contributes, by a noisy count in each
            round, for at most 1 % more noise (5 % with few clients or rounds).
        witness_dir: Absolute folder on another disk that notes each ledger's length: an older copy
            is refused. Null: none.
    """

    epsilon: float | None = tracked(8.0)
    delta: float | None = tracked(None)
    noise_multiplier: float | None = tracked(None)
    contribution_check: bool = tracked(True)
    witness_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "privacy.epsilon and privacy.noise_multiplier are both null: write a "
                "budget, for example privacy.epsilon=2"
            )
        positive("privacy.epsilon", self.epsilon)
        positive("privacy.noise_multiplier", self.noise_multiplier)
        between_0_and_1("privacy.delta", self.delta)
        absolute("privacy.witness_dir", self.witness_dir)

    @property
    def kind(self) -> type[Plan]:
        """The kind of plan that fulfils the promise."""
        from fl_dp.plan.as_json import KINDS  # with SciPy, which no client's settings need

        return KINDS[self.mode]

    @property
    def own_fields(self) -> dict[str, Any]:
        """Fields of the plan that are set by these keys alone."""
        return {}


@dataclass(kw_only=True)
class ServerPromiseSettings(PromiseSettings):
    """The server clips, sums and adds the noise.

    Attributes:
        insecure_seed: For tests and simulations only: seed of the server's noise and coins, which
            ledger and statement report for good.
    """

    noised_by = "server"
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("privacy.insecure_seed", self.insecure_seed, 0)


@dataclass(kw_only=True)
class CentralPrivacySettings(ServerPromiseSettings):
    """The server clips, sums and adds new noise in each round.

    Attributes:
        unit: `client`, or `record` (one record; needs `replace-one`).
    """

    fitting = Fitting(
        selection=_EACH_SELECTION,
        clipping=_EACH_CLIPPING,
        schedule=_EACH_SCHEDULE,
        keys=(
            *(*_METRICS, _HELD_OUT, *_WEIGHTS, _UNITS, _COINS, _CAP),
            *(_STATISTIC, "statistic.law"),
        ),
    )
    mode: str = tracked("central")
    unit: str = tracked("client")

    @property
    def own_fields(self) -> dict[str, Any]:
        """The unit."""
        return {"unit": self.unit}


@dataclass(kw_only=True)
class CorrelatedPrivacySettings(CentralPrivacySettings):
    """The server's noise of one round is partly taken away again in later ones.

    Attributes:
        separation: With `selection=public`, least distance in rounds between two participations of
            a client; null is the largest that the roster allows.
        groups: With `selection=poisson` or `truncated_poisson`, number of public groups that take
            turns; required.
        bands: Rounds that one draw of noise reaches; the server keeps one vector less. Null: the
            distance of a client's rounds, or what fits into 1 GiB.
    """

    fitting = Fitting(
        selection=("poisson", "truncated_poisson", "public"),
        clipping=_EACH_CLIPPING,
        keys=(*_METRICS, _HELD_OUT, *_WEIGHTS, _UNITS, _CAP),
    )
    mode: str = tracked("correlated")
    separation: int | None = tracked(None)
    groups: int | None = tracked(None)
    bands: int | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for key in ("separation", "groups", "bands"):
            at_least(f"privacy.{key}", getattr(self, key), 2)


@dataclass(kw_only=True)
class BufferedPrivacySettings(ServerPromiseSettings):
    """The server releases the next answers, with new noise, whenever a buffer of them is full."""

    fitting = Fitting(
        selection=("buffered",),
        clipping=_EACH_CLIPPING,
        keys=(*_METRICS, _HELD_OUT, _CAP),
    )
    mode: str = tracked("buffered")


@dataclass(kw_only=True)
class GroupedPrivacySettings(ServerPromiseSettings):
    """Public groups have budgets of their own, and each takes part as often as its own allows."""

    fitting = Fitting(
        selection=("own_budgets",),
        clipping=_EACH_CLIPPING,
        keys=(*_METRICS, _HELD_OUT),
    )
    mode: str = tracked("grouped")


@dataclass(kw_only=True)
class LocalPrivacySettings(PromiseSettings):
    """Each client clips and adds noise itself, and sends nothing else.

    Attributes:
        unit: `client`, or `record` (one record; needs `replace-one`).
        scheme: The clients' noise: `gaussian`, `laplace` or `exponential`.
    """

    fitting = Fitting(
        selection=("poisson", "public", "own_budgets"), schedule=_EACH_SCHEDULE, keys=(_CAP,)
    )
    noised_by = "clients"
    mode: str = tracked("local")
    unit: str = tracked("client")
    scheme: str = tracked("gaussian")

    @property
    def own_fields(self) -> dict[str, Any]:
        """Unit and scheme."""
        return {"unit": self.unit, "scheme": self.scheme}


@dataclass(kw_only=True)
class DistributedPrivacySettings(PromiseSettings):
    """Each node adds a share of the noise, and the server sees only sums."""

    fitting = Fitting(
        selection=("poisson", "public"),
        clipping=_EACH_CLIPPING,
        schedule=_EACH_SCHEDULE,
        keys=(*_METRICS, _HELD_OUT, _UNITS, _COINS, _STATISTIC),
    )
    noised_by = "nodes"
    mode: str = tracked("distributed")
    secure_sum: SecureSumSettings = field(default_factory=SecureSumSettings)

    @property
    def sums(self) -> SecureSumSettings:
        """Secure sums, in which each node adds a share of the noise."""
        return self.secure_sum

    @property
    def own_fields(self) -> dict[str, Any]:
        """The terms of secure sums."""
        return {"secure_sum": self.secure_sum.options}


def _sums_of_records() -> SecureSumSettings:
    return SecureSumSettings(reply_after=10.0)  # required for records' coins at the nodes


@dataclass(kw_only=True)
class DistributedRecordsPrivacySettings(DistributedPrivacySettings):
    """Records are the units: each round is a step of DP-SGD on the records of all clients.

    A client adds up the clipped gradients of its records and a share of the noise. It flips their
    coins itself: `selection.sampling_rate` is that of records.

    Attributes:
        num_records: About how many records all clients have; null counts the server's training
            part, if it has one.
        max_records: Most records of one client, public; null is all of them.
    """

    fitting = Fitting(selection=("poisson",), schedule=_EACH_SCHEDULE, dp_sgd=("off",))
    mode: str = tracked("distributed_records")
    secure_sum: SecureSumSettings = field(default_factory=_sums_of_records)
    num_records: int | None = tracked(None)
    max_records: int | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for key in ("num_records", "max_records"):
            at_least(f"privacy.{key}", getattr(self, key), 1)

    @property
    def unit(self) -> str:
        """One record."""
        return "record"


PROMISES: tuple[PrivacySettings, ...] = (
    CentralPrivacySettings(),
    CorrelatedPrivacySettings(),
    BufferedPrivacySettings(),
    GroupedPrivacySettings(),
    LocalPrivacySettings(),
    DistributedPrivacySettings(),
    DistributedRecordsPrivacySettings(),
    DPSGDPrivacySettings(),
    NonePrivacySettings(),
)
"""The options of `privacy=NAME`."""
