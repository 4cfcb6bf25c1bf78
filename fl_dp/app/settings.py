"""Every setting of the Flower app, typed and checked. The keys are those of `conf/`.

A setting that is out of range raises a ValueError that says what to write instead. The server sends
the resolved settings to the clients as JSON inside each train message, so that nothing depends on a
process's working directory or environment.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dp.accounting.incompatible import IncompatibleOptions
from fl_dp.accounting.schedules import NoiseSchedule, PlateauSchedule
from fl_dp.datasets import DATASETS, OWN_DATA
from fl_dp.updates.compression_options import DOWNLINKS, UPLINKS, CompressionOptions

if TYPE_CHECKING:
    from fl_dp.updates import Compression

SETTINGS_KEY = "fl-dp-settings"
"""Where the settings lie in a train message's ConfigRecord."""

CHOICES = {
    "task.name": DATASETS,
    "task.partition": ("iid", "dirichlet", "shards", "natural", "nodes"),
    "model.name": ("logistic", "mlp", "cnn", "resnet18", "gru", "lstm"),
    "privacy.mode": ("central", "local", "dp_sgd", "none"),
    "privacy.scheme": ("gaussian", "laplace", "exponential"),
    "privacy.unit": ("client", "record"),
    "privacy.neighboring_relation": ("zero-out", "add-or-remove-one", "replace-one"),
    "dp_sgd.grad_sample_mode": ("hooks", "functorch", "ghost"),
    "clipping.name": ("fixed", "adaptive", "per_layer"),
    "selection.name": (
        *("poisson", "truncated_poisson", "fixed", "exponential", "dp_utility", "public"),
    ),
    "selection.coins": ("server", "nodes"),
    "selection.utility": ("loss", "accuracy", "records", "update_norm", "staleness"),
    "schedule.name": (
        *("constant", "seed_rule", "linear", "exponential", "step", "cosine", "custom"),
        "plateau",
    ),
    "schedule.spend": ("early", "late"),
    "schedule.metric": ("accuracy", "loss"),
    "server_optimizer.name": ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad"),
    "compression.up": UPLINKS,
    "compression.down": DOWNLINKS,
}
"""The values of each key that takes one of a few names."""

UTILITIES_OF_EVERYBODY = CHOICES["selection.utility"][:3]
"""What the server can ask everybody for; the others it sees of participants alone."""


def _positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{key} must be positive and finite, got {value}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")


def _fraction(key: str, value: float, meaning: str) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{key} must lie in (0, 1], got {value}: {meaning}")


def _range(key: str, values: list[float] | None) -> None:
    if values is None:
        return
    if len(values) != 2 or not all(map(math.isfinite, values)) or not values[0] < values[1]:
        raise ValueError(f"{key} must be two numbers, the lower first, like [0, 5], got {values}")


def _distinct(key: str, values: list[str] | None, *, least: int) -> None:
    if values is not None and (len(values) < least or len(set(values)) < len(values)):
        raise ValueError(f"{key} must be at least {least} different names, got {values}")


def _one_of(key: str, value: str) -> None:
    known = CHOICES[key]
    if value not in known:
        nearest = "".join(f": did you mean {near}?" for near in get_close_matches(value, known, 1))
        raise ValueError(f"{key} must be one of {', '.join(known)}, got '{value}'{nearest}")


_OWN_DATA_KEYS = (
    *("classes", "label_column", "client_column", "columns", "image_shape", "mean", "std"),
    "test_fraction",
)


@dataclass(kw_only=True)
class TaskSettings:
    """What is learned, and how its training part is split over the clients.

    Attributes:
        name: `digits`, `breast_cancer`, `fashion_mnist`, `mnist`, `cifar10`, `adult`,
            `lending_club` or `shakespeare`; `csv`, `parquet` or
            `folder` for your own data.
        num_clients: Clients of the roster; one privacy unit each, on a Flower node of its own
            unless `simulation.units_per_node` is above 1.
        partition: `iid`, `dirichlet` (label skew by `alpha`), `shards` (by label), `natural` (the
            clients that the data set names; with fewer `num_clients` those with the most records)
            or `nodes` (no split: every SuperNode brings its own data).
        alpha: Dirichlet concentration; small values are far from iid.
        shards_per_client: Label shards that each client gets.
        data_dir: Folder of the data set; null looks where packages and `fl-dp data` put it.
        classes: Your own data: names of the classes in the order of their labels; null takes
            integers from 0, or the folders' names, as they occur.
        label_column: Your own tables: column of the label.
        client_column: Your own tables: column that names each row's client, for
            `task.partition=natural`.
        columns: Your own tables: columns that are features; null takes all others.
        image_shape: Your own images: `[channels, height, width]`, with 1 or 3 channels; null takes
            that of the first image.
        mean: Your own data: what is subtracted, one public number a column, or a channel of the
            pixels over 255; null takes the numbers as they are.
        std: What the rest is divided by, like `mean`.
        test_fraction: Your own data: share of the training rows that is held out where there is no
            test part, the same rows in every run.
    """

    name: str = "digits"
    num_clients: int = 200
    partition: str = "iid"
    alpha: float = 0.5
    shards_per_client: int = 2
    data_dir: str | None = None
    classes: list[str] | None = None
    label_column: str = "label"
    client_column: str | None = None
    columns: list[str] | None = None
    image_shape: list[int] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    test_fraction: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("task.name", self.name)
        _at_least("task.num_clients", self.num_clients, 1)
        _one_of("task.partition", self.partition)
        _positive("task.alpha", self.alpha)
        _at_least("task.shards_per_client", self.shards_per_client, 1)
        self._check_own_data()

    def _check_own_data(self) -> None:
        for key in _OWN_DATA_KEYS:
            default = self.__dataclass_fields__[key].default
            if self.name not in OWN_DATA and getattr(self, key) != default:
                raise ValueError(
                    f"task.{key} is for your own data (task=csv, task=parquet or task=folder): "
                    f"leave it out of task={self.name}"
                )
        _distinct("task.classes", self.classes, least=2)
        _distinct("task.columns", self.columns, least=1)
        for key, column in (("label", self.label_column), ("client", self.client_column)):
            if column in (self.columns or ()):
                raise ValueError(
                    f"task.columns has '{column}', which is task.{key}_column: it can't be a "
                    "feature, leave it out of one of them"
                )
        if self.client_column == self.label_column:
            raise ValueError(f"task.client_column and task.label_column are both '{column}'")
        shape = [1, 1, 1] if self.image_shape is None else self.image_shape
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
            raise ValueError(
                "task.image_shape must be [channels, height, width] with 1 or 3 channels, "
                f"got {self.image_shape}"
            )
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise ValueError(
                "task.mean and task.std belong together: write as many numbers in both, got "
                f"{self.mean} and {self.std}"
            )
        for std in self.std or ():
            _positive("task.std", std)
        if not all(map(math.isfinite, self.mean or ())):
            raise ValueError(f"task.mean must be finite, got {self.mean}")
        if self.test_fraction is not None and not 0.0 < self.test_fraction < 1.0:
            raise ValueError(f"task.test_fraction must lie in (0, 1), got {self.test_fraction}")


@dataclass(kw_only=True)
class ModelSettings:
    """The model that is trained.

    Attributes:
        name: `logistic`, `mlp`, `cnn` or `resnet18` (GroupNorm, no max-pooling: 11.2 million
            parameters on CIFAR-10, 45 MB a message); for tokens `gru` or `lstm` (one layer; both
            need Opacus, which comes with `fl-dp[torch]`).
        hidden: Width of the hidden layers; of `resnet18` the channels of its first stage, which the
            next three double; of `gru` and `lstm` the hidden state.
    """

    name: str = "logistic"
    hidden: int = 64

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("model.name", self.name)
        _at_least("model.hidden", self.hidden, 1)


@dataclass(kw_only=True)
class PrivacySettings:
    """Who adds the noise, and how much may leak.

    Attributes:
        mode: `central`: the server clips, sums and adds the noise. `local`: each client clips and
            adds noise itself, and sends nothing else. `example`: each client protects its records
            by DP-SGD (`dp_sgd`), whoever sees its models. `none`: nothing is private, for
            comparison.
        scheme: The clients' noise in `local` mode: `gaussian`, `laplace` or `exponential`.
        unit: `client`, or `example`: one record; needs `replace-one`.
        epsilon: The budget over the whole training; null only with a noise multiplier.
        delta: Null means `num_clients ** -1.1`; with `example`, `dp_sgd.delta`.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise (with `example`, of each step); null means calibrated to spend the
            budget.
        neighboring_relation: `zero-out`, `add-or-remove-one` (the same numbers) or `replace-one`
            (about twice the noise).
        contribution_check: End a run to which nobody contributes: each round also releases a noisy
            count of its contributions, for at most 1 % more noise on the updates (5 % with few
            clients or rounds).
        insecure_seed: For tests and simulations only: noise and coins come from this number, and
            ledger and statement say for good that nothing is promised. Null means a secret source.
    """

    mode: str = "central"
    scheme: str = "gaussian"
    unit: str = "client"
    epsilon: float | None = 8.0
    delta: float | None = None
    noise_multiplier: float | None = None
    neighboring_relation: str = "zero-out"
    contribution_check: bool = True
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("privacy.mode", self.mode)
        _one_of("privacy.scheme", self.scheme)
        _one_of("privacy.unit", self.unit)
        _one_of("privacy.neighboring_relation", self.neighboring_relation)
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
class DPSGDSettings:
    """DP-SGD inside each client: record-level privacy, by itself or under another mode.

    Attributes:
        epsilon: The budget of each client's records over everything that its node ever releases.
            Null: with `privacy.mode=dp_sgd` it is `privacy.epsilon`; in other modes clients train
            without DP-SGD, unless there is a `noise_multiplier`.
        delta: The delta that goes with it; below one over a client's records.
        noise_multiplier: Noise standard deviation on a step's sum of gradients over the clipping
            norm; null means calibrated.
        clipping_norm: L2 bound on the gradient of one record.
        sampling_rate: Probability of each record in each step, in (0, 1]; the same for all clients.
        steps: Steps of one round; null means `client.epochs / sampling_rate`.
        participations: Rounds of one client that the noise is calibrated for, after which it
            contributes nothing; null means what almost all will stay below, given
            `selection.sampling_rate`.
        expected_batch_size: Public constant that a step's sum is divided by; null means
            `sampling_rate` times the client's own number of records, which is then public.
        grad_sample_mode: How Opacus gets each record's gradient: `hooks` (fastest for most),
            `functorch` (any layer) or `ghost` (never in memory: for large models).
        physical_batch_size: At most so many records in memory at once; null means no limit.
        secure_randomness: Noise and coins from the operating system's randomness; false takes
            torch's generator, as plain Opacus does, and is for comparisons only.
        ledger_dir: Absolute folder of the simulated nodes' ledgers, to go on spending from in
            another run; null means inside the run's folder. Real nodes name their own.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    clipping_norm: float = 1.0
    sampling_rate: float = 0.1
    steps: int | None = None
    participations: int | None = None
    expected_batch_size: float | None = None
    grad_sample_mode: str = "hooks"
    physical_batch_size: int | None = None
    secure_randomness: bool = True
    ledger_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        _positive("dp_sgd.clipping_norm", self.clipping_norm)
        for key in ("epsilon", "noise_multiplier", "expected_batch_size"):
            if getattr(self, key) is not None:
                _positive(f"dp_sgd.{key}", getattr(self, key))
        for key in ("steps", "participations", "physical_batch_size"):
            if getattr(self, key) is not None:
                _at_least(f"dp_sgd.{key}", getattr(self, key), 1)
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"dp_sgd.delta must lie in (0, 1), got {self.delta}")
        _fraction(
            "dp_sgd.sampling_rate",
            self.sampling_rate,
            "it is a probability, for example 0.1 for a tenth of a client's records a step",
        )
        _one_of("dp_sgd.grad_sample_mode", self.grad_sample_mode)
        if self.ledger_dir is not None and not Path(self.ledger_dir).is_absolute():
            raise ValueError(f"dp_sgd.ledger_dir must be absolute, got '{self.ledger_dir}'")


@dataclass(kw_only=True)
class ClippingSettings:
    """How an update is bounded.

    Attributes:
        name: `fixed`, `adaptive` (follows a quantile of the updates' norms) or `per_layer`.
        norm: L2 bound on one client's whole update (L1 under `privacy.scheme=laplace`); under
            `adaptive`, in the first round.
        norms: One bound a floating-point array, for `per_layer`; null shares `norm` evenly.
        target_quantile: Share of updates that `adaptive` leaves unclipped, in (0, 1).
        learning_rate: Largest change of the norm's logarithm in one round, for `adaptive`.
    """

    name: str = "fixed"
    norm: float = 0.5
    norms: list[float] | None = None
    target_quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("clipping.name", self.name)
        _positive("clipping.norm", self.norm)
        _positive("clipping.learning_rate", self.learning_rate)
        if not 0.0 < self.target_quantile < 1.0:
            raise ValueError(
                f"clipping.target_quantile must lie in (0, 1), got {self.target_quantile}"
            )
        for norm in self.norms or ():
            _positive("clipping.norms", norm)
        if self.norms is not None and self.name != "per_layer":
            raise ValueError("clipping.norms is for clipping=per_layer: leave it out")


@dataclass(kw_only=True)
class WeightSettings:
    """How much a client counts.

    Attributes:
        cap: Examples that earn the full weight: a client weighs `min(records / cap, 1)`. Null:
            every client weighs 1.
        total: Public sum of all clients' weights, which the denominator is made of; null takes the
            number of clients. With `capped_denominator`, a lower bound on it.
        capped_denominator: Divide by what the cohort really weighs, at least by its expected part
            of `total`: less bias, for twice the noise.
    """

    cap: float | None = None
    total: float | None = None
    capped_denominator: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.cap is not None:
            _positive("weights.cap", self.cap)
        if self.total is not None:
            _positive("weights.total", self.total)
        if self.cap is None and (self.total is not None or self.capped_denominator):
            raise IncompatibleOptions(
                "weights.total and weights.capped_denominator are about weights: give weights.cap, "
                "the records that earn the full weight"
            )


@dataclass(kw_only=True)
class MetricsSettings:
    """Clients' metrics that each round releases with the model, at no charge of their own.

    Attributes:
        loss: Range `[low, high]` to which each client's loss is clipped; null releases none.
        accuracy: The same for its accuracy, usually `[0, 1]`.
        noise_std: Noise on each sum of metrics, and of the bits of adaptive clipping, both scaled
            to [-1/2, 1/2]; null is a twentieth of the expected cohort, or as much more as keeps
            what they cost the updates below 5 %.
    """

    loss: list[float] | None = None
    accuracy: list[float] | None = None
    noise_std: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        _range("metrics.loss", self.loss)
        _range("metrics.accuracy", self.accuracy)
        if self.noise_std is not None:
            _positive("metrics.noise_std", self.noise_std)


@dataclass(kw_only=True)
class SelectionSettings:
    """Who takes part in a round. docs/selection.md compares the rules.

    Attributes:
        name: `poisson`, `truncated_poisson`, `fixed`, `exponential`, `dp_utility` or `public`.
        sampling_rate: Expected share of the clients in each round, in (0, 1].
        max_cohort: Largest cohort of `truncated_poisson`; null leaves 4.5 roots of the expected
            cohort above it.
        participation_cap: At most so many rounds for one client, where who takes part is seen
            (`exponential`, `public`, or everybody: `selection.sampling_rate=1`); null charges every
            round.
        coins: `server`, or `nodes`: each node flips the coins of its own units (`poisson` only).
        epsilon: Bounded range of one draw of `exponential`.
        utility: What `exponential` and `dp_utility` look at: `loss`, `accuracy` or `records`; for
            `exponential` also `update_norm` and `staleness`.
        utility_high: Utilities are clipped to [0, this].
        records_per_client: Public lower bound on a client's records, for `exponential` with
            `privacy.unit=record`.
        largest_rate: Upper bound on a client's rate under `dp_utility`, which is charged; null is
            twice `sampling_rate`.
        smallest_rate: Lower bound on it.
        refresh_every: Rounds from one release of the noisy utilities to the next, for `dp_utility`.
        utility_noise: Noise on a utility, over half of its range, for `dp_utility`.
        sharpness: How much likelier a client becomes with its utility, for `dp_utility`.
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

    def __post_init__(self) -> None:
        """Check the values."""
        _one_of("selection.name", self.name)
        _one_of("selection.coins", self.coins)
        _fraction(
            "selection.sampling_rate",
            self.sampling_rate,
            "it is a probability, for example 0.1 for a tenth of the clients a round",
        )
        _one_of("selection.utility", self.utility)
        if self.name == "dp_utility" and self.utility not in UTILITIES_OF_EVERYBODY:
            raise ValueError(
                f"selection.utility={self.utility} is what the server saw of participants: "
                f"dp_utility asks everybody for one of {', '.join(UTILITIES_OF_EVERYBODY)}"
            )
        for key in ("max_cohort", "participation_cap", "records_per_client", "refresh_every"):
            if getattr(self, key) is not None:
                _at_least(f"selection.{key}", getattr(self, key), 1)
        for key in ("epsilon", "utility_high", "utility_noise"):
            _positive(f"selection.{key}", getattr(self, key))
        if self.largest_rate is not None:
            _fraction("selection.largest_rate", self.largest_rate, "it is a probability")
        if not 0.0 <= self.smallest_rate <= 1.0:
            raise ValueError(
                f"selection.smallest_rate must lie in [0, 1], got {self.smallest_rate}"
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
        levels: At most so many different noise multipliers; null gives each round its own
            (accounting is then slow beyond some hundred rounds).
        weights: Relative spend of each round, for `custom`.
        metric: `plateau`: public metric of the model that the noise reacts to, `accuracy` or
            `loss`.
        patience: `plateau`: rounds without an improvement before the noise is lowered.
        factor: `plateau`: what the noise is multiplied by then.
        first: `plateau`: noise of the first rounds, relative to the constant noise that spends the
            budget.
        smallest: `plateau`: least noise, relative to the same.
        min_improvement: `plateau`: what counts as an improvement of the metric.
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
        _one_of("schedule.name", self.name)
        _one_of("schedule.metric", self.metric)
        if self.spend is not None:
            _one_of("schedule.spend", self.spend)
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
            what a coordinate moves in a round. Chosen as `server_optimizer=fedadam` they bring
            their own, a smaller one for `fedadam` and `fedyogi`.
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
        _one_of("server_optimizer.name", self.name)
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
class CompressionSettings:
    """Fewer bytes on the wire. It costs no privacy; docs/privacy.md says why.

    Attributes:
        up: Of a client's update: `none`, `float16`, `bfloat16`, `quantize` (rounded at random to
            `bits` bits, right on average) or `top_k` (the largest magnitudes alone, quantised; what
            is left out is lost).
        bits: Bits of each number that is sent, for `quantize` and `top_k`, 1 to 16.
        fraction: Share of the coordinates that `top_k` sends, in (0, 1].
        down: Of the model: `none`, `float16` (what is beyond 65,504 is cut) or `bfloat16`.
    """

    up: str = "none"
    bits: int = 8
    fraction: float = 0.1
    down: str = "none"

    def __post_init__(self) -> None:
        """Check the values."""
        try:
            CompressionOptions(**asdict(self))  # they check themselves
        except ValueError as error:
            raise ValueError(f"compression.{error}") from error

    @property
    def compression(self) -> Compression:
        """How updates and models travel."""
        from fl_dp.updates import Compression  # brings Flower, which a check of settings needs not

        return Compression(**asdict(self))


@dataclass(kw_only=True)
class SimulationSettings:
    """Flower's simulation engine; not used on real nodes.

    Attributes:
        num_cpus: CPUs that Ray may use, one worker each; null means what suits this machine.
        num_gpus: Share of a GPU for each worker, or a whole number of them; 0 trains on the CPU.
            `simulation=gpu` is a quarter.
        workers: Processes that train clients, instead of one for each of `num_cpus`; null means,
            without `num_cpus`, two more than this machine has CPUs, as far as its memory goes.
        units_per_node: Clients that one virtual node hosts; it answers with the sum of their
            clipped updates. More of them make large simulations much faster.
    """

    num_cpus: int | None = None
    num_gpus: float = 0.0
    workers: int | None = None
    units_per_node: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        if self.num_cpus is not None:
            _at_least("simulation.num_cpus", self.num_cpus, 1)
        if self.workers is not None:
            _at_least("simulation.workers", self.workers, 1)
        _at_least("simulation.units_per_node", self.units_per_node, 1)
        if not (math.isfinite(self.num_gpus) and self.num_gpus >= 0):
            raise ValueError(f"simulation.num_gpus must not be negative, got {self.num_gpus}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ValueError(
                "simulation.num_gpus must be a share up to 1 or a whole number, "
                f"got {self.num_gpus}"
            )

    def num_nodes(self, num_clients: int) -> int:
        """Return how many virtual nodes host these clients; the last one may host fewer."""
        return math.ceil(num_clients / self.units_per_node)


@dataclass(kw_only=True)
class Settings:
    """One run.

    Attributes:
        seed: Seeds the partition, the first weights and the clients' shuffling; never the noise or
            the sampling coins, which come from the operating system.
        rounds: Releases that are planned.
        round_timeout: Seconds until a silent client counts as a zero update.
        roster_timeout: Seconds until missing nodes are an error.
        roster_may_grow: Let more clients take part than `task.num_clients`. Epsilon stays; the mean
            is still divided by what is declared and comes out larger. Otherwise more nodes are an
            error.
        output_dir: Absolute folder under which the run's own folder is made; null is `runs/` where
            `fl-dp run` is called, and `~/.fl-dp/runs` under a bare `flwr run`.
        run_name: Name of the run's folder; null makes one up.
        resume: Folder of a run to be continued, with its own settings and its own ledger; every
            other setting must be left out.
    """

    seed: int = 0
    rounds: int = 100
    round_timeout: float = 3600.0
    roster_timeout: float = 60.0
    roster_may_grow: bool = False
    output_dir: str | None = None
    run_name: str | None = None
    resume: str | None = None
    task: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    dp_sgd: DPSGDSettings = field(default_factory=DPSGDSettings)
    clipping: ClippingSettings = field(default_factory=ClippingSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    server_optimizer: ServerOptimizerSettings = field(default_factory=ServerOptimizerSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    simulation: SimulationSettings = field(default_factory=SimulationSettings)

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        _at_least("rounds", self.rounds, 1)
        _positive("round_timeout", self.round_timeout)
        _positive("roster_timeout", self.roster_timeout)
        if self.privacy.mode == "none" and self.protects_records:
            raise IncompatibleOptions(
                "privacy.mode=none promises nothing, but dp_sgd has a budget or noise: write "
                "privacy=dp_sgd for DP-SGD alone"
            )
        several = self.simulation.units_per_node > 1 or self.selection.coins == "nodes"
        if several and self.privacy.mode in ("none", "dp_sgd"):
            raise IncompatibleOptions(
                f"a node that sums its units clips them, which privacy.mode={self.privacy.mode} "
                "does not: write simulation.units_per_node=1 and selection.coins=server"
            )
        if self.task.partition == "nodes" and self.simulation.units_per_node > 1:
            raise IncompatibleOptions(
                "a node with its own data is one unit: task.partition=nodes needs "
                f"simulation.units_per_node=1, got {self.simulation.units_per_node}"
            )
        if self.run_name is not None and (
            not self.run_name or set(self.run_name) & set("/\\") or self.run_name in (".", "..")
        ):
            raise ValueError(f"run_name must be a plain folder name, got '{self.run_name}'")

    @property
    def protects_records(self) -> bool:
        """Whether clients train by DP-SGD."""
        asked = self.dp_sgd.epsilon is not None or self.dp_sgd.noise_multiplier is not None
        return asked or self.privacy.mode == "dp_sgd"

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
            "dp_sgd": DPSGDSettings,
            "clipping": ClippingSettings,
            "weights": WeightSettings,
            "metrics": MetricsSettings,
            "selection": SelectionSettings,
            "schedule": ScheduleSettings,
            "server_optimizer": ServerOptimizerSettings,
            "client": ClientSettings,
            "compression": CompressionSettings,
            "simulation": SimulationSettings,
        }
        return cls(**values | {key: group(**values[key]) for key, group in groups.items()})
