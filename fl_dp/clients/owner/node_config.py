"""The owner's policy: every key of `--node-config` that is fl-dp's, in one model.

    flower-supernode ... --node-config 'dp-ledger-path="/data/ledger.db" dp-max-epsilon=4.0'

Each key begins with `dp-`. An unknown key with the prefix is refused, and a known one without it.
Otherwise an owner who misspells a key would believe the node protected. Keys of others are not
read. The same keys can stand in a file, `dp-policy-path`, read at every message: an owner who
tightens it need not restart the node. With a cap every message has to offer differential privacy,
unless the owner writes that it need not.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
)

from fl_dp.accounting import PrivacyBudget
from fl_dp.documents import plain_yaml, repeated_keys
from fl_dp.updates.shared_part import matching

from .running_app import AppRule, rules_in

PREFIX = "dp-"
"""Prefix of all keys of fl-dp, and of no other project's."""

POLICY_PATH_KEY = "dp-policy-path"
PARTITION_ID_KEY = "partition-id"
"""Flower's own key: the node's part of a simulated split."""

RECORD, LOCAL, DISTRIBUTED = "record", "local", "distributed"
RECORD_SUMS = "distributed-records"
"""Values of `dp-require-privacy`: DP-SGD, noise at the client, and noise inside a secure sum, of
whole clients or of their records."""

_SECURE_SUMS = {DISTRIBUTED, RECORD_SUMS}
_LONGEST_POLICY = 100_000


class NodeConfigError(ValueError):
    """The owner's `--node-config` is invalid; nothing was answered."""


def _absolute(path: str) -> str:
    if not Path(path).is_absolute():
        raise ValueError("must be absolute: a ClientApp does not run where the SuperNode started")
    return path


def _absolute_or_url(location: str) -> str:
    return location if "://" in location else _absolute(location)


def _day(value: object) -> date:
    try:
        return date.fromisoformat(str(value))  # YAML has read it as a date already
    except ValueError:
        raise ValueError('must be a day like "2027-01-31"') from None


def _listed(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise ValueError("must be a text with commas between its parts")
    return tuple(value.split(","))


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_File = Annotated[_Text, AfterValidator(_absolute)]
_FileOrURL = Annotated[_Text, AfterValidator(_absolute_or_url)]
_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Model = TypeVar("Model", bound=BaseModel)
_Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


def _key_of(field: str) -> str:
    return PREFIX + field.replace("_", "-")


class NodeConfig(BaseModel):
    """Every key of `--node-config` that fl-dp reads, checked.

    A field is a key without its prefix; its description is the row of the key in
    docs/node_policy.md. `partition_id` alone is Flower's key.
    """

    model_config = ConfigDict(
        alias_generator=_key_of, extra="forbid", frozen=True, strict=True, hide_input_in_errors=True
    )

    policy_path: _File | None = Field(
        default=None,
        description="Reads the other keys from this file at every message. "
        "Without it: all keys stand in `--node-config`.",
    )
    ledger_path: _FileOrURL | None = Field(
        default=None,
        description="Counts in this [ledger](deployment.md#the-ledger-of-a-node), an absolute file "
        "or a database URL, what its data have spent. Without it: counts nothing of its own.",
    )
    witness_path: _FileOrURL | None = Field(
        default=None,
        description="Compares the ledger with this file or PostgreSQL database elsewhere, and "
        "refuses [an older copy](deployment.md#a-ledger-that-was-put-back). Without it: an older "
        "copy is not noticed.",
    )
    require_privacy: (
        Literal[
            "record",
            "local",
            "record+local",
            "distributed",
            "distributed-records",
            "any",
            "none",
        ]
        | None
    ) = Field(
        default=None,
        description="Refuses what does not offer this: see [what a node requires](deployment.md"
        "#what-a-node-requires). A requirement without a cap is an error: the node answers "
        "nothing. Without it: with a cap `any`, else nothing.",
    )
    max_epsilon: _Positive | None = Field(
        default=None,
        description="Spends at most this over all runs, for records and for the node as a whole "
        "apart: a node that serves both spends it twice. A run's own budget counts that run "
        "alone. Without it: each run's own budget, and nothing limits all of them.",
    )
    max_delta: Annotated[_Positive, Field(lt=1.0)] = Field(
        default=1e-5,  # without a default the server would choose it
        description="Sets the delta that goes with `dp-max-epsilon`. Without it: 1e-5.",
    )
    record_epsilon: _Positive | None = Field(
        default=None,
        description="Where a run's DP-SGD plans a larger epsilon for each [record](glossary.md"
        "#record), trains with more noise: this holds over all of its rounds. Without it: as the "
        "run plans.",
    )
    allow_unverified_apps: bool = Field(
        default=False,
        description="Answers although its SuperNode [verifies no app](deployment.md#which-app-a-"
        "node-runs). Without it: refuses where it sees that.",
    )
    allowed_apps: Annotated[tuple[AppRule, ...] | None, PlainValidator(rules_in)] = Field(
        default=None,
        description="Answers these apps alone: `publisher/name`, perhaps with versions "
        "(`>=1.2,<2`), perhaps with the first digits of the bundle's hash (`==1.2.0@3f2a9c01`). "
        "Several stand in a list, or with spaces between them. Without it: whatever app Flower "
        "runs.",
    )
    tell_exhausted: bool = Field(
        default=False,
        description="May say that its budget is spent: `dp-max-epsilon`, or what the run itself "
        "asked for. Without it: does not say so.",
    )
    dataset_name: _Text | None = Field(
        default=None,
        description="Counts under this name of the data, which stays the same when they change. "
        "Without it: `dp-unit-name`, or the number of its partition.",
    )
    unit_name: _Text | None = Field(
        default=None,
        description="Is known under this name to a [roster](glossary.md#roster). Without it: by "
        "the number of its partition.",
    )
    data_path: _File | None = Field(
        default=None,
        description="Reads its data from this folder. Without it: the app's own data.",
    )
    data_schema: _File | None = Field(
        default=None,
        description="Reads these columns, types and classes, whatever the server names. Without "
        "it: the server's.",
    )
    shared_parameters: Annotated[tuple[_Text, ...] | None, BeforeValidator(_listed)] = Field(
        default=None,
        description='Trains no model with other parameters: `"body.*,norm.*"` keeps a head at the '
        "node, whatever app or server ask. Without it: all that the run shares.",
    )
    encoder_digests: Annotated[tuple[_Digest, ...] | None, BeforeValidator(_listed)] = Field(
        default=None,
        description="Trains on [features](features.md) of these encoders alone, named by SHA-256 "
        "with commas between them. Without it: as the run says; with a requirement no "
        "`features=checkpoint`.",
    )
    min_round_interval: _Positive | None = Field(
        default=None,
        description="Refuses a message that comes sooner, in seconds, after the last of its kind. "
        "Without it: no limit.",
    )
    policy_expires: Annotated[date | None, BeforeValidator(_day)] = Field(
        default=None,
        description="From this day on, in UTC, answers nothing but its name. Without it: never.",
    )
    secagg_roster: _File | None = Field(
        default=None,
        description="Takes part in secure sums with the nodes of this [roster](secure-aggregation."
        "md#set-up-a-roster) alone. Without it: a server that lies can invent nodes.",
    )
    secagg_min_sum: int = Field(
        default=2,
        ge=2,
        description="Adds to no secure sum of fewer honest [clients](glossary.md#client). Without "
        "it: 2.",
    )
    secagg_colluding: int | None = Field(
        default=None,
        ge=0,
        description="Supposes that at least this many nodes collude. Without it: with a roster, "
        "what is usual, lest a server that lies write 0; else the plan's number.",
    )
    partition_id: int | None = Field(default=None, alias="partition-id", strict=False)

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self:
        """Read `Context.node_config`, and the policy's file if it names one.

        Raises:
            NodeConfigError: A key looks like fl-dp's and is none, or is given twice; a value is out
                of range; a cap or a requirement has no ledger, or a requirement no cap. Or the
                policy's file can't be read or has a key that is not fl-dp's.
        """
        values = {}
        for key, value in node_config.items():
            if key == PARTITION_ID_KEY or means_ours(key):
                values[key] = value
        owner = cls._read(values)
        if owner.policy_path is not None:
            owner = cls._read(values | _policy_in(owner.policy_path, values))
        _require_consistent(owner)
        return owner

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Self:
        try:
            return checked_keys(cls, values)
        except NodeConfigError as error:
            raise _error(str(error)) from None

    @property
    def cap(self) -> PrivacyBudget | None:
        """The cap over everything ever charged for the node's data; None: no cap."""
        if self.max_epsilon is None:
            return None
        return PrivacyBudget(epsilon=self.max_epsilon, delta=self.max_delta)

    @property
    def required(self) -> tuple[frozenset[str], ...]:
        """Sets of kinds, all kinds of one of which each message has to offer; empty: no demand.

        A kind is `record`, `local`, `distributed` or `distributed-records`.
        """
        demand = self.require_privacy
        if demand is None:
            demand = "none" if self.max_epsilon is None else "any"
        if demand == "none":
            return ()
        if demand == "any":
            without_sums = frozenset({RECORD}), frozenset({LOCAL})
            if self.secagg_roster is None:  # a server that lies makes up the other nodes
                return without_sums
            return (*without_sums, frozenset({DISTRIBUTED}), frozenset({RECORD_SUMS}))
        if demand == RECORD_SUMS:  # a sum that hides a whole client hides its records
            return frozenset({RECORD_SUMS}), frozenset({DISTRIBUTED})
        return (frozenset(demand.split("+")),)

    def withheld(self, names: Iterable[str]) -> str | None:
        """Why an update of these parameters may not leave the node; None if it may."""
        if self.shared_parameters is None:
            return None
        requested = list(names)
        private = sorted(set(requested) - set(matching(requested, self.shared_parameters)))
        if not private:
            return None
        shared = ",".join(self.shared_parameters)
        return (
            f"'{private[0]}' stays on this node: its owner wrote dp-shared-parameters=\"{shared}\""
        )

    def refused_encoder(self, digest: str | None, *, runs_code: bool = False) -> str | None:
        """Why an encoder may not be used; None if it may.

        Args:
            digest: SHA-256 of the encoder, None where records are trained on as they are.
            runs_code: Whether it is a function and weights that the server names.
        """
        if self.encoder_digests is None:
            if not (self.required and runs_code):
                return None
            return (
                "the server names code and weights to encode this node's records, and the node's "
                f'owner requires privacy: allow the encoder, dp-encoder-digests="{digest}"'
            )
        if digest in self.encoder_digests:
            return None
        allowed = ",".join(self.encoder_digests)
        named = "none" if digest is None else digest
        return f'the encoder is {named}: its owner wrote dp-encoder-digests="{allowed}"'

    @property
    def has_expired(self) -> bool:
        """Whether the owner's permission has ended."""
        return self.policy_expires is not None and datetime.now(UTC).date() >= self.policy_expires

    @property
    def takes_part_in_sums(self) -> bool:
        """Whether the owner's demand allows secure sums."""
        return not self.required or any(kinds & _SECURE_SUMS for kinds in self.required)

    @property
    def node_name(self) -> str:
        """The node's stable name: `dp-unit-name`, else `partition-` and its number, else empty."""
        if self.unit_name is not None:
            return self.unit_name
        if self.partition_id is None:
            return ""
        return f"partition-{self.partition_id}"

    @property
    def source(self) -> str:
        """The node's most lasting name for its data."""
        # Nameless nodes with one ledger count as one, which charges too much, never too little.
        return self.dataset_name or self.node_name or "the data of this ledger"


POLICY_KEYS = {
    _key_of(name): str(field.description)
    for name, field in NodeConfig.model_fields.items()
    if field.description is not None
}
"""Descriptions of fl-dp's keys, in Markdown, in the order of the page."""


def means_ours(key: str) -> bool:
    """Tell whether a key is fl-dp's, perhaps misspelt: it has the prefix, or lacks only that."""
    normal = key.lower().replace("_", "-")
    return normal.startswith(PREFIX) or PREFIX + normal in POLICY_KEYS


def checked_keys(model: type[Model], values: Mapping[str, Any], file: str = "") -> Model:
    """Return keys as a model reads them; an empty `file` stands for `--node-config`.

    Raises:
        NodeConfigError: A key is missing or unknown, or its value is invalid.
    """
    prefix = f"{file}: " if file else ""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise NodeConfigError(
                f"{prefix}'{key}' is no key of fl-dp: {_suggestion(key, POLICY_KEYS)}"
            ) from None
        if first["type"] == "missing":
            raise NodeConfigError(f"{prefix}{key} is missing: add a line for it") from None
        problem = first["msg"].removeprefix("Value error, ").replace("Input ", "", 1)
        raise NodeConfigError(f"{prefix}{key} {problem}, got {values[key]!r:.50}") from None


def policy_in_file(path: str, keys: Collection[str]) -> dict[str, Any]:
    """Return the keys and values of a policy's file; `keys` are all that it may have.

    Raises:
        NodeConfigError: It can't be read, or has another key, or one twice or without value.
    """
    try:
        with Path(path).open("rb") as stream:
            text = stream.read(_LONGEST_POLICY + 1)
        if len(text) > _LONGEST_POLICY:  # it is read at every message
            raise ValueError(f"it is longer than {_LONGEST_POLICY:,} bytes")
        policy = plain_yaml(text, "it")
    except (OSError, ValueError) as error:  # YAML raises a ValueError for 31 February
        reason = " ".join(str(error).split())
        raise NodeConfigError(f"{path} can't be read, so nothing is answered: {reason}") from error
    if not isinstance(policy, dict) or not all(isinstance(key, str) for key in policy):
        raise NodeConfigError(
            f"{path} must hold lines like `dp-max-epsilon: 4.0`, and holds others"
        )
    # YAML itself takes the last of two lines with one key, and None for an empty value.
    if repeated := repeated_keys(text):
        raise NodeConfigError(f"{path}: '{repeated[0]}' is given twice: keep one")
    # No other project reads this file, so an unknown key is a mistake.
    for key, value in policy.items():
        if key not in keys:
            raise NodeConfigError(
                f"{path}: '{key}' is no key of a policy: {_suggestion(key, keys)}"
            )
        if value is None:
            raise NodeConfigError(f"{path}: {key} has no value: write one, or leave the line out")
    return policy


def _policy_in(path: str, node_config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a policy's file; none of its keys may stand in `--node-config`."""
    try:
        policy = policy_in_file(path, POLICY_KEYS.keys() - {POLICY_PATH_KEY})
    except NodeConfigError as error:
        raise _error(f"{POLICY_PATH_KEY}={error}") from error
    for key in policy:
        if key in node_config:
            raise _error(f"{key} is given twice, in --node-config and in {path}: keep one")
    return policy


def _suggestion(key: str, keys: Collection[str]) -> str:
    nearest = difflib.get_close_matches(key, sorted(keys), n=1, cutoff=0.0)[0]
    return f"did you mean {nearest}?"


def _require_consistent(owner: NodeConfig) -> None:
    """Refuse keys that have no effect without another, or contradict it."""
    epsilon, ledger, keys_set = owner.max_epsilon, owner.ledger_path, owner.model_fields_set
    if "max_delta" in keys_set and epsilon is None:
        raise _error(f"dp-max-delta={owner.max_delta:g} alone caps nothing: add dp-max-epsilon=4.0")
    record_epsilon = owner.record_epsilon
    if record_epsilon is not None and epsilon is not None and record_epsilon > epsilon:
        raise _error(
            f"dp-record-epsilon={record_epsilon:g} lets one run spend more than dp-max-epsilon="
            f"{epsilon:g} allows all runs together: write at most that"
        )
    for key, value, lacks in (
        ("dp-max-epsilon", epsilon, "needs a ledger to count in"),
        ("dp-witness-path", owner.witness_path, "has no ledger to watch"),
    ):
        if value is not None and ledger is None:
            raise _error(f'{key} {lacks}: add dp-ledger-path="/data/ledger.db"')
    interval = owner.min_round_interval
    if interval is not None and (ledger is None or "://" in ledger):
        raise _error(
            f"dp-min-round-interval={interval:g} needs a file beside the ledger for the last "
            'round\'s time: add dp-ledger-path="/data/ledger.db"'
        )
    if owner.required and epsilon is None:
        raise _error(
            f'dp-require-privacy="{owner.require_privacy}" needs a cap and a ledger, or any '
            'epsilon would do: add dp-max-epsilon=4.0 dp-ledger-path="/data/ledger.db"'
        )
    sum_keys = sorted(_key_of(name) for name in keys_set if name.startswith("secagg_"))
    if sum_keys and not any(kinds & _SECURE_SUMS for kinds in owner.required):
        raise _error(
            f"{sum_keys[0]} is about secure sums, which this node does not require, so it protects "
            f'nothing: add dp-require-privacy="{DISTRIBUTED}"'
        )


def _error(text: str) -> NodeConfigError:
    return NodeConfigError(f"--node-config: {text}")
