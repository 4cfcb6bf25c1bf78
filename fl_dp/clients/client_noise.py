"""Noise at the client: a reply is already private against any server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from fl_dp.accounting import NeighboringRelation, PrivacyBudgetExhausted
from fl_dp.mechanisms import SecureRandom
from fl_dp.protocol.flower_compat import Mod
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, applied_noise
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import IDENTITY_ACTION, METRICS_KEY, NOISED_KEY
from fl_dp.updates import VectorLayout, only_array_record
from fl_dp.user_code import Contained

from .coins import coins_mod
from .compressed_reply import compression_mod
from .identity import identity_handler
from .owner.node_privacy import NodePrivacy
from .records import instruction_of, only_record
from .simulated_failures import failures_mod, note_failure, unless_simulated

logger = logging.getLogger("flwr.fl_dp.client")


def client_noise_mod(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    *,
    charged: NoiseInstruction | None = None,
) -> Message:
    """Clip and noise the update in a train reply, as the round's instruction says.

    It works before any handler that replies with one ArrayRecord, the trained model under the
    message's names. In `noised_client_app` and `numpy_client_app` only `compression_mod` touches
    the reply after it, and the server is told before the first round that it is there. Messages
    not of kind train, or whose instruction asks for no client noise, pass.

    Privacy: one reply is as private as the scheme's own statement says (`client_scheme`) for the
    unit that this node is, zero-out neighbours (its update becomes zero), against anyone who sees
    the reply, the server included. The noise parameters come from the server. If the node has a
    ledger (`NodePrivacy`), each reply is charged before training. A reply that would exceed the
    budget, the smaller of the server's and the owner's, becomes noise around a zero update. It
    can't be distinguished from any other. The reply names its noise; the server uses none without
    that name. Nothing else leaves: integer and boolean arrays go back as they came, metrics are
    dropped, `num-examples` is 1. A handler that raises, replies with an error or returns anything
    malformed or not finite sends the same noise around a zero update. That the node replied, and
    when, is not hidden.

    Raises:
        ValueError: The instruction asks for something that would leave without noise or for noise
            out of range, or the message has not exactly one model. This never depends on the
            node's data.
    """
    instruction = instruction_of(message)
    if instruction is None or (noise := _noise_of(instruction)) is None:
        return call_next(message, context)
    scheme = noise.mechanism()
    content = released_content(
        message,
        context,
        call_next,
        charge=lambda: charge_noise(charged or noise, message, context),
        release=lambda update: scheme.privatize(update, SecureRandom()),
    )
    content[NOISED_KEY] = applied_noise(instruction)
    return Message(content, reply_to=message)


def released_content(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    *,
    charge: Callable[[], None],
    release: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    rounded: Callable[..., ArrayRecord] = VectorLayout.unflatten,
) -> RecordDict:
    """Let a handler train, and return the model with the released part of its update.

    Nothing else of the handler's reply is used. A failure counts as a zero update. `charge` pays
    for the release before the handler is called; it raises `PrivacyBudgetExhausted` if nothing
    more may be trained. `release` maps an update, perhaps not finite, to its private form, both
    float64 of shape `(size,)`. `rounded`, a method of the layout, adds that to the model in its own
    dtypes: after noise it may round as it likes.

    Returns:
        One ArrayRecord under the message's key, and `num-examples` of 1.

    Raises:
        ValueError: The message has not exactly one model. This never depends on the node's data.
    """
    key, received = only_record(message.content.array_records, "ArrayRecord")
    # A copy, as a handler may train in place, inside the message, and other arrays go back.
    model = ArrayRecord({name: copy(array) for name, array in received.items()})
    instruction = instruction_of(message)
    layout = VectorLayout.of(model, instruction.trained if instruction is not None else None)
    origin = layout.flatten(model)
    update = np.zeros(layout.size)
    line = unless_simulated("the client failed, and counts as a zero update")
    with Contained(line) as attempt:
        try:
            # Inside the block, so that a reply after a spent budget looks like any other.
            charge()
            reply = call_next(message, context)
            if reply.has_error():
                raise ValueError("the handler replied with an error")
            update = layout.flatten(only_array_record(reply.content)) - origin
        except PrivacyBudgetExhausted as exhausted:
            logger.info("%s; it counts as a zero update", exhausted)
    note_failure(attempt.failure)
    private = rounded(layout, origin, release(update))
    # The weight is always 1: the number of records would be a release of its own.
    sent, metrics = layout.merge(private, model), MetricRecord({"num-examples": 1})
    return RecordDict({key: sent, METRICS_KEY: metrics})


def noised_client_app(mods: list[Mod] | None = None) -> ClientApp:
    """Return Flower's `ClientApp`, whose train replies leave clipped and noised as a round asks.

        >>> app = noised_client_app()
        >>> @app.train()
        ... def train(message, context): ...

    Privacy: that of `client_noise_mod`, around every train function. The app tells the server so
    before the first round. A training with noise at the clients refuses apps that can't do this,
    and asks them for nothing.

    Args:
        mods: Mods around the app's functions, outermost first; they run inside the noise.

    Raises:
        ValueError: `mods` has a mod that this app has already.
    """
    app = ClientApp(mods=[failures_mod, *with_noise(mods, of="noised_client_app"), coins_mod])
    identity = identity_handler(
        app="noised_client_app of fl-dp", mods=mods or (), abilities=(Ability.NOISE,)
    )
    app.query(IDENTITY_ACTION)(identity)
    return app


def with_noise(mods: Sequence[Mod] | None, *, of: str) -> list[Mod]:
    """Return an app's mods with the noise outside them, and the encoding outside that.

    Raises:
        ValueError: One of the two is among the mods: noise would be added twice.
    """
    outside: list[Mod] = [compression_mod, client_noise_mod]
    for mod in outside:
        if mod in (mods or ()):
            raise ValueError(f"{of} adds {mod.__name__} itself: leave it out of mods")
    return [*outside, *(mods or ())]


def _noise_of(instruction: RoundInstruction) -> NoiseInstruction | None:
    """The noise that an instruction asks for; None: none."""
    if instruction.client_noise is None:
        return None
    if instruction.sums_units:
        raise ValueError("noise at the client is for nodes of one unit: send no units")
    if asked := sorted(instruction.asked_metrics):
        raise ValueError(
            "with noise at the client nothing but the noised update may leave: ask for no "
            f"'{asked[0]}'"
        )
    return instruction.client_noise


def charge_noise(noise: NoiseInstruction, message: Message, context: Context) -> None:
    """Write a noised reply to the node's ledger, if it has one, before any computation.

    Raises:
        PrivacyBudgetExhausted: It would exceed what the server or the owner allows.
        ValueError: The node has a ledger and there is no budget.
    """
    config: dict[str, Any] = {}
    for record in message.content.config_records.values():
        config |= record
    node = NodePrivacy.from_context(context, config)
    if node.ledger is None:
        return
    limit = node.limit_of_noise(noise)
    with node.open_ledger() as ledger:
        ledger.charge(
            node.account(unit="client"),
            noise.mechanism().event(),
            budget=node.cap,
            limit=limit,
            what=f"run {context.run_id}",
            neighboring_relation=NeighboringRelation(noise.neighboring_relation),
            use=node.use(message.metadata.message_type),
        )
