"""The owner's policy, which every message has to meet: one that asks for less is refused.

    flower-supernode ... --node-config 'dp-max-epsilon=4.0 dp-ledger-path="/data/ledger.db" ...'

Without a cap or a requirement a node does what the server's messages say. An untrusted server could
leave out the node's protection, or ask for an evaluation, whose loss comes from private data.

All this is the app's code, and a SuperNode runs whatever app the server sends. Against another app
only Flower's own verification helps (`--trusted-entities`); see `docs/deployment.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.codec import decode_text
from fl_dp.protocol.instruction import RoundInstruction, SumInstruction
from fl_dp.protocol.message_keys import (
    ENCODER_KEY,
    IDENTITY_ACTION,
    RECORD_PLAN_KEY,
)
from fl_dp.protocol.secure_sum_messages import SECURE_SUM_ACTIONS, SUM_KEY, terms_in, without_terms

from .mod_host import present_host
from .node_config import DISTRIBUTED, LOCAL, RECORD, RECORD_SUMS, NodeConfig
from .node_privacy import in_simulation
from .round_interval import RoundInterval

logger = logging.getLogger("flwr.fl_dp.client")

_HOW_TO_VERIFY = (
    "start the SuperNode with --trusted-entities keys.yaml (docs/deployment.md says how apps are "
    "signed), or write dp-allow-unverified-apps=true in --node-config if you know by other means "
    "which app the server sends"
)
_HOW_TO_TAKE_PART = (
    '; to take part in secure sums write dp-require-privacy="distributed" in --node-config, '
    "with dp-secagg-roster: without one a server that lies can make up the other nodes"
)


class PolicyRefusal(PermissionError):
    """The node's owner does not allow what the message asks for."""


def node_policy_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Refuse a message that asks for less privacy than the node's owner requires.

    The owner requires it by `dp-require-privacy`, or by a cap (`dp-max-epsilon`), which counts
    nothing that is not private. With a cap any differential privacy will do that holds against a
    server that lies; a secure sum's does if the node has a roster. `record`: only training by
    DP-SGD (a `RecordPlan` in the message). `local`: only training whose reply the client noises
    itself. `distributed`: only messages of a secure sum. Each refuses evaluations, statistics and
    utilities outside a secure sum; the node's name is told. `distributed-records`: also secure
    sums that hide a record, not the client as a whole, or count against the cap of records alone.
    `numpy_client_app` has it built in, outside all but the deadline.

    Only the identity query is answered from the day on which the owner's permission ends, or after
    it was revoked (`fl-dp node revoke`). The same holds in an app that the owner does not allow
    (`dp-allowed-apps`). A message sooner than `dp-min-round-interval` after the last of its kind
    is refused before any charge. A model with parameters that the owner does not share
    (`dp-shared-parameters`) is not trained. Nor is one on features of an encoder that the owner
    does not name (`dp-encoder-digests`).

    A node whose owner requires privacy also answers only that query where its SuperNode is seen to
    run unverified apps. The owner may allow these. The check protects an owner who forgot the
    option, not against a malicious app: it is part of the app. Where it can't be seen, the node's
    log says once what to do.

    Raises:
        PolicyRefusal: The message is refused.
        NodeConfigError: The owner's configuration is invalid, whatever the message asks for.
    """
    owner = NodeConfig.of(context.node_config)
    category, _, action = message.metadata.message_type.partition(".")
    if category == MessageType.QUERY and action == IDENTITY_ACTION:
        return call_next(message, context)
    of_a_sum = category == MessageType.QUERY and action in SECURE_SUM_ACTIONS
    offered = _offered(message)
    # A charge itself fails if the ledger can't be read.
    _require_permission(owner, charged=of_a_sum or bool(offered))
    _require_allowed_app(owner)
    if category == MessageType.TRAIN:
        content = without_terms(message.content)
        for arrays in content.array_records.values():
            _require_shared_parameters(owner, arrays)
        _require_encoder(owner, content.config_records.values())
    if not owner.required:
        _require_time_since_the_last(owner, message, of_a_sum=of_a_sum)
        return call_next(message, context)
    if not owner.allow_unverified_apps:
        _require_verified_apps()
    if of_a_sum and owner.takes_part_in_sums:
        return call_next(message, context)  # their answers contain no data
    if category != MessageType.TRAIN and not offered & {DISTRIBUTED, RECORD_SUMS}:
        raise PolicyRefusal(
            f"this node trains privately and answers no {category} message: its owner set "
            "dp-require-privacy or dp-max-epsilon"
        )
    _require_offered(owner, offered)
    _require_time_since_the_last(owner, message, of_a_sum=of_a_sum)
    return call_next(message, context)


def refusal_of_training(
    owner: NodeConfig, config: Mapping[str, Any], parameters: Iterable[str]
) -> str | None:
    """Return why the owner does not allow a rehearsed training or statistic; None: it is allowed.

    The node answers each of its messages alike, except one that comes too early. `config` is the
    rehearsal's query, `parameters` names the model's.
    """
    instruction = RoundInstruction.from_config(config)
    of_rounds = instruction is not None and instruction.secure_sum is not None
    summed = of_rounds or SUM_KEY in config
    offered = _kinds_offered([config], summed=summed)
    try:
        _require_permission(owner, charged=bool(offered))
        _require_allowed_app(owner)
        _require_shared_parameters(owner, parameters)
        _require_encoder(owner, [config])
        if owner.required:
            if not owner.allow_unverified_apps:
                _require_verified_apps()
            _require_offered(owner, offered)
    except PolicyRefusal as refused:
        return str(refused)
    return None


def _require_offered(owner: NodeConfig, offered: frozenset[str]) -> None:
    if any(kinds <= offered for kinds in owner.required):
        return
    required = " or ".join("privacy=" + "+".join(sorted(kinds)) for kinds in owner.required)
    offer = " and ".join(sorted(offered)) or "no privacy"
    hint = _HOW_TO_TAKE_PART if offered & {DISTRIBUTED, RECORD_SUMS} else ""
    raise PolicyRefusal(f"this node requires {required}, and the message offers {offer}{hint}")


def _require_permission(owner: NodeConfig, *, charged: bool) -> None:
    """Refuse everything once the owner's permission has ended, or was revoked.

    A ledger that can't be read raises, unless every release for the message is `charged`: the
    charge itself fails then.
    """
    if owner.has_expired:
        raise PolicyRefusal(
            f"this node answers nothing since {owner.policy_expires}: its owner's permission has "
            "ended (dp-policy-expires)"
        )
    if owner.ledger_path is None:
        return
    # Imported here, as it needs SciPy, and not every node has a ledger.
    from fl_dp.ledger import LedgerCorrupted, LedgerUnavailable, NodeLedger

    try:
        day = NodeLedger.day_of_revocation(owner.ledger_path)
    except (LedgerCorrupted, LedgerUnavailable):
        if not charged:
            raise
        return
    if day is not None:
        raise PolicyRefusal(
            f"this node answers nothing: its owner revoked every use of its data on {day}"
        )


def _require_allowed_app(owner: NodeConfig) -> None:
    if owner.allowed_apps is None:
        return
    app = present_host().running_app()
    if app is None:
        raise PolicyRefusal(
            "it can't be seen which app this is, and dp-allowed-apps names those that are "
            "answered: the app has to come in a bundle, as `flwr run` sends it"
        )
    if not any(rule.allows(app) for rule in owner.allowed_apps):
        named = ", ".join(rule.text for rule in owner.allowed_apps)
        raise PolicyRefusal(f"the app is {app}, and dp-allowed-apps allows {named}")


def _require_shared_parameters(owner: NodeConfig, parameters: Iterable[str]) -> None:
    withheld = owner.withheld(parameters)
    if withheld is not None:
        raise PolicyRefusal(withheld)


def _require_encoder(owner: NodeConfig, configs: Iterable[Mapping[str, Any]]) -> None:
    if owner.encoder_digests is None:
        return
    named = {str(config[ENCODER_KEY]) for config in configs if ENCODER_KEY in config}
    digest = named.pop() if len(named) == 1 else None
    refused = owner.refused_encoder(digest)
    if refused is not None:
        raise PolicyRefusal(refused)


def _require_time_since_the_last(owner: NodeConfig, message: Message, *, of_a_sum: bool) -> None:
    """Refuse a message too early after the last of its kind; it is the last check.

    A secure sum's keys and openings are not timed: they belong to a round that was.
    """
    if owner.min_round_interval is None or of_a_sum or in_simulation():
        return
    assert owner.ledger_path is not None  # `NodeConfig.of` requires it
    # Flower has two names for one handler, `train` and `train.default`: both share one time.
    category, _, action = message.metadata.message_type.partition(".")
    kind = action if category == MessageType.QUERY else category
    interval = RoundInterval.beside(owner.ledger_path)
    seconds = interval.wait_left(f"{kind} {owner.source}", owner.min_round_interval)
    if seconds > 0.0:
        raise PolicyRefusal(
            f"this {kind} message comes {seconds:.0f} s too early: dp-min-round-interval is "
            f"{owner.min_round_interval:g}"
        )


def _offered(message: Message) -> frozenset[str]:
    # A node drops the records of a sum before it trains, so their offers don't count.
    configs = list(without_terms(message.content).config_records.values())
    return _kinds_offered(configs, summed=terms_in(message.content) is not None)


def _kinds_offered(configs: Sequence[Mapping[str, Any]], *, summed: bool) -> frozenset[str]:
    """The kinds of privacy that configs offer; `summed`: in a secure sum."""
    instructions = [RoundInstruction.from_config(config) for config in configs]
    # A sum that counts against the cap of the client's records alone hides no more than those.
    present = [instruction for instruction in instructions if instruction is not None]
    of_records = any(instruction.of_records for instruction in present)
    of_records = of_records or any(map(_charges_records, configs))
    offered = set()
    if any(RECORD_PLAN_KEY in config for config in configs):
        offered.add(RECORD)
    if any(instruction.client_noise for instruction in present):
        offered.add(LOCAL)
    if summed:
        offered.add(RECORD_SUMS if of_records else DISTRIBUTED)
    return frozenset(offered)


def _charges_records(config: Mapping[str, Any]) -> bool:
    """Tell whether either key of a config charges a secure sum to records."""
    prices = []
    instruction = RoundInstruction.from_config(config)
    if instruction is not None:
        prices.append(instruction.secure_sum)
    if SUM_KEY in config:
        prices.append(decode_text(SumInstruction, str(config[SUM_KEY])))
    return any(price is not None and price.unit != "client" for price in prices)


def _require_verified_apps() -> None:
    verified = present_host().apps_are_verified()
    if verified is False:
        raise PolicyRefusal(
            "this node runs whatever app the server sends, so nothing that its owner requires "
            f"would bind the server: {_HOW_TO_VERIFY}"
        )
    if verified is None:
        _log_once_how_to_verify()


@cache
def _log_once_how_to_verify() -> None:
    logger.warning(
        "it can't be seen here whether this SuperNode verifies apps; where it does not, the server "
        "can send one that ignores what the owner requires: %s",
        _HOW_TO_VERIFY,
    )
