"""The owner's policy of a gate: what may leave this site, whatever app the server sends.

The file has the keys of a node's policy (`NodeConfig`) and those of the gate, which begin with
`dp-gate-`. A node without a gate refuses such a file, as nothing there would keep to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fl_dp.clients.node_config import (
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
from fl_dp.plan.release import Release
from fl_dp.protocol.instruction import NoiseInstruction

GATE_PREFIX = f"{PREFIX}gate-"
"""Of every key that a gate has besides those of a node."""

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


_Metrics = Annotated[tuple[ScalarMetric, ...], BeforeValidator(_metrics)]


class Promise(StrEnum):
    """What a gate does to an update before it leaves."""

    LOCAL = "local"
    """It clips, and adds noise of its own: the server is not trusted."""
    DISTRIBUTED = "distributed"
    """It clips, adds a share of noise and masks: nobody sees an update, and sums alone are opened.
    """
    CLIP = "clip"
    """It clips alone: the server is trusted to add the noise."""


class GateKeys(BaseModel):
    """Every key of a policy that is the gate's own, checked.

    A field is a key without its prefix.
    """

    model_config = ConfigDict(
        alias_generator=lambda field: GATE_PREFIX + field.replace("_", "-"),
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    promise: Promise = Field(
        description="What happens to each update before it leaves. `local` clips it and adds "
        "noise. `distributed` clips it, adds a share of noise and masks it for a "
        "[secure sum](secure-aggregation.md). `clip` clips it, and relies upon the server's noise."
    )
    clipping_norm: _Positive = Field(
        description="No update moves the model by more, in the L2 norm of all floating-point "
        "arrays together."
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


GATE_KEYS = {
    GATE_PREFIX + name.replace("_", "-"): str(field.description)
    for name, field in GateKeys.model_fields.items()
}
"""What the gate does with each key of its own, in Markdown."""

_SCHEME = "gaussian"  # whose multipliers are compared

KEYS_OF_APPS = (
    "dp-allow-unverified-apps",
    "dp-data-path",
    "dp-data-schema",
    "dp-encoder-digests",
    "dp-record-epsilon",
    "dp-require-privacy",
)
"""Keys that an app would have to keep to: a gate refuses them."""

KEYS_OF_DATA = ("dp-data-path", "dp-data-schema")
"""Those of them that say where an app of fl-dp finds its data, and promise nothing."""

KEYS_OF_SUMS = ("dp-secagg-colluding", "dp-secagg-min-sum", "dp-secagg-roster")
"""Keys of `distributed` alone."""

_MULTIPLIER = "dp-gate-noise-multiplier"
_LEDGER = {"dp-ledger-path": "/srv/private/ledger.db"}
_CAP = {"dp-max-epsilon": "4.0"}
_NEEDED = {
    Promise.LOCAL: _LEDGER | _CAP | {_MULTIPLIER: "8.0"},
    Promise.DISTRIBUTED: _LEDGER | _CAP,  # how much noise a sum has, its charge says
    Promise.CLIP: _LEDGER,  # which says that the site relied upon the server
}
_IDLE: dict[Promise, tuple[str, ...]] = {
    Promise.LOCAL: KEYS_OF_SUMS,
    Promise.DISTRIBUTED: (_MULTIPLIER,),
    Promise.CLIP: (
        *_CAP,
        "dp-max-delta",
        _MULTIPLIER,
        "dp-gate-metrics",
        "dp-gate-evaluation",
        *KEYS_OF_SUMS,
    ),
}
_REQUIRED = {Promise.LOCAL: "local", Promise.DISTRIBUTED: "distributed", Promise.CLIP: "none"}


@dataclass(frozen=True, kw_only=True)
class GatePolicy:
    """What one gate does.

    Attributes:
        keys: Those of the gate alone.
        node_config: The other keys, as a node's mods read them.
    """

    keys: GateKeys
    node_config: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a policy's file.

        Raises:
            NodeConfigError: If it can't be read or can't be meant.
        """
        known = (POLICY_KEYS.keys() - {POLICY_PATH_KEY}) | GATE_KEYS.keys()
        written = policy_in_file(str(file), known)
        own = {key: value for key, value in written.items() if key in GATE_KEYS}
        others = {key: value for key, value in written.items() if key not in GATE_KEYS}
        for key in KEYS_OF_APPS:
            if key in others and key in KEYS_OF_DATA:
                raise NodeConfigError(f"{file}: apps read {key}: write it into --node-config")
            if key in others:
                raise NodeConfigError(
                    f"{file}: {key} would bind an app, and a gate trusts none: leave it out"
                )
        keys = checked_keys(GateKeys, own, str(file))
        _require_consistent(file, keys, others)
        if keys.promise is Promise.LOCAL:
            _require_noise(file, keys)
        node_config = others | {"dp-require-privacy": _REQUIRED[keys.promise]}
        NodeConfig.of(node_config)
        return cls(keys=keys, node_config=node_config)

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
        place = self.node_config.get(key)
        return [] if place is None or "://" in place else [Path(place)]

    @property
    def least_noise(self) -> NoiseInstruction:
        """The noise of an answer to a server that asks for none."""
        return _least_noise(self.keys)

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


def _least_noise(keys: GateKeys) -> NoiseInstruction:
    assert keys.noise_multiplier is not None  # `_require_consistent` has asked
    return NoiseInstruction(
        scheme=_SCHEME,
        noise_multiplier=keys.noise_multiplier,
        clipping_norm=keys.clipping_norm,
    )


def _require_noise(file: Path, keys: GateKeys) -> None:
    """Refuse noise that can't be drawn, before the first message.

    Raises:
        NodeConfigError: If it can't.
    """
    try:
        _least_noise(keys).mechanism()
    except ValueError as error:
        raise NodeConfigError(f"{file}: dp-gate-noise-multiplier: {error}") from error


def _require_consistent(file: Path, keys: GateKeys, others: Mapping[str, Any]) -> None:
    """Refuse a promise that nothing counts, or that nothing keeps.

    Raises:
        NodeConfigError: If it is one.
    """
    promise = keys.promise
    given = set(others) | {GATE_PREFIX + name.replace("_", "-") for name in keys.model_fields_set}
    for key, example in _NEEDED[promise].items():
        if key not in given:
            raise NodeConfigError(
                f"{file}: dp-gate-promise: {promise} needs a line `{key}: {example}`"
            )
    for key in _IDLE[promise]:
        if key in given:
            raise NodeConfigError(
                f"{file}: under dp-gate-promise: {promise} the line {key} says nothing: leave it "
                "out"
            )
    if promise is Promise.DISTRIBUTED and "://" in str(others["dp-ledger-path"]):
        raise NodeConfigError(
            f"{file}: a gate keeps its keys of secure sums beside its ledger, which must be a "
            "file: write dp-ledger-path: /srv/private/ledger.db"
        )
