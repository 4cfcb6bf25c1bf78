"""Settings of a run: all groups together, and the run's own keys."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from fl_dp.documents import document, parsed_object
from fl_dp.option_errors import Exclusion, OptionError, require_compatible
from fl_dp.updates.compression_options import CompressionOptions

from .checks import ALL_TRACKED, at_least, choices, positive, tracked
from .clippings import CLIPPINGS
from .data import TASK, ModelSettings, TaskOption
from .dp_sgd import DP_SGD, DPSGDOption
from .features import FeaturesSettings
from .optimizers import CLIENT, SERVER_OPTIMIZERS
from .option import Option
from .options import OPTIONS, option_of, with_values
from .promises import PROMISES, PromiseOption, account
from .recovery import RecoverySettings
from .released import MetricsSettings
from .required_fitting import require_fitting
from .schedules import SCHEDULES
from .selections import SELECTIONS, SelectionOption
from .simulation import SimulationSettings
from .statistic import STATISTIC
from .sweep import SweepSettings
from .tracking import TrackingSettings
from .tune import TuneSettings


@dataclass(kw_only=True)
class Settings:
    """One run, or what else settings are for: a statistic, an experiment, an attack.

    Attributes:
        seed: Seeds the partition, the first weights and what clients draw in training, never noise,
            cohorts or samples of records.
        rounds: Planned rounds; each releases one model.
        round_timeout: Seconds until a silent client counts as a zero update.
        roster_timeout: Seconds until missing nodes are an error, and on real nodes surplus ones (a
            restarted node counts twice for a minute).
        roster_may_grow: Allow more clients than `task.num_clients`: epsilon is unchanged, and the
            mean, still divided by that number, grows.
        weight_cap: A client weighs `min(records / weight_cap, 1)`; null weighs all 1.
        total_weight: Public sum of all clients' weights, the denominator; null: the number of
            clients.
        output_dir: Absolute folder for runs; null: `runs/`, or `~/.fl-dp/runs` under a bare `flwr
            run`.
        run_name: Name of the run's folder; null derives one.
        resume: Folder of a run to continue with its own settings and ledger; set nothing else.
        report: Page that `fl-dp run` writes at its end: `html` or `none`.
    """

    seed: int = tracked(0)
    rounds: int = tracked(100)
    round_timeout: float = tracked(3600.0)
    roster_timeout: float = tracked(60.0)
    roster_may_grow: bool = tracked(False)
    weight_cap: float | None = tracked(None)
    total_weight: float | None = tracked(None)
    output_dir: str | None = None
    run_name: str | None = None
    resume: str | None = None
    report: str = "html"
    task: TaskOption = field(default_factory=TASK)
    features: FeaturesSettings = field(default_factory=FeaturesSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    privacy: PromiseOption = field(default_factory=PROMISES["central"])
    dp_sgd: DPSGDOption = field(default_factory=DP_SGD["off"])
    clipping: Option = field(default_factory=CLIPPINGS["fixed"])
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    selection: SelectionOption = field(default_factory=SELECTIONS["poisson"])
    schedule: Option = field(default_factory=SCHEDULES["constant"])
    server_optimizer: Option = field(default_factory=SERVER_OPTIMIZERS["fedavgm"])
    client: Option = field(default_factory=CLIENT)
    compression: CompressionOptions = field(
        default_factory=CompressionOptions, metadata=ALL_TRACKED
    )
    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    statistic: Option = field(default_factory=STATISTIC)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed must lie in [0, 2^63), got {self.seed}", option="seed")
        at_least("rounds", self.rounds, 1)
        choices("", self)
        require_fitting(self.privacy, self)
        self.schedule.check()
        self.features.check()
        positive("weight_cap", self.weight_cap)
        positive("total_weight", self.total_weight)
        if self.weight_cap is None and self.total_weight is not None:
            raise OptionError(
                "total_weight is about weights: give weight_cap, the records that earn the full "
                "weight",
                option="total_weight",
            )
        positive("round_timeout", self.round_timeout)
        positive("roster_timeout", self.roster_timeout)
        if self.run_name is not None and (
            not self.run_name or set(self.run_name) & set("/\\") or self.run_name in (".", "..")
        ):
            raise OptionError(
                f"run_name must be a plain folder name, got '{self.run_name}'", option="run_name"
            )
        require_compatible(EVERY_RUN, self)

    @property
    def protects_clients(self) -> bool:
        """Whether there is a promise to each client as a whole."""
        return self.privacy.noised_by != "nobody"

    @property
    def protects_records(self) -> bool:
        """Whether clients train by DP-SGD."""
        return self.dp_sgd.enabled

    @property
    def promise(self) -> PromiseOption:
        """The promise to each client.

        Raises:
            ValueError: If there is none.
        """
        if self.privacy.kind is None:
            raise OptionError(
                f"privacy={self.privacy} promises nothing to clients: write for "
                "example privacy=central",
                option="privacy",
            )
        return self.privacy

    @property
    def record_training(self) -> DPSGDOption:
        """Settings of DP-SGD inside clients.

        Raises:
            ValueError: If clients train without it.
        """
        if not self.dp_sgd.enabled:
            raise OptionError("clients train without DP-SGD: write dp_sgd=on", option="dp_sgd")
        return self.dp_sgd

    @property
    def counts_own_records(self) -> bool:
        """Whether records of the user's own data are counted, as no number is declared."""
        return self.sums_records and self.privacy.get("num_records") is None and self.task.is_own

    @property
    def sums_records(self) -> bool:
        """Whether the units of secure sums are records: each sum is a step of DP-SGD."""
        return self.privacy.noised_by == "nodes" and self.privacy.unit == "record"

    @property
    def protects_records_alone(self) -> bool:
        """Whether records are protected, and clients as a whole are not."""
        return self.protects_records and not self.protects_clients

    @property
    def has_account(self) -> bool:
        """Whether the run is added to others: asked for, or for data of your own in one place."""
        if self.privacy.make_by(account) != (None, None):
            return True
        return self.task.is_own and self.task.partition != "nodes"

    @property
    def asks_for_a_sum(self) -> bool:
        """Whether clients are asked for a private statistic, or measure the last model."""
        return self.statistic.query is not None or self.metrics.private_epsilon is not None

    @property
    def measures_a_cohort_alone(self) -> bool:
        """Whether nodes without a share of its noise would measure the last model."""
        if self.metrics.private_epsilon is None or self.privacy.noised_by != "nodes":
            return False
        return self.selection.sampling_rate < 1.0

    @property
    def noise_can_be_predicted(self) -> bool:
        """Whether the noise of the promise that each round shows is not secret."""
        if self.protects_records_alone:
            return not self.record_training.secure_randomness
        return self.privacy.get("insecure_seed") is not None

    def require_training(self) -> None:
        """Check that one training is meant: no experiment of many, no statistic, no attack.

        Raises:
            ValueError: If not; the text names the command.
        """
        self.sweep.require_none()
        self.recovery.require_none()
        if (query := self.statistic.query) is not None:
            raise OptionError(
                f"statistic.query={query} trains nothing: write `fl-dp stats {query}`",
                option="statistic.query",
            )

    def with_group(self, name: str, group: Any) -> Settings:
        """Return the same run with another option or other values of a group."""
        groups: dict[str, Any] = {name: group}
        return replace(self, **groups)

    def hosting(self, units_per_node: int) -> Settings:
        """Return the same run with another number of clients per node."""
        simulation = replace(self.simulation, units_per_node=units_per_node)
        return replace(self, simulation=simulation)

    def for_clients(self) -> Settings:
        """Return what clients may know: no folder of the operator, no seed, no candidate."""
        own_keys = {setting.name for setting in fields(self.privacy)}
        secret: dict[str, Any] = dict.fromkeys(own_keys & _OF_THE_OPERATOR)
        privacy = replace(self.privacy, **secret)
        model = self.model
        if model.shared is None and model.lora_rank is None:  # else a part of it never travels
            model = replace(model, initial=None, initial_digest=None)
        return replace(
            self,
            model=model,
            privacy=privacy,
            tracking=TrackingSettings(),
            tune=TuneSettings(),
            recovery=RecoverySettings(),
            output_dir=None,
            run_name=None,
            resume=None,
        )

    def to_json(self) -> str:
        """Return the settings as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that `to_json` wrote.

        Raises:
            ValueError: If a field is missing or unknown; values are not checked further.
        """
        values = parsed_object(text, "set of settings")
        with document("set of settings"):
            return cls(**values | {key: _group(key, values[key]) for key in _GROUPS})


_OF_THE_OPERATOR = {"insecure_seed", "witness_dir", "account", "account_cap"}

EVERY_RUN: tuple[Exclusion[Settings], ...] = (
    Exclusion(
        options=("task.partition", "simulation.units_per_node"),
        when=lambda run: run.task.partition == "nodes" and run.simulation.units_at_node > 1,
        why="a node with its own data is one unit",
        instead="with task.partition=nodes write simulation.units_per_node=1",
    ),
    Exclusion(
        options=("task.label_range", "metrics.accuracy", "selection.utility"),
        when=lambda run: (
            run.task.label_range is not None
            and (run.metrics.accuracy is not None or run.selection.get("utility") == "accuracy")
        ),
        why="a label that is a number (task.label_range) has no accuracy",
        instead="write metrics.loss and selection.utility=loss",
    ),
    Exclusion(
        options=("model.shared", "privacy.unit", "privacy"),
        when=lambda run: run.model.shared is not None and run.privacy.unit == "record",
        why="a personal part that records trained without noise steers the gradients of all other "
        "records, which a promise to single records does not bound",
        instead="write privacy.unit=client, or privacy=dp_sgd, or leave model.shared out",
    ),
    Exclusion(
        options=(
            *("statistic.query", "metrics.private_epsilon", "privacy.unit"),
            *("privacy.neighboring_relation", "dp_sgd", "selection.sampling_rate"),
        ),
        when=lambda run: (
            run.asks_for_a_sum
            and (
                run.privacy.unit != "client"
                or run.privacy.neighboring_relation != "zero-out"
                or run.protects_records
                or run.measures_a_cohort_alone
            )
        ),
        why="statistic.query and metrics.private_epsilon are sums over all clients, of which "
        "each is protected with all its records, for zero-out neighbours",
        instead="leave privacy.unit, privacy.neighboring_relation and dp_sgd out, and with "
        "privacy=distributed write selection.sampling_rate=1",
    ),
    Exclusion(
        options=("task.person_column", "features.public"),
        when=lambda run: run.task.person_column is not None and run.features.public > 0,
        why="a person could have public and private rows",
        instead="leave features.public out",
    ),
    Exclusion(
        options=("statistic.law", "privacy.noise_multiplier"),
        when=lambda run: (
            run.privacy.get("noise_multiplier") is not None and run.statistic.law is not None
        ),
        why="statistic.law and privacy.noise_multiplier both choose the noise",
        instead="leave one out",
    ),
)
"""Combinations that no run can have, whatever it promises."""

# Groups without options; `OPTIONS` has the others.
_GROUPS: dict[str, Any] = {
    setting.name: setting.default_factory
    for setting in fields(Settings)
    if setting.default_factory is not MISSING
}


def _group(name: str, values: dict[str, Any]) -> Any:
    defaults = option_of(name, values) if name in OPTIONS else _GROUPS[name]()
    return with_values(defaults, values)
