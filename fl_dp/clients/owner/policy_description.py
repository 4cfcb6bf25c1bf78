"""A node's configuration in plain words, for its owner before the start.

Nothing is spent or answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fl_dp.accounting import PrivacyBudget
from fl_dp.guarantee import Guarantee
from fl_dp.promise import brief_epsilon

from .app_verification import ENTITIES_OPTION
from .node_config import DISTRIBUTED, LOCAL, RECORD, RECORD_SUMS, NodeConfig

_IN_SUMS = frozenset({DISTRIBUTED, RECORD_SUMS})
_INVENTED = "without dp-secagg-roster a server that lies can invent them"
_OFFERS = {
    RECORD: "DP-SGD inside the node, which protects each record",
    LOCAL: "noise that the node adds to its own answer",
    DISTRIBUTED: "a secure sum that hides the node as a whole",
    RECORD_SUMS: "a secure sum that hides each record",
}


@dataclass(frozen=True, kw_only=True)
class PolicyDescription:
    """A configuration as its owner reads it.

    Attributes:
        sentences: What the node will and will not do.
        wrong: What prevents it, one sentence each; empty: nothing.
    """

    sentences: tuple[str, ...]
    wrong: tuple[str, ...]


def describe_policy(owner: NodeConfig) -> PolicyDescription:
    """Describe what a node will do, after a look at its files."""
    wrong: list[str] = []
    sentences = [
        _required(owner),
        _cap(owner),
        *_for_each_record(owner),
        *_ledger(owner, wrong),
        *_data(owner, wrong),
        _apps(owner),
        _allowed_apps(owner),
        _interval(owner),
        _end(owner, wrong),
    ]
    return PolicyDescription(sentences=tuple(sentences), wrong=tuple(wrong))


def describe_limits(owner: NodeConfig) -> PolicyDescription:
    """Describe a node's limits for any app: cap, ledger, times and the end."""
    wrong: list[str] = []
    sentences = [] if owner.max_epsilon is None else [_cap(owner)]
    sentences += _ledger(owner, wrong)
    sentences += [_interval(owner), _end(owner, wrong)]
    return PolicyDescription(sentences=tuple(sentences), wrong=tuple(wrong))


def _required(owner: NodeConfig) -> str:
    if not owner.required:
        return (
            "It answers every message, private or not: nothing is required. "
            "dp-max-epsilon=4.0 with a ledger requires privacy"
        )
    ways = [" and ".join(_OFFERS[kind] for kind in sorted(kinds)) for kinds in owner.required]
    return (
        f"It trains only by {'; or by '.join(ways)}. It answers no evaluation, statistic or other "
        "question that is not in a secure sum, but for its name"
    )


def _cap(owner: NodeConfig) -> str:
    if owner.cap is None:
        return (
            "There is no cap: each run brings its own budget, and nothing limits all of them. "
            "dp-max-epsilon=4.0 caps all runs together"
        )
    return f"All runs together spend at most {cap_in_words(owner.cap)}"


def cap_in_words(cap: PrivacyBudget) -> str:
    """Return what an owner's cap means, before any run says its neighbours."""
    of_records = Guarantee.together(
        cap.epsilon, cap.delta, unit="record", neighbours="neighbours as each run's"
    )
    return f"{of_records}; and as much for the node as a whole, one client"


def _for_each_record(owner: NodeConfig) -> list[str]:
    if owner.record_epsilon is None:
        return []
    return [
        f"A run's DP-SGD gets at most epsilon {brief_epsilon(owner.record_epsilon)} for each "
        "record, at its own delta and neighbours, against whom its promise names; where it plans "
        "more, the node trains with more noise"
    ]


def _ledger(owner: NodeConfig, wrong: list[str]) -> list[str]:
    location = owner.ledger_path
    if location is None:
        return [
            "It counts nothing of its own: what its data have spent is the server's word. "
            'dp-ledger-path="/data/ledger.db" makes it count'
        ]
    # Imported here, as nodes without a ledger import this file, too.
    from fl_dp.ledger import NodeLedger, witness_at
    from fl_dp.ledger.store import shown_location

    shown = shown_location(location)
    sentences = [f"What its data spend adds up under the name '{owner.source}' in {shown}"]
    try:
        witness = None if owner.witness_path is None else witness_at(owner.witness_path)
        with NodeLedger.read(location, witness=witness) as ledger:
            charges = sum(spending.charges for spending in ledger.spendings)
            sentences.append(f"That ledger verifies; it holds {charges} charges so far")
            if ledger.revoked is not None:
                wrong.append(f"every use was revoked on {ledger.revoked}: it answers nothing")
    except FileNotFoundError:
        sentences.append("That ledger begins with the first charge")
        _check_new_ledger(owner, Path(location), wrong)
    except (OSError, ValueError, RuntimeError) as error:
        wrong.append(str(error))
    if owner.witness_path is None:
        sentences.append(
            "An older copy of the ledger that is put back is not found out: no witness"
        )
    else:
        witness_shown = shown_location(owner.witness_path)
        sentences.append(f"{witness_shown} is told how far the ledger has come")
    return sentences


def _check_new_ledger(owner: NodeConfig, file: Path, wrong: list[str]) -> None:
    """Add what prevents a new ledger, or shows that there was one."""
    from fl_dp.ledger import witness_at

    if not file.parent.is_dir():
        wrong.append(f"the ledger's folder {file.parent} does not exist: make it")
    if owner.witness_path is None:
        return
    try:
        witness = witness_at(owner.witness_path)
        witness.require_apart(file)
        anchors = witness.anchors()
    except (OSError, ValueError, RuntimeError) as error:
        wrong.append(str(error))
        return
    if anchors:
        wrong.append(
            f"{file} is gone, and its witness {witness.location} knows of it: put the ledger back"
        )


def _data(owner: NodeConfig, wrong: list[str]) -> list[str]:
    sentences = []
    if owner.data_path is not None:
        sentences.append(f"Its data lie in {owner.data_path}")
    for key, path in (
        ("dp-data-path", owner.data_path),
        ("dp-data-schema", owner.data_schema),
        ("dp-secagg-roster", owner.secagg_roster),
    ):
        if path is not None and not Path(path).exists():
            wrong.append(f"{key} names {path}, which does not exist")
    if owner.data_schema is not None:
        sentences.append("Its columns and classes are those of its own schema, not the server's")
    else:
        sentences.append(
            "Columns, classes and types are those that the server names: dp-data-schema pins them"
        )
    sentences += _encoders(owner)
    if owner.takes_part_in_sums and owner.required:
        caution = "" if owner.secagg_roster else f"; {_INVENTED}"
        sentences.append(
            f"It adds to no secure sum of fewer than {owner.secagg_min_sum} honest clients{caution}"
        )
    if any(not kinds & _IN_SUMS for kinds in owner.required) or not owner.required:
        sentences.append(
            "How many take part in a round is the server's word outside secure sums: an answer by "
            "DP-SGD or with its own noise is private alone"
        )
    return sentences


def _encoders(owner: NodeConfig) -> list[str]:
    if owner.encoder_digests is not None:
        number = len(owner.encoder_digests)
        return [f"It trains on features of {number} encoders alone (dp-encoder-digests)"]
    if not owner.required:
        return []
    return [
        "It runs no encoder of the server's choice: dp-encoder-digests allows one by its digest"
    ]


def _apps(owner: NodeConfig) -> str:
    if not owner.required:
        return "It runs whatever app the server sends"
    if owner.allow_unverified_apps:
        return "It answers although its SuperNode may verify no app: the server could send another"
    return (
        "It answers nothing where its SuperNode is seen to verify no app: start it with "
        f"{ENTITIES_OPTION}"
    )


def _allowed_apps(owner: NodeConfig) -> str:
    if owner.allowed_apps is None:
        return (
            'Each app that it runs is answered: dp-allowed-apps="hospital/heart>=1.2,<2" names some'
        )
    named = ", ".join(rule.text for rule in owner.allowed_apps)
    return (
        f"It answers {named} alone, as the unpacked bundle says of itself: an app that lies about "
        "that is kept out by signatures, not by this"
    )


def _interval(owner: NodeConfig) -> str:
    if owner.min_round_interval is None:
        return (
            "It answers as often as it is asked: dp-min-round-interval=900 sets seconds between "
            "rounds"
        )
    return (
        f"Between two rounds lie at least {owner.min_round_interval:g} s; one that comes too early "
        "is refused and costs nothing"
    )


def _end(owner: NodeConfig, wrong: list[str]) -> str:
    if owner.policy_expires is None:
        return 'Its permission has no end: dp-policy-expires="2027-01-31" sets one'
    if owner.has_expired:
        wrong.append(f"its permission has ended: dp-policy-expires is {owner.policy_expires}")
    return f"It answers nothing from {owner.policy_expires} on"
