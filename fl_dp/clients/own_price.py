"""The price of a training at a node whose owner trusts the server with noise and coins.

The owner writes `require-privacy="central"`. Before anything is spent the node says at which of the
server's offers it joins: at the run's own, or with `join-at-own-budget=true` at the largest that
its ledger has room for. Its ledger is charged the whole training before the first answer.
"""

from __future__ import annotations

from datetime import UTC, datetime

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.accounting import NeighboringRelation, PrivacyBudget
from fl_dp.protocol.keys import OFFERS_KEY, PRICE_KEY
from fl_dp.protocol.own_price import TrainingPrice, offers_from_json

from .node_config import CENTRAL, NodeConfig
from .node_privacy import NodePrivacy
from .records import Config, config_of

_UNIT = "client"


def joins_at(context: Context, config: Config) -> float | None:
    """Return the epsilon at which the node joins; 0: at none; None: its owner asks for no price.

    It depends on the node's ledger and on no record.
    """
    owner = NodeConfig.of(context.node_config)
    if frozenset({CENTRAL}) not in owner.required or OFFERS_KEY not in config:
        return None
    offers = offers_from_json(str(config[OFFERS_KEY]))
    if not owner.join_at_own_budget:
        offers = offers[-1:]
    fitting = [each.epsilon for each in offers if _has_room(context, config, owner, each)]
    return max(fitting, default=0.0)


def own_price_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Charge the whole training to the node's ledger before the node first answers to it.

    Messages without a price pass; whether one is required, the node's policy has decided.

    Raises:
        PrivacyBudgetExhausted: If it would exceed what the owner allows; nothing was trained.
        ValueError: If the message's price is none.
    """
    config = config_of(message)
    if PRICE_KEY in config:
        owner = NodeConfig.of(context.node_config)
        _charge(context, config, owner, TrainingPrice.from_json(str(config[PRICE_KEY])), message)
    return call_next(message, context)


def _charge(
    context: Context, config: Config, owner: NodeConfig, price: TrainingPrice, message: Message
) -> None:
    """Write the price to the ledger, if it is not there yet.

    Raises:
        PrivacyBudgetExhausted: If it would exceed what the owner allows.
    """
    from fl_dp.accounting.events import event_from_dict  # with SciPy, as the ledger

    node, allowed = NodePrivacy.of(context, config), _allowed(owner)
    account = node.account(unit=_UNIT)
    with node.open_ledger() as ledger:
        if not ledger.has_charged(account, _name(price)):
            ledger.charge(
                account,
                event_from_dict(price.event),
                count=price.rounds,
                budget=allowed,
                what=_name(price),
                neighboring_relation=NeighboringRelation(price.neighboring_relation),
                use=node.use(message.metadata.message_type),
            )


def _has_room(context: Context, config: Config, owner: NodeConfig, price: TrainingPrice) -> bool:
    """Tell whether the ledger would take a price, or has taken it."""
    from fl_dp.accounting.events import event_from_dict
    from fl_dp.ledger import NodeLedger
    from fl_dp.ledger.node import Spending

    node, allowed = NodePrivacy.of(context, config), _allowed(owner)
    account = node.account(unit=_UNIT)
    if node.expires is not None and datetime.now(UTC).date() >= node.expires:
        return False
    event = event_from_dict(price.event)
    relation = NeighboringRelation(price.neighboring_relation)
    try:
        with NodeLedger.read(node.required_ledger) as ledger:
            if ledger.has_charged(account, _name(price)):
                return True
            if ledger.revoked is not None:
                return False
            spending = ledger.spending_of_source(account)
    except FileNotFoundError:
        spending = Spending(unit=_UNIT)
    return not spending.would_exceed(
        event, count=price.rounds, budget=allowed, neighboring_relation=relation
    )


def _allowed(owner: NodeConfig) -> PrivacyBudget:
    """Return what may be spent in all; a requirement has a cap."""
    assert owner.max_epsilon is not None and owner.max_delta is not None  # `NodeConfig.of` asks
    return PrivacyBudget(epsilon=owner.max_epsilon, delta=owner.max_delta)


def _name(price: TrainingPrice) -> str:
    """Return the name of a charge: another price of the same training is another charge."""
    return f"training {price.training[:32]} at epsilon {price.epsilon:g}"
