"""Coins of a client's own wherever it trains: dropout, augmentation, the order of records.

Clients that share a process share its random generators. One that draws less would move all after
it to other coins: leaving it out moves a sum by far more than its own update. So each message, and
each unit in it, begins with coins of its own.

Independence is what the promise needs, not secrecy: for any fixed coins of each client, one client
moves a sum by its own update alone. So a run's seed may fix them. Noise, cohorts and the sampling
of records never follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.protocol.message_keys import COINS_SEED_KEY
from fl_dp.user_code import SeededWords, own_chance

from .owner.deadline import has_process_of_its_own
from .owner.node_config import PARTITION_ID_KEY

_ROUND_KEY = "server-round"  # as Flower's strategies name it
_under_way: ContextVar[Message | None] = ContextVar("_under_way", default=None)


def coins_of(context: Context, config: Mapping[str, Any], unit: int = 0) -> SeededWords | None:
    """The coins of a node's unit in one round of a run with a seed; None without a seed.

    `config` is the message's; its `server-round` is 0 where it has none.
    """
    node = context.node_config.get(PARTITION_ID_KEY, context.node_id)
    entropy = (config.get(COINS_SEED_KEY), config.get(_ROUND_KEY, 0), node, unit)
    numbers = [number for number in entropy if type(number) is int and number >= 0]
    return SeededWords(*numbers) if len(numbers) == len(entropy) else None


def coins_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Give a message's handler coins of its own, and the process its generators back.

    With a `fl-dp-coins-seed` in the message's config they follow from it, from the round and from
    the node; else from the operating system. `numpy_client_app`, `noised_client_app` and fl-dp's
    own simulation have it built in. In your own app:

        >>> app = ClientApp(mods=[coins_mod])
    """
    if _under_way.get() is message:  # a grid of ours stands around an app of ours
        return call_next(message, context)
    config: dict[str, Any] = {}
    for record in message.content.config_records.values() if message.has_content() else ():
        config |= record
    coins = coins_of(context, config)
    if coins is None and has_process_of_its_own():
        return call_next(message, context)  # nobody shares it, and seeding torch would import it
    with own_chance(coins):
        before = _under_way.set(message)
        try:
            return call_next(message, context)
        finally:
            _under_way.reset(before)
