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

from pydantic import BaseModel, ConfigDict, Field

from fl_dp.clients.node_config import (
    POLICY_KEYS,
    POLICY_PATH_KEY,
    PREFIX,
    NodeConfig,
    NodeConfigError,
    checked_keys,
    policy_in_file,
)
from fl_dp.protocol.instruction import NoiseInstruction

GATE_PREFIX = f"{PREFIX}gate-"
"""Of every key that a gate has besides those of a node."""

_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False, strict=True)]


class Promise(StrEnum):
    """What a gate does to an update before it leaves."""

    LOCAL = "local"
    """It clips, and adds noise of its own: the server is not trusted."""
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
        description="What happens to each update before it leaves: `local` clips it and adds "
        "noise, `clip` clips it and relies upon the server's noise."
    )
    clipping_norm: _Positive = Field(
        description="No update moves the model by more than this, in the L2 norm of all its "
        "floating-point arrays."
    )
    noise_multiplier: _Positive | None = Field(
        default=None,
        description="The least noise of each answer, divided by the clipping norm; for `local` "
        "alone.",
    )
    answer_after: _Positive = Field(
        description="Each training message is answered so many seconds after it came, whatever "
        "the app took. The app has four fifths of them."
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
    "dp-secagg-colluding",
    "dp-secagg-min-sum",
    "dp-secagg-roster",
)
"""Keys that an app would have to keep to, or that are about sums: a gate refuses them."""


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
            if key in others:
                raise NodeConfigError(
                    f"{file}: {key} would bind an app, and a gate trusts none: leave it out"
                )
        keys = checked_keys(GateKeys, own, str(file))
        NodeConfig.of(others)
        _require_consistent(file, keys, others)
        if keys.promise is Promise.LOCAL:
            _require_noise(file, keys)
        required = {"dp-require-privacy": "local"} if keys.promise is Promise.LOCAL else {}
        return cls(keys=keys, node_config=others | required)

    @property
    def least_noise(self) -> NoiseInstruction:
        """The noise of an answer to a server that asks for none."""
        return _least_noise(self.keys)


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
    has_cap, has_noise = "dp-max-epsilon" in others, keys.noise_multiplier is not None
    if keys.promise is Promise.LOCAL:
        lacking = {
            "dp-max-epsilon: 4.0": has_cap,
            "dp-gate-noise-multiplier: 8.0": has_noise,
        }
        for line, is_given in lacking.items():
            if not is_given:
                raise NodeConfigError(f"{file}: dp-gate-promise: local needs a line `{line}`")
    if keys.promise is Promise.CLIP:
        superfluous = {"dp-max-epsilon": has_cap, "dp-gate-noise-multiplier": has_noise}
        for key, is_given in superfluous.items():
            if is_given:
                raise NodeConfigError(
                    f"{file}: dp-gate-promise: clip adds no noise, so {key} says nothing: leave "
                    "it out, or write dp-gate-promise: local"
                )
        if "dp-ledger-path" not in others:
            raise NodeConfigError(
                f"{file}: dp-gate-promise: clip needs a ledger, which says that the site relied "
                "upon the server: add dp-ledger-path: /data/ledger.db"
            )
