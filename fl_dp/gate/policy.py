"""The owner's policy of a gate: what may leave this site, whatever app the server sends.

The file has the keys of a node's policy (`NodeConfig`) and those of the gate, which begin with
`dp-gate-`. A node without a gate refuses such a file, as nothing there would enforce it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
)

from fl_dp.accounting import PrivacyBudget
from fl_dp.clients.owner.node_config import (
    POLICY_KEYS,
    POLICY_PATH_KEY,
    PREFIX,
    NodeConfig,
    NodeConfigError,
    checked_keys,
    policy_in_file,
)
from fl_dp.clients.secure_node import IDENTITY_FILE, STORE_FILE
from fl_dp.mechanisms import FixedClipping, GaussianBundle, ScalarMetric
from fl_dp.plan import RecordPlan
from fl_dp.plan.release import Release
from fl_dp.protocol.instruction import NoiseInstruction

GATE_PREFIX = f"{PREFIX}gate-"
"""Prefix of a gate's keys besides those of a node."""

_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False, strict=True)]


def _metrics(value: object) -> tuple[ScalarMetric, ...]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be lines like `accuracy: [0, 1]`")
    metrics = []
    for name, ends in value.items():
        match name, ends:
            case str(), [int() | float() as low, int() | float() as high]:
                metrics.append(ScalarMetric(name=name, low=float(low), high=float(high)))
            case _:
                raise ValueError(f"must give {name!r:.50} two numbers, like [0, 1]")
    return tuple(metrics)


def _pinned(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("must be lines like `local-epochs: 1`")
    for key, pinned in value.items():
        if not isinstance(pinned, str | int | float):
            raise ValueError(f"must give {key!r:.50} a text, a number, true or false")
    return value


def _terms(value: object) -> RecordPlan:
    match value:
        case {
            "noise-multiplier": int() | float() as noise_multiplier,
            "sampling-rate": int() | float() as sampling_rate,
            "steps": int() as steps,
            "clipping-norm": int() | float() as clipping_norm,
            **others,
        } if not others:
            return RecordPlan(
                budget=PrivacyBudget(epsilon=1.0, delta=1e-5),  # the policy's cap takes its place
                noise_multiplier=float(noise_multiplier),
                sampling_rate=float(sampling_rate),
                steps=steps,
                participations=1,
                clipping_norm=float(clipping_norm),
            )
    raise ValueError(
        "must be four numbers: noise-multiplier, sampling-rate, steps and clipping-norm"
    )


_Metrics = Annotated[tuple[ScalarMetric, ...], BeforeValidator(_metrics)]
_Pinned = Annotated[Mapping[str, Any], PlainValidator(_pinned)]
_Terms = Annotated[RecordPlan, PlainValidator(_terms)]
_Text = Annotated[str, StringConstraints(min_length=1, pattern="^[^\\n]*$")]
FULL_HASH = 64  # hexadecimal digits


class GatePromise(StrEnum):
    """How a gate treats an update before it leaves."""

    LOCAL = "local"
    """It clips, and adds noise of its own: the server is not trusted."""
    DISTRIBUTED = "distributed"
    """It clips, adds a share of noise and masks: sums alone are opened, and no update."""
    CLIP = "clip"
    """It clips alone: the server is trusted to add the noise."""
    RECORD = "record"
    """It runs one app alone, whose own DP-SGD the owner trusts, and charges that."""


def _key_of(field: str) -> str:
    return GATE_PREFIX + field.replace("_", "-")


class GateKeys(BaseModel):
    """Every key of a policy that is the gate's own, checked.

    A field is a key without its prefix.
    """

    model_config = ConfigDict(
        alias_generator=_key_of,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    promise: GatePromise = Field(
        description="What happens to each update before it leaves. `local` clips it and adds "
        "noise. `distributed` clips it, adds a share of noise and masks it for a "
        "[secure sum](secure-aggregation.md). `clip` clips it, and relies upon the server's noise. "
        "`record` runs [one named app](#an-app-with-dp-sgd-of-its-own) alone, and lets its update "
        "leave as it is."
    )
    clipping_norm: _Positive | None = Field(
        default=None,
        description="No update moves the model by more, in the L2 norm of all floating-point "
        "arrays together. Not for `record`.",
    )
    noise_multiplier: _Positive | None = Field(
        default=None,
        description="Least noise of an answer, divided by the clipping norm. For `local` alone.",
    )
    metrics: _Metrics = Field(
        default=(),
        description="Numbers of a training reply that leave besides, each with its range: "
        "`{train_loss: [0, 5]}`. Clipped to it, and noised in the same release. Without it: none.",
    )
    evaluation: _Metrics = Field(
        default=(),
        description="Numbers of an evaluation's reply that leave, each with its range. Clipped and "
        "noised, and charged like an update. Without it: evaluations are refused.",
    )
    answer_after: _Positive = Field(
        description="Seconds from a training message to its answer, whatever the app takes. The "
        "app has four fifths of them."
    )
    dp_sgd: _Terms | None = Field(
        default=None,
        description="What one training of the named app is charged as: `{noise-multiplier: 1.1, "
        "sampling-rate: 0.01, steps: 20, clipping-norm: 1.0}`. For `record` alone, as are the "
        "next three.",
    )
    run_config: _Pinned = Field(
        default_factory=dict,
        description="Values of the run's configuration: these and no others may a run set, and "
        "each has to be as it is here. Without it: the bundle's own values alone.",
    )
    message_config: _Pinned = Field(
        default_factory=dict,
        description="The same of the configuration in a training message, besides the round's "
        "number. Without it: empty.",
    )
    environment: _Text | None = Field(
        default=None,
        description="Where the app's packages lie, in words. The owner trusts them, too, and "
        "nothing checks them.",
    )


GATE_KEYS = {_key_of(name): str(field.description) for name, field in GateKeys.model_fields.items()}
"""Descriptions of the gate's own keys, in Markdown."""

_SCHEME = "gaussian"  # whose multipliers are compared

KEYS_OF_APPS = (
    "dp-allow-unverified-apps",
    "dp-data-path",
    "dp-data-schema",
    "dp-encoder-digests",
    "dp-record-epsilon",
    "dp-require-privacy",
)
"""Keys that only an app could obey: a gate refuses them."""

KEYS_OF_DATA = ("dp-data-path", "dp-data-schema")
"""Those of them that locate the data of an app of fl-dp, and promise nothing."""

KEYS_OF_SUMS = ("dp-secagg-colluding", "dp-secagg-min-sum", "dp-secagg-roster")
"""Keys of `distributed` alone."""

KEYS_OF_RECORDS = (
    "dp-gate-dp-sgd",
    "dp-gate-environment",
    "dp-gate-message-config",
    "dp-gate-run-config",
)
"""Keys of `record` alone."""

_NORM = {"dp-gate-clipping-norm": "0.5"}
_MULTIPLIER = "dp-gate-noise-multiplier"
_NUMBERS = ("dp-gate-metrics", "dp-gate-evaluation")
_LEDGER = {"dp-ledger-path": "/srv/private/ledger.db"}
_CAP = {"dp-max-epsilon": "4.0"}


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """What a promise asks of the rest of a policy's file.

    Attributes:
        needed: Keys that it can't do without, each with an example.
        idle: Keys that have no effect with it.
        required: The node's own key `dp-require-privacy`.
        beside_ledger: What the gate keeps beside its ledger, which must then be a file.
    """

    needed: Mapping[str, str]
    idle: tuple[str, ...]
    required: str
    beside_ledger: str | None = None


_RULES = {
    GatePromise.LOCAL: _Rules(
        needed=_LEDGER | _CAP | _NORM | {_MULTIPLIER: "8.0"},
        idle=(*KEYS_OF_SUMS, *KEYS_OF_RECORDS),
        required="local",
    ),
    GatePromise.DISTRIBUTED: _Rules(
        needed=_LEDGER | _CAP | _NORM,  # a sum's charge decides its noise
        idle=(_MULTIPLIER, *KEYS_OF_RECORDS),
        required="distributed",
        beside_ledger="its keys of secure sums",
    ),
    GatePromise.CLIP: _Rules(
        needed=_LEDGER | _NORM,  # the ledger notes that the site relied upon the server
        idle=(*_CAP, "dp-max-delta", _MULTIPLIER, *_NUMBERS, *KEYS_OF_SUMS, *KEYS_OF_RECORDS),
        required="none",
    ),
    GatePromise.RECORD: _Rules(
        needed=_LEDGER
        | _CAP
        | {
            "dp-allowed-apps": "hospital/heart@ with all 64 digits of the bundle's SHA-256",
            "dp-gate-dp-sgd": "{noise-multiplier: 1.1, sampling-rate: 0.01, steps: 20, "
            "clipping-norm: 1.0}",
            "dp-gate-environment": "/srv/app/venv",
        },
        idle=(*_NORM, _MULTIPLIER, *_NUMBERS, *KEYS_OF_SUMS),
        required="record",
        beside_ledger="the marks of trainings that did not end",
    ),
}


@dataclass(frozen=True, kw_only=True)
class GatePolicy:
    """The policy of one gate.

    Attributes:
        keys: The gate's own keys.
        node_config: The other keys, as a node's mods read them.
    """

    keys: GateKeys
    node_config: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a policy's file.

        Raises:
            NodeConfigError: It can't be read or is invalid.
        """
        allowed = (POLICY_KEYS.keys() - {POLICY_PATH_KEY}) | GATE_KEYS.keys()
        values = policy_in_file(str(file), allowed)
        own = {key: value for key, value in values.items() if key in GATE_KEYS}
        others = {key: value for key, value in values.items() if key not in GATE_KEYS}
        for key in filter(others.__contains__, KEYS_OF_APPS):
            if key in KEYS_OF_DATA:
                raise NodeConfigError(f"{file}: apps read {key}: write it into --node-config")
            raise NodeConfigError(
                f"{file}: {key} would bind an app, and a gate trusts none: leave it out"
            )
        keys = checked_keys(GateKeys, own, str(file))
        _require_consistent(file, keys.promise, values)
        node_config = others | {"dp-require-privacy": _RULES[keys.promise].required}
        policy = cls(keys=keys, node_config=node_config)
        if keys.promise is GatePromise.LOCAL:
            _require_noise(file, policy)
        owner = NodeConfig.of(node_config)
        if keys.promise is GatePromise.RECORD:
            _require_one_app(file, owner)
        return policy

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """Files of the ledger and its witness, and of the node's keys beside the ledger."""
        ledger, witness = self._files_of("dp-ledger-path"), self._files_of("dp-witness-path")
        keys = [file.with_name(name) for file in ledger for name in (IDENTITY_FILE, STORE_FILE)]
        return (*ledger, *witness, *keys)

    @property
    def public_files(self) -> tuple[Path, ...]:
        """Files that all may read and the owner alone may change."""
        return tuple(self._files_of("dp-secagg-roster"))

    def _files_of(self, key: str) -> list[Path]:
        location = self.node_config.get(key)
        if location is None or "://" in location:
            return []
        return [Path(location)]

    @property
    def clipping_norm(self) -> float:
        """Bound on the norm of an update that leaves."""
        assert self.keys.clipping_norm is not None  # `_require_consistent` has checked
        return self.keys.clipping_norm

    @property
    def record_plan(self) -> RecordPlan:
        """The plan that the named app is trusted to train by, and charged for, within the cap."""
        terms, cap = self.keys.dp_sgd, NodeConfig.of(self.node_config).cap
        assert terms is not None and cap is not None  # `_require_consistent` has checked
        return replace(terms, budget=cap)

    @property
    def least_noise(self) -> NoiseInstruction:
        """The noise of an answer to a server that asks for none."""
        assert self.keys.noise_multiplier is not None  # `_require_consistent` has checked
        return NoiseInstruction(
            scheme=_SCHEME,
            noise_multiplier=self.keys.noise_multiplier,
            clipping_norm=self.clipping_norm,
        )

    @property
    def own_bundle(self) -> GaussianBundle:
        """The release of an answer to a server that asks for no noise: an update and metrics."""
        noise = self.least_noise
        release = Release(
            clipping=FixedClipping(norm=noise.clipping_norm),
            metrics=self.keys.metrics,
            contribution_check=False,
        )
        return release.bundle(noise.noise_multiplier, expected_cohort=1.0, rounds=1)


def _require_noise(file: Path, policy: GatePolicy) -> None:
    """Refuse noise that can't be drawn, before the first message."""
    try:
        policy.least_noise.mechanism()
    except ValueError as error:
        raise NodeConfigError(f"{file}: dp-gate-noise-multiplier: {error}") from error


def _require_consistent(file: Path, promise: GatePromise, values: Mapping[str, Any]) -> None:
    """Refuse a promise without its ledger, or with keys that have no effect."""
    rules = _RULES[promise]
    for key, example in rules.needed.items():
        if key not in values:
            raise NodeConfigError(
                f"{file}: dp-gate-promise: {promise} needs a line `{key}: {example}`"
            )
    for key in rules.idle:
        if key in values:
            raise NodeConfigError(
                f"{file}: under dp-gate-promise: {promise} the line {key} says nothing: leave it "
                "out"
            )
    if rules.beside_ledger is not None and "://" in str(values["dp-ledger-path"]):
        raise NodeConfigError(
            f"{file}: a gate keeps {rules.beside_ledger} beside its ledger, which must be a file: "
            "write dp-ledger-path: /srv/private/ledger.db"
        )


def _require_one_app(file: Path, owner: NodeConfig) -> None:
    """Refuse apps whose bundle could be another one: the app's code fulfils the promise."""
    rules = owner.allowed_apps
    assert rules is not None  # `_require_consistent` has checked
    if len(rules) != 1 or len(rules[0].fab_hash) != FULL_HASH:
        named = ", ".join(rule.text for rule in rules)
        raise NodeConfigError(
            f"{file}: under dp-gate-promise: record one app is trusted, and dp-allowed-apps names "
            f"{named}: write one, with all {FULL_HASH} digits of its bundle's SHA-256 behind @"
        )
