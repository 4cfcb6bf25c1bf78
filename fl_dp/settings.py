"""Every setting of the Flower app, typed and checked. The keys are those of `conf/`.

A setting that is out of range raises a ValueError that says what to write instead. The server sends
the resolved settings to the clients as JSON inside each train message, so that nothing depends on a
process's working directory or environment.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from fl_dp.accounting import NoiseSchedule, PlateauSchedule

SETTINGS_KEY = "fl-dp-settings"
"""Where the settings lie in a train message's ConfigRecord."""

PARTITIONS = ("iid", "dirichlet", "shards")
MODELS = ("logistic", "mlp", "cnn")
SERVER_OPTIMIZERS = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad")
SCHEDULES = ("constant", "seed_rule", "linear", "exponential", "step", "cosine", "custom")
RELATIONS = ("zero-out", "add-or-remove-one", "replace-one")


def _positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{key} must be positive and finite, got {value}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got '{value}'")


@dataclass(kw_only=True)
class TaskSettings:
    """What is learned, and how its training part is split over the clients.

    Attributes:
        name: `digits` or `fashion_mnist`.
        num_clients: Clients of the roster; one privacy unit and one Flower node each.
        partition: `iid`, `dirichlet` (label skew by `alpha`) or `shards` (by label).
        alpha: Dirichlet concentration; small values are far from iid.
        shards_per_client: Label shards that each client gets.
        data_dir: Folder of the data set; null looks where packages put it.
    """

    name: str = "digits"
    num_clients: int = 200
    partition: str = "iid"
    alpha: float = 0.5
    shards_per_client: int = 2
    data_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        _at_least("task.num_clients", self.num_clients, 1)
        _one_of("task.partition", self.partition, PARTITIONS)
        _positive("task.alpha", self.alpha)
        _at_least("task.shards_per_client", self.shards_per_client, 1)


@dataclass(kw_only=True)
class ModelSettings:
    """The model that is trained.

    Attributes:
        name: `logistic`, `mlp` or `cnn`.
        hidden: Width of the hidden layers.
    """

    name: str = "logistic"
    hidden: int = 64

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("model.name", self.name, MODELS)
        _at_least("model.hidden", self.hidden, 1)


@dataclass(kw_only=True)
class PrivacySettings:
    """Who adds the noise, and how much may leak.

    Attributes:
        mode: `central`: the server clips, sums and adds the noise.
        epsilon: The budget over the whole training; null only with a noise multiplier.
        delta: Null means `num_clients ** -1.1`.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise; null means calibrated to spend the budget.
        neighboring_relation: `zero-out`, `add-or-remove-one` (the same numbers) or `replace-one`
            (about twice the noise).
        insecure_seed: For tests and simulations only: noise and coins come from this number, and
            ledger and statement say for good that nothing is promised. Null means a secret source.
    """

    mode: str = "central"
    epsilon: float | None = 8.0
    delta: float | None = None
    noise_multiplier: float | None = None
    neighboring_relation: str = "zero-out"
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("privacy.mode", self.mode, ("central",))
        _one_of("privacy.neighboring_relation", self.neighboring_relation, RELATIONS)
        if self.insecure_seed is not None:
            _at_least("privacy.insecure_seed", self.insecure_seed, 0)
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(
                "privacy.epsilon and privacy.noise_multiplier are both null: write a budget, for "
                "example privacy.epsilon=2"
            )
        if self.epsilon is not None:
            _positive("privacy.epsilon", self.epsilon)
        if self.noise_multiplier is not None:
            _positive("privacy.noise_multiplier", self.noise_multiplier)
        if self.delta is not None and not 0.0 < self.delta < 1.0:
            raise ValueError(f"privacy.delta must lie in (0, 1), got {self.delta}")


@dataclass(kw_only=True)
class ClippingSettings:
    """How an update is bounded.

    Attributes:
        norm: L2 bound on one client's whole update.
    """

    norm: float = 0.5

    def __post_init__(self) -> None:
        """Check the value."""
        _positive("clipping.norm", self.norm)


@dataclass(kw_only=True)
class SelectionSettings:
    """Who takes part in a round.

    Attributes:
        name: `poisson`: an independent secret coin for each client.
        sampling_rate: Probability of each client in each round, in (0, 1].
    """

    name: str = "poisson"
    sampling_rate: float = 0.25

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("selection.name", self.name, ("poisson",))
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ValueError(
                f"selection.sampling_rate must lie in (0, 1], got {self.sampling_rate}: it is a "
                "probability, for example 0.1 for a tenth of the clients a round"
            )


@dataclass(kw_only=True)
class ScheduleSettings:
    """How the budget is spread over the rounds. The last six keys are those of `plateau`.

    Attributes:
        name: `constant`, `seed_rule` (full spend in the first half, then falling to `floor`),
            `linear`, `exponential`, `step`, `cosine`, `custom` or `plateau`.
        spend: `early` or `late`: where the larger part goes; null is the shape's own (early for
            `seed_rule`, late for the others).
        floor: Smallest relative spend of a round.
        levels: At most so many different noise multipliers; null gives each round its own.
        weights: Relative spend of each round, for `custom`.
        metric: Public metric of the model that the noise reacts to.
        patience: Rounds without an improvement before the noise is lowered.
        factor: What the noise is multiplied by then.
        first: Noise of the first rounds, relative to the constant noise that spends the budget.
        smallest: Least noise, relative to the same.
        min_improvement: What counts as an improvement of the metric.
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
        _one_of("schedule.name", self.name, (*SCHEDULES, "plateau"))
        _one_of("schedule.metric", self.metric, ("accuracy", "loss"))
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
        """How noise reacts, under `plateau` only."""
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


@dataclass(kw_only=True)
class ServerOptimizerSettings:
    """What the server does with a private mean update.

    Attributes:
        name: `fedavg`, `fedavgm`, `fedadam`, `fedyogi` or `fedadagrad`.
        learning_rate: Step size (all but `fedavg`): on the mean update, or for the last three about
            what a coordinate moves in a round.
        momentum: Share of the last step that is repeated (`fedavgm`).
        beta_1: Decay of the mean of updates (`fedadam`, `fedyogi`).
        beta_2: Decay of the mean of squared updates (`fedadam`, `fedyogi`).
        tau: Added to the root of the squares (the last three); updates far below it move a
            coordinate less than `learning_rate`.
    """

    name: str = "fedavgm"
    learning_rate: float = 0.3
    momentum: float = 0.9
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("server_optimizer.name", self.name, SERVER_OPTIMIZERS)
        _positive("server_optimizer.learning_rate", self.learning_rate)
        for key, value, usual in (
            ("momentum", self.momentum, 0.9),
            ("beta_1", self.beta_1, 0.9),
            ("beta_2", self.beta_2, 0.99),
        ):
            if not 0.0 <= value < 1.0:
                raise ValueError(
                    f"server_optimizer.{key} must lie in [0, 1), got {value}: write for example "
                    f"{usual}"
                )
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ValueError(
                f"server_optimizer.tau must be positive and finite, got {self.tau}: write for "
                "example 0.001, a tenth of a coordinate's mean update or less"
            )


@dataclass(kw_only=True)
class ClientSettings:
    """Training at a client: plain SGD.

    Attributes:
        learning_rate: Step size.
        epochs: Passes over the client's data in one round.
        batch_size: Examples a step.
    """

    learning_rate: float = 2.0
    epochs: int = 5
    batch_size: int = 32

    def __post_init__(self) -> None:
        """Check the values."""
        _positive("client.learning_rate", self.learning_rate)
        _at_least("client.epochs", self.epochs, 1)
        _at_least("client.batch_size", self.batch_size, 1)


@dataclass(kw_only=True)
class SimulationSettings:
    """Flower's simulation engine; not used on real nodes.

    Attributes:
        num_cpus: CPUs that Ray may use, one worker each; null means all of this machine.
        num_gpus: Share of a GPU for each worker; 0 trains on the CPU.
    """

    num_cpus: int | None = None
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.num_cpus is not None:
            _at_least("simulation.num_cpus", self.num_cpus, 1)
        if not (math.isfinite(self.num_gpus) and self.num_gpus >= 0):
            raise ValueError(f"simulation.num_gpus must not be negative, got {self.num_gpus}")


@dataclass(kw_only=True)
class Settings:
    """One run.

    Attributes:
        seed: Seeds the partition, the first weights and the clients' shuffling; never the noise or
            the sampling coins, which come from the operating system.
        rounds: Releases that are planned.
        round_timeout: Seconds until a silent client counts as a zero update.
        roster_timeout: Seconds until missing nodes are an error.
        output_dir: Absolute folder under which the run's own folder is made; null is `runs/` where
            `fl-dp run` is called, and `~/.fl-dp/runs` under a bare `flwr run`.
        run_name: Name of the run's folder; null makes one up.
    """

    seed: int = 0
    rounds: int = 100
    round_timeout: float = 3600.0
    roster_timeout: float = 60.0
    output_dir: str | None = None
    run_name: str | None = None
    task: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    clipping: ClippingSettings = field(default_factory=ClippingSettings)
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    server_optimizer: ServerOptimizerSettings = field(default_factory=ServerOptimizerSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    simulation: SimulationSettings = field(default_factory=SimulationSettings)

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        _at_least("rounds", self.rounds, 1)
        _positive("round_timeout", self.round_timeout)
        _positive("roster_timeout", self.roster_timeout)
        if self.run_name is not None and (
            not self.run_name or set(self.run_name) & set("/\\") or self.run_name in (".", "..")
        ):
            raise ValueError(f"run_name must be a plain folder name, got '{self.run_name}'")

    def to_json(self) -> str:
        """Return the settings as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        groups = {
            "task": TaskSettings,
            "model": ModelSettings,
            "privacy": PrivacySettings,
            "clipping": ClippingSettings,
            "selection": SelectionSettings,
            "schedule": ScheduleSettings,
            "server_optimizer": ServerOptimizerSettings,
            "client": ClientSettings,
            "simulation": SimulationSettings,
        }
        return cls(**values | {key: group(**values[key]) for key, group in groups.items()})
