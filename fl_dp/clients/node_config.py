"""The configuration that a node's owner gave: every key of `--node-config` that fl-dp reads.

    flower-supernode ... --node-config 'ledger-path="/data/ledger.db" max-epsilon=4.0'

It is closed by default. A key that is almost one of these is refused and not ignored: an owner who
misspells what protects a node would believe it protected. Underscores are read as hyphens. Keys of
other projects are left alone. The same keys can stand in a file, `policy-path`, which is read at
every message: an owner who tightens it need not restart the node. A cap on what may be spent
also requires that every message offers differential privacy, unless the owner writes that it does
not.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from fl_dp.documents import keys_given_twice, plain_yaml
from fl_dp.updates.shared_part import matching

from .running_app import AppRule, rules_in

POLICY_PATH_KEY = "policy-path"
LEDGER_PATH_KEY = "ledger-path"
WITNESS_PATH_KEY = "witness-path"
MAX_EPSILON_KEY = "max-epsilon"
RECORD_EPSILON_KEY = "record-epsilon"
MAX_DELTA_KEY = "max-delta"
REQUIRE_PRIVACY_KEY = "require-privacy"
UNVERIFIED_APPS_KEY = "allow-unverified-apps"
TELL_EXHAUSTED_KEY = "tell-exhausted"
DATASET_NAME_KEY = "dataset-name"
UNIT_NAME_KEY = "unit-name"
DATA_PATH_KEY = "data-path"
DATA_SCHEMA_KEY = "data-schema"
SHARED_KEY = "shared-parameters"
ENCODERS_KEY = "encoder-digests"
EXPIRES_KEY = "policy-expires"
BUDGET_EXPIRES_KEY = "budget-expires"
APPS_KEY = "allowed-apps"
STATISTICS_KEY = "statistics-from"
EVALUATION_KEY = "evaluation-from"
INTERVAL_KEY = "min-round-interval"
COHORT_KEY = "min-cohort"
ROSTER_KEY = "secagg-roster"
LEAST_SUM_KEY = "secagg-min-sum"
COLLUDING_KEY = "secagg-colluding"
"""Keys of `--node-config` that are fl-dp's own."""

PARTITION_ID_KEY = "partition-id"
"""Flower's own key: which part of a simulated split the node holds."""

_LONGEST_POLICY = 100_000

DEFAULT_MAX_DELTA = 1e-5
"""Delta of a `max-epsilon` that has no `max-delta`: else the server would choose it."""

RECORD, LOCAL, DISTRIBUTED = "record", "local", "distributed"
RECORD_SUMS = "distributed-records"
"""Values of `require-privacy`: DP-SGD, noise at the client, and noise inside a secure sum, of whole
clients or of their records."""

LEAST_SUM = 2
"""Default of `secagg-min-sum`."""

NOBODY, ANYBODY = "none", "any"
"""Values of `statistics-from` and `evaluation-from`, besides apps."""

_SECURE_SUMS = {DISTRIBUTED, RECORD_SUMS}
_FLOWERS = (PARTITION_ID_KEY, "num-partitions")
# No other project's key has them, so a key that does was meant for fl-dp.
_OUR_WORDS = re.compile(
    r"ledger|witness|expir|epsilon|privacy|exhausted|unverified|secagg|\b(max)?eps\b|\brequire"
    r"|\ballow(ed)?-?app|encoder-?digest|statistics-?from|evaluations?-?from|cohort|round-?interval|shared-?param"
    r"|^(node-)?policy(-?(file|path|yaml))?$|^fl-dp"
)
# One wrong, missing or swapped letter in any key of ours; `dataset-path`, which Flower's examples
# use, is further from `data-path`.
_ALMOST = 0.87


class NodeConfigError(ValueError):
    """The owner's `--node-config` says something that can't be meant; nothing was answered."""


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Every key of `--node-config` that fl-dp reads, checked.

    Attributes:
        ledger_path: Absolute file or database URL of the node's ledger; None: there is none.
        witness_path: Absolute file or PostgreSQL URL, elsewhere, that knows how far the ledger
            has come: an older copy that is put back is refused. None: there is none.
        expires: The first day, in UTC, on which the node answers nothing any more; None: never.
        budget_expires: The first day, in UTC, on which what is left of the budget is gone, as if it
            were spent; None: never.
        apps: Apps whose messages are answered; None: whatever app Flower runs.
        statistics_from: Apps that may ask for statistics, within what is required; None: each.
        evaluation_from: Apps that may ask for evaluations and utilities; None: each.
        round_interval: Least seconds between two messages of a kind that use the data; None: none.
        max_epsilon: Cap over everything that is ever charged for the node's data, for records and
            for the node as a whole apart; None: none.
        record_epsilon: Most epsilon of one run under DP-SGD for each record: where the run's plan
            allows more, the node trains with more noise. None: as the run plans.
        max_delta: The delta that goes with it.
        required: What each message has to offer: one of these alternatives, each a set of
            `record`, `local`, `distributed` and `distributed-records` that must all be there.
            Empty: nothing is required.
        allow_unverified_apps: Whether a requirement holds although Flower verifies no app.
        tell_exhausted: Whether the node may say that its budget is spent, and by which limit.
        dataset_name: A name of the data that stays the same when they change.
        unit_name: The name under which a roster knows the node.
        data_path: Absolute folder of the node's own data.
        data_schema: Absolute file in which the owner wrote down the columns and classes of that
            data; the server's are ignored then.
        shared_parameters: Names or patterns of the parameters that may leave the node; None: each
            that the run shares.
        encoders: SHA-256 of the encoders by whose vectors the node trains; None: as the run says,
            but for code and weights of the server's choice where privacy is required.
        partition_id: Which part of a simulated split the node holds.
        roster: Absolute file with the identities of everybody who may take part in a secure sum;
            without it a server could invent the other nodes.
        least_sum: Fewest honest clients of any secure sum that the server could open.
        least_cohort: Fewest clients that a secure sum is opened over, honest or not.
        colluding: Nodes that the owner supposes to collude; a server may suppose more. None: the
            owner leaves it to the plan without a roster, and to what is usual with one, lest a
            server that lies writes 0.
    """

    ledger_path: str | None = None
    witness_path: str | None = None
    expires: date | None = None
    budget_expires: date | None = None
    apps: tuple[AppRule, ...] | None = None
    statistics_from: tuple[AppRule, ...] | None = None
    evaluation_from: tuple[AppRule, ...] | None = None
    round_interval: float | None = None
    max_epsilon: float | None = None
    record_epsilon: float | None = None
    max_delta: float | None = None
    required: tuple[frozenset[str], ...] = ()
    allow_unverified_apps: bool = False
    tell_exhausted: bool = False
    dataset_name: str | None = None
    unit_name: str | None = None
    data_path: str | None = None
    data_schema: str | None = None
    shared_parameters: tuple[str, ...] | None = None
    encoders: tuple[str, ...] | None = None
    partition_id: int | None = None
    roster: str | None = None
    least_sum: int = LEAST_SUM
    least_cohort: int = 0
    colluding: int | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self:
        """Read `Context.node_config`, and the policy's file if it names one.

        Raises:
            NodeConfigError: If a key is almost one of fl-dp's or is given twice, a value is out of
                range, a cap or a requirement has no ledger, or a requirement has no cap; or if the
                policy's file can't be read or has a key that is not fl-dp's.
        """
        given = _with_policy(_by_hyphens(node_config))
        values = {
            each.field: each.read(given, each.name)
            for each in POLICY_KEYS
            if each.field is not None and each.read is not None
        }
        _require_consistent(given, values)
        values["required"] = _required(
            given.get(REQUIRE_PRIVACY_KEY),
            capped=values["max_epsilon"] is not None,
            pinned=values["roster"] is not None,
        )
        _require_guarded(given, values)
        if values["max_epsilon"] is not None and values["max_delta"] is None:
            values["max_delta"] = DEFAULT_MAX_DELTA
        return cls(partition_id=_partition(given), **values)

    def withheld(self, names: Iterable[str]) -> str | None:
        """Return why an update of these parameters may not leave the node; None if it may."""
        if self.shared_parameters is None:
            return None
        asked = list(names)
        kept = sorted(set(asked) - set(matching(asked, self.shared_parameters)))
        if not kept:
            return None
        shared = ",".join(self.shared_parameters)
        return f"'{kept[0]}' stays on this node: its owner wrote {SHARED_KEY}=\"{shared}\""

    def refused_encoder(self, digest: str | None, *, runs_code: bool = False) -> str | None:
        """Return why records may not be encoded so; None if they may.

        Args:
            digest: SHA-256 of the encoder, None where records are trained on as they are.
            runs_code: Whether it is a function and weights that the server names.
        """
        if self.encoders is None:
            if not (self.required and runs_code):
                return None
            return (
                "the server names code and weights to encode this node's records, and the node's "
                f'owner requires privacy: allow the encoder, {ENCODERS_KEY}="{digest}"'
            )
        if digest in self.encoders:
            return None
        shown = "none" if digest is None else digest
        return f'the encoder is {shown}: its owner wrote {ENCODERS_KEY}="{",".join(self.encoders)}"'

    @property
    def has_expired(self) -> bool:
        """Whether the owner's permission has ended."""
        return self.expires is not None and datetime.now(UTC).date() >= self.expires

    @property
    def takes_part_in_sums(self) -> bool:
        """Whether a secure sum can be what the owner requires, or nothing is required."""
        return not self.required or any(each & _SECURE_SUMS for each in self.required)

    @property
    def node_name(self) -> str:
        """The stable name of the node, or nothing: `unit-name`, else that of its partition."""
        if self.unit_name is not None:
            return self.unit_name
        return "" if self.partition_id is None else f"partition-{self.partition_id}"

    @property
    def source(self) -> str:
        """The most lasting name that the node has for its data."""
        # Nameless nodes of one ledger count as one: too much is charged rather than too little.
        return self.dataset_name or self.node_name or "the data of this ledger"


def _by_hyphens(node_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given for the keys that are read, spelt with hyphens."""
    given: dict[str, Any] = {}
    for key, value in node_config.items():
        name = key.replace("_", "-")
        if name not in (*_OURS, *_FLOWERS):
            _refuse_if_meant_for_us(key)
            continue
        if name in given:
            raise _error(f"{name} is given twice, with hyphens and with underscores: keep one")
        given[name] = value
    return given


def _with_policy(given: dict[str, Any]) -> dict[str, Any]:
    """Return what was given, and what stands in the policy's file if one is named."""
    place = _path(given, POLICY_PATH_KEY)
    if place is None:
        return given
    try:
        with Path(place).open("rb") as stream:
            text = stream.read(_LONGEST_POLICY + 1)
        if len(text) > _LONGEST_POLICY:  # it is read at every message
            raise ValueError(f"it is longer than {_LONGEST_POLICY:,} bytes")
        policy = plain_yaml(text, "it")
    except (OSError, ValueError) as error:  # a day that there is not, for one
        said = " ".join(str(error).split())
        raise _error(
            f"{POLICY_PATH_KEY}={place} can't be read, so nothing is answered: {said}"
        ) from error
    if not isinstance(policy, dict) or not all(isinstance(key, str) for key in policy):
        raise _error(f"{place} must hold lines like `{MAX_EPSILON_KEY}: 4.0`, and holds others")
    # YAML itself takes the last of two lines with one key, and an empty value for none.
    if twice := keys_given_twice(text):
        raise _error(f"{place}: '{twice[0]}' is given twice: keep one")
    # No other project reads this file: what is not fl-dp's is a mistake.
    names = {key.replace("_", "-"): value for key, value in policy.items()}
    for name in names:
        if name not in _OURS or name == POLICY_PATH_KEY:
            nearest = difflib.get_close_matches(name, _OURS, n=1, cutoff=0.0)[0]
            raise _error(f"{place}: '{name}' is no key of a policy: did you mean {nearest}?")
        if name in given:
            raise _error(f"{name} is given twice, in --node-config and in {place}: keep one")
        if names[name] is None:
            raise _error(f"{place}: {name} has no value: write one, or leave the line out")
    if len(names) < len(policy):
        raise _error(f"{place}: a key is given twice, with hyphens and with underscores")
    return given | names


def _refuse_if_meant_for_us(key: str) -> None:
    name = key.replace("_", "-").lower()
    nearest = difflib.get_close_matches(name, (*_OURS, *_FLOWERS), n=1, cutoff=_ALMOST)
    if not nearest and _OUR_WORDS.search(name):
        nearest = difflib.get_close_matches(name, _OURS, n=1, cutoff=0.0)
    if nearest:
        raise _error(
            f"'{key}' is no key of fl-dp: did you mean {nearest[0]}? (It has {', '.join(_OURS)})"
        )


def _required(asked: object, *, capped: bool, pinned: bool) -> tuple[frozenset[str], ...]:
    any_of_them: tuple[frozenset[str], ...] = (frozenset({RECORD}), frozenset({LOCAL}))
    if pinned:  # else a server that lies makes up the other nodes and their shares of noise
        any_of_them += (frozenset({DISTRIBUTED}), frozenset({RECORD_SUMS}))
    known: dict[str, tuple[frozenset[str], ...]] = {
        "none": (),
        "any": any_of_them,
        RECORD: (frozenset({RECORD}),),
        LOCAL: (frozenset({LOCAL}),),
        DISTRIBUTED: (frozenset({DISTRIBUTED}),),
        # Who hides a whole client hides its records.
        RECORD_SUMS: (frozenset({RECORD_SUMS}), frozenset({DISTRIBUTED})),
        f"{RECORD}+{LOCAL}": (frozenset({RECORD, LOCAL}),),
        f"{LOCAL}+{RECORD}": (frozenset({RECORD, LOCAL}),),
    }
    if asked is None:
        return any_of_them if capped else ()
    if not isinstance(asked, str) or asked not in known:
        raise _error(
            f'{REQUIRE_PRIVACY_KEY} must be "record", "local", "record+local", "distributed", '
            f'"distributed-records", "any" (of the first two, and of the last two with '
            f'{ROSTER_KEY}) or "none", got {asked!r}'
        )
    return known[asked]


def _text(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).strip():
        raise _error(f'{key} must be a text, as in {key}="...", got {value!r}')
    return str(value)


def _path(given: Mapping[str, Any], key: str) -> str | None:
    path = _text(given, key)
    may_be_database = key in (LEDGER_PATH_KEY, WITNESS_PATH_KEY)
    is_database = may_be_database and path is not None and "://" in path  # has no folder
    if path is not None and not is_database and not Path(path).is_absolute():
        raise _error(
            f"{key} must be absolute, got '{path}': a ClientApp does not run where you started the "
            "SuperNode"
        )
    return path


def _number(given: Mapping[str, Any], key: str, *, below: float) -> float | None:
    value = given.get(key)
    if value is None:
        return None
    number = None if isinstance(value, bool) else _finite(value)
    if number is None or not 0 < number < below:
        limit = "" if math.isinf(below) else f" below {below:g}"
        raise _error(f"{key} must be a positive number{limit}, got {value!r:.50}")
    return number


def _finite(value: object) -> float | None:
    """Return a finite number as a float, None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _day(given: Mapping[str, Any], key: str) -> date | None:
    value = given.get(key)
    if value is None:
        return None
    try:
        return date.fromisoformat(str(value))  # YAML has read it as a date already
    except ValueError:
        raise _error(f'{key} must be a day like "2027-01-31", got {value!r}') from None


def _apps(given: Mapping[str, Any], key: str) -> tuple[AppRule, ...] | None:
    if key not in given:
        return None
    try:
        return rules_in(given[key])
    except ValueError as error:
        raise _error(f"{key}: {error}") from error


def _askers(given: Mapping[str, Any], key: str) -> tuple[AppRule, ...] | None:
    value = given.get(key)
    if value == NOBODY:
        return ()
    return None if value == ANYBODY else _apps(given, key)


def _patterns(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    text = _text(given, key)
    if text is None:
        return None
    patterns = tuple(each.strip() for each in text.split(","))
    if not all(patterns):
        raise _error(
            f'{key} must be names of parameters, as in {key}="body.*,norm.*", got {text!r}'
        )
    return patterns


def _digests(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    digests = _patterns(given, key)
    for digest in digests or ():
        if re.fullmatch("[0-9a-f]{64}", digest) is None:
            raise _error(f"{key} must be SHA-256 digests, 64 hexadecimal digits, got '{digest}'")
    return digests


def _flag(given: Mapping[str, Any], key: str) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        raise _error(f"{key} must be true or false, without quotes, got {value!r}")
    return value


def _count(given: Mapping[str, Any], key: str, *, default: int | None, least: int) -> int | None:
    if key not in given:
        return default
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _error(f"{key} must be a whole number from {least} on, got {value!r}")
    return value


def _partition(given: Mapping[str, Any]) -> int | None:
    value = given.get(PARTITION_ID_KEY)
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise _error(f"{PARTITION_ID_KEY} must be a whole number, got {value!r}") from None


def _require_consistent(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse keys that say nothing without another one, or contradict it.

    Raises:
        NodeConfigError: If one does.
    """
    epsilon, ledger = values["max_epsilon"], values["ledger_path"]
    if values["max_delta"] is not None and epsilon is None:
        raise _error(
            f"{MAX_DELTA_KEY}={values['max_delta']:g} alone caps nothing: add {MAX_EPSILON_KEY}=4.0"
        )
    record_epsilon = values["record_epsilon"]
    if record_epsilon is not None and epsilon is not None and record_epsilon > epsilon:
        raise _error(
            f"{RECORD_EPSILON_KEY}={record_epsilon:g} lets one run spend more than "
            f"{MAX_EPSILON_KEY}={epsilon:g} allows all runs together: write at most that"
        )
    for key, value, lacks in (
        (MAX_EPSILON_KEY, epsilon, "needs a ledger to count in"),
        (WITNESS_PATH_KEY, values["witness_path"], "has no ledger to watch"),
        (
            BUDGET_EXPIRES_KEY,
            values["budget_expires"],
            "ends a ledger's budget, and there is none",
        ),
    ):
        if value is not None and ledger is None:
            shown = f"{key}={value:g}" if isinstance(value, float) else key
            raise _error(f'{shown} {lacks}: add {LEDGER_PATH_KEY}="/data/ledger.db"')
    interval = values["round_interval"]
    if interval is not None and (ledger is None or "://" in ledger):
        raise _error(
            f"{INTERVAL_KEY}={interval:g} needs a file beside the ledger for the last round's "
            f'time: add {LEDGER_PATH_KEY}="/data/ledger.db"'
        )


def _require_guarded(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse a requirement without a cap, and keys of secure sums where none is required.

    Raises:
        NodeConfigError: If there is one.
    """
    required = values["required"]
    if required and values["max_epsilon"] is None:
        raise _error(
            f'{REQUIRE_PRIVACY_KEY}="{given.get(REQUIRE_PRIVACY_KEY)}" needs a cap and a ledger, '
            f"or any epsilon would do: add {MAX_EPSILON_KEY}=4.0 "
            f'{LEDGER_PATH_KEY}="/data/ledger.db"'
        )
    sums = [each.name for each in POLICY_KEYS if each.of_sums and each.name in given]
    if sums and not any(each & _SECURE_SUMS for each in required):
        raise _error(
            f"{sums[0]} is about secure sums, which this node does not require, so it protects "
            f'nothing: add {REQUIRE_PRIVACY_KEY}="{DISTRIBUTED}"'
        )


def _error(text: str) -> NodeConfigError:
    return NodeConfigError(f"--node-config: {text}")


@dataclass(frozen=True, kw_only=True)
class PolicyKey:
    """One key of an owner's policy: its row in docs/node_policy.md is made of this.

    Attributes:
        name: In `--node-config` and in a policy's file.
        does: What the node then does, in Markdown.
        otherwise: What it does if the key is left out.
        field: That of `NodeConfig`; None: it says where other keys stand.
        read: Reads and checks the value; None where it depends on other keys.
        of_sums: Whether it says nothing where no secure sum is required.
    """

    name: str
    does: str
    otherwise: str
    field: str | None = None
    read: Callable[[Mapping[str, Any], str], Any] | None = None
    of_sums: bool = False


POLICY_KEYS = (
    PolicyKey(
        name=POLICY_PATH_KEY,
        does="Reads the other keys from this file at every message.",
        otherwise="All keys stand in `--node-config`",
    ),
    PolicyKey(
        name=LEDGER_PATH_KEY,
        field="ledger_path",
        read=_path,
        does=(
            "Counts in this [ledger](deployment.md#the-ledger-of-a-node), an absolute file or a "
            "database URL, what its data have spent."
        ),
        otherwise="Counts nothing of its own",
    ),
    PolicyKey(
        name=WITNESS_PATH_KEY,
        field="witness_path",
        read=_path,
        does=(
            "Compares the ledger with this file or database, and refuses [an older "
            "copy](deployment.md#a-ledger-that-was-put-back)."
        ),
        otherwise="An older copy is not noticed",
    ),
    PolicyKey(
        name=REQUIRE_PRIVACY_KEY,
        field="required",
        does=(
            "Refuses what does not offer this: see [what a node requires](deployment.md#what-a-"
            "node-requires). A requirement without a cap is an error: the node answers nothing."
        ),
        otherwise="With a cap: `any`",
    ),
    PolicyKey(
        name=MAX_EPSILON_KEY,
        field="max_epsilon",
        read=partial(_number, below=math.inf),
        does=(
            "Spends at most this over all runs, for records and for the node as a whole apart: a "
            "node that serves both spends it twice. A run's own budget counts that run alone."
        ),
        otherwise="Each run's own budget, and nothing limits all of them",
    ),
    PolicyKey(
        name=MAX_DELTA_KEY,
        field="max_delta",
        read=partial(_number, below=1.0),
        does="Sets the delta that goes with `max-epsilon`.",
        otherwise="With a cap: 1e-5",
    ),
    PolicyKey(
        name=RECORD_EPSILON_KEY,
        field="record_epsilon",
        read=partial(_number, below=math.inf),
        does=(
            "Where a run's DP-SGD plans a larger epsilon for each [record](glossary.md#record), "
            "trains with more noise: this holds over all of its rounds."
        ),
        otherwise="As the run plans",
    ),
    PolicyKey(
        name=UNVERIFIED_APPS_KEY,
        field="allow_unverified_apps",
        read=_flag,
        does=(
            "Answers although its SuperNode [verifies no app](deployment.md#which-app-a-node-runs)."
        ),
        otherwise="Refuses where it sees that",
    ),
    PolicyKey(
        name=APPS_KEY,
        field="apps",
        read=_apps,
        does=(
            "Answers these apps alone: `publisher/name`, perhaps with versions (`>=1.2,<2`), "
            "perhaps with the first digits of the bundle's hash (`==1.2.0@3f2a9c01`). Several "
            "stand in a list, or with spaces between them."
        ),
        otherwise="Whatever app Flower runs",
    ),
    PolicyKey(
        name=STATISTICS_KEY,
        field="statistics_from",
        read=_askers,
        does="Lets these apps ask for statistics, or `none`. It only narrows what is required.",
        otherwise="Each app, as far as it is private",
    ),
    PolicyKey(
        name=EVALUATION_KEY,
        field="evaluation_from",
        read=_askers,
        does="The same for evaluations and utilities.",
        otherwise="Each app, as far as it is private",
    ),
    PolicyKey(
        name=TELL_EXHAUSTED_KEY,
        field="tell_exhausted",
        read=_flag,
        does="May say that its budget is spent: `max-epsilon`, or what the run itself asked for.",
        otherwise="Does not say so",
    ),
    PolicyKey(
        name=DATASET_NAME_KEY,
        field="dataset_name",
        read=_text,
        does="Counts under this name of the data, which stays the same when they change.",
        otherwise="`unit-name`, or the number of its partition",
    ),
    PolicyKey(
        name=UNIT_NAME_KEY,
        field="unit_name",
        read=_text,
        does="Is known under this name to a [roster](glossary.md#roster).",
        otherwise="The number of its partition",
    ),
    PolicyKey(
        name=DATA_PATH_KEY,
        field="data_path",
        read=_path,
        does="Reads its data from this folder.",
        otherwise="The app's own data",
    ),
    PolicyKey(
        name=DATA_SCHEMA_KEY,
        field="data_schema",
        read=_path,
        does="Reads these columns, types and classes, whatever the server names.",
        otherwise="The server's",
    ),
    PolicyKey(
        name=SHARED_KEY,
        field="shared_parameters",
        read=_patterns,
        does=(
            'Trains no model with other parameters: `"body.*,norm.*"` keeps a head at the node, '
            "whatever app or server ask."
        ),
        otherwise="All that the run shares",
    ),
    PolicyKey(
        name=ENCODERS_KEY,
        field="encoders",
        read=_digests,
        does=(
            "Trains on [features](features.md) of these encoders alone, named by SHA-256 "
            "with commas between them."
        ),
        otherwise="As the run says; with a requirement no `features=checkpoint`",
    ),
    PolicyKey(
        name=INTERVAL_KEY,
        field="round_interval",
        read=partial(_number, below=math.inf),
        does="Refuses a message that comes sooner, in seconds, after the last of its kind.",
        otherwise="No limit",
    ),
    PolicyKey(
        name=BUDGET_EXPIRES_KEY,
        field="budget_expires",
        read=_day,
        does="From this day on, in UTC, what is left of the budget is gone.",
        otherwise="Never",
    ),
    PolicyKey(
        name=EXPIRES_KEY,
        field="expires",
        read=_day,
        does="From this day on, in UTC, answers nothing but its name.",
        otherwise="Never",
    ),
    PolicyKey(
        name=ROSTER_KEY,
        field="roster",
        read=_path,
        does=(
            "Takes part in secure sums with the nodes of this [roster](secure-aggregation.md#set-"
            "up-a-roster) alone."
        ),
        otherwise="A server that lies can invent nodes",
        of_sums=True,
    ),
    PolicyKey(
        name=LEAST_SUM_KEY,
        field="least_sum",
        read=partial(_count, default=LEAST_SUM, least=2),
        does="Adds to no secure sum of fewer honest [clients](glossary.md#client).",
        otherwise="2",
        of_sums=True,
    ),
    PolicyKey(
        name=COHORT_KEY,
        field="least_cohort",
        read=partial(_count, default=0, least=2),
        does="Adds to no secure sum that could be opened over fewer clients, honest or not.",
        otherwise="`secagg-min-sum` alone",
        of_sums=True,
    ),
    PolicyKey(
        name=COLLUDING_KEY,
        field="colluding",
        read=partial(_count, default=None, least=0),
        does="Supposes that at least this many nodes collude.",
        otherwise="With a roster, what is usual; else the plan's number",
        of_sums=True,
    ),
)
"""Every key of `--node-config` that is fl-dp's own, in the order of the page."""

_OURS = tuple(each.name for each in POLICY_KEYS)
