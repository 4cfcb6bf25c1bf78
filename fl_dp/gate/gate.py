"""Answers of a gate: the owner's mods around whatever app a message is for.

    owner's noise -> policy -> compression -> clip and noise -> the app          (`local`)
    policy -> clip -> the app                                                    (`clip`)

What no mod re-makes does not leave: evaluations and queries are closed, but for the identity query,
which the gate answers itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from fl_dp.clients.client_noise import client_noise_mod, released_content
from fl_dp.clients.compression import compression_mod
from fl_dp.clients.identity import identity_handler
from fl_dp.clients.mod_host import ModHost, hosted_by
from fl_dp.clients.node_config import NodeConfigError
from fl_dp.clients.node_policy import PolicyRefusal, node_policy_mod
from fl_dp.clients.node_privacy import NodePrivacy
from fl_dp.clients.numpy_client_app import guarded
from fl_dp.clients.records import config_of, instruction_of
from fl_dp.clients.running_app import RunningApp
from fl_dp.codec import encode_text
from fl_dp.mechanisms import clip_by_norm
from fl_dp.protocol.flower_compat import ErrorCode, Mod
from fl_dp.protocol.identity import Ability, NodeIdentity
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import IDENTITY_ACTION, INSTRUCTION_KEY, NOISED_KEY
from fl_dp.secagg import Refused

from .policy import GatePolicy, Promise

logger = logging.getLogger("flwr.fl_dp.client")

APP = "gate of fl-dp"
"""What an identity query is told instead of an app."""

OWN_RECORD = "fl-dp-gate"
"""Record of the instruction that the gate gives itself where the server gives none."""


class GateHost(ModHost):
    """A gate as mods ask it: it knows the app, which runs in another process."""

    def __init__(self, app: RunningApp) -> None:
        """Name the app."""
        self._app = app

    def running_app(self) -> RunningApp:
        """Return the app, with all digits of its bundle's hash."""
        return self._app

    def apps_are_verified(self) -> bool:
        """Return True: whichever app runs, none can leave out what the owner requires."""
        return True

    def apart(self, *work: Any, **options: Any) -> NoReturn:
        """Refuse: a process forked here does not reach the app.

        Raises:
            Refused: Always.
        """
        raise Refused("terms", "a gate takes part in no sum with secret coins")


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """What becomes of one message, by the policy of the moment at which it came.

    Attributes:
        answer_after: Seconds until the answer leaves; None: at once, and no app is asked.
        answer: Returns the answer around a handler, which lets the app have the message.
    """

    answer_after: float | None
    answer: Callable[[ClientAppCallable], Message]


class Gate:
    """What the owner's policy makes of each message. It knows nothing of how messages travel."""

    def __init__(self, policy: Path) -> None:
        """Read the policy once, so that a wrong one is an error at the start.

        Args:
            policy: Its file, which is read again at every message.

        Raises:
            NodeConfigError: If it can't be read or can't be meant.
        """
        self._file = policy
        GatePolicy.read(policy)

    def judge(self, asked: Message, app: RunningApp) -> Ruling:
        """Return what becomes of a message.

        Args:
            asked: The message.
            app: Which app it is for.
        """
        try:
            policy = GatePolicy.read(self._file)
        except NodeConfigError as error:
            logger.error("nothing is answered: %s", error)
            kind = type(error).__name__
            refusal = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, kind), reply_to=asked)
            return Ruling(answer_after=None, answer=lambda handler: refusal)
        return Ruling(
            answer_after=policy.keys.answer_after if _is_training(asked) else None,
            answer=lambda handler: self._answer(asked, app, policy, handler),
        )

    def _answer(
        self, asked: Message, app: RunningApp, policy: GatePolicy, handler: ClientAppCallable
    ) -> Message:
        """Return what leaves the site in answer to a message.

        Privacy: under `local`, what `client_noise_mod` says of its reply, for all data of this site
        and whatever the app does. Under `clip` one reply moves the model by no more than the norm.
        In both nothing of the app's reply is used but one model of the message's form; all else is
        constant, or depends on the message and the owner's policy alone.
        """
        context = Context(
            run_id=asked.metadata.run_id,
            node_id=asked.metadata.dst_node_id,
            node_config=dict(policy.node_config),
            state=RecordDict(),
            run_config={},
        )
        inner, mods = self._way(asked, policy, handler)
        with hosted_by(GateHost(app)):
            return guarded(inner, mods)(asked, context)

    def _way(
        self, asked: Message, policy: GatePolicy, handler: ClientAppCallable
    ) -> tuple[ClientAppCallable, Sequence[Mod]]:
        if _is_training(asked):
            if policy.keys.promise is Promise.CLIP:
                return without_instruction(handler), [node_policy_mod, clip_mod(policy)]
            mods = [own_noise_mod(policy), node_policy_mod, compression_mod, client_noise_mod]
            return without_instruction(handler), mods
        category, _, action = asked.metadata.message_type.partition(".")
        if category == MessageType.QUERY and action == IDENTITY_ACTION:
            return introduction(policy), [node_policy_mod]
        return _closed, []


def own_noise_mod(policy: GatePolicy) -> Mod:
    """Return a mod that has each training noised by the owner's least noise, or the server's more.

    A server that knows nothing of fl-dp is answered as it expects: with a model and `num-examples`.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        instruction = instruction_of(message)
        if instruction is not None:
            _require_enough(policy, instruction)
            return call_next(message, context)
        if OWN_RECORD in message.content:
            raise ValueError(f"a message with a record {OWN_RECORD} of the server's")
        noise = RoundInstruction(server_round=0, client_noise=policy.least_noise)
        message.content[OWN_RECORD] = ConfigRecord({INSTRUCTION_KEY: encode_text(noise)})
        reply = call_next(message, context)
        if reply.has_content():
            del reply.content[NOISED_KEY]
        return reply

    return mod


def introduction(policy: GatePolicy) -> ClientAppCallable:
    """Return a handler of the identity query: what the gate will do, whatever app is behind it."""
    abilities = {Ability.NOISE} if policy.keys.promise is Promise.LOCAL else set()
    handler = identity_handler(app=APP, abilities=abilities)

    def introduce(message: Message, context: Context) -> Message:
        reply = handler(message, context)
        instruction = RoundInstruction.of(config_of(message))
        if instruction is None:
            return reply
        try:
            _require_enough(policy, instruction)
        except PolicyRefusal as refused:
            logger.warning("this gate will refuse the training: %s", refused)
            ((key, said),) = reply.content.config_records.items()
            refusing = replace(NodeIdentity.of(said), refuses=True)
            reply.content[key] = refusing.to_config()
        return reply

    return introduce


def clip_mod(policy: GatePolicy) -> Mod:
    """Return a mod that clips the update in a train reply, and adds no noise.

    Privacy: one reply moves the model by at most the norm, whatever the data are. How much noise
    covers that is the server's word: the site promises no epsilon, and its ledger says so.
    """
    norm = policy.keys.clipping_norm

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if instruction_of(message) is not None:
            raise PolicyRefusal("this gate clips whole models, and follows no round's instruction")

        def note() -> None:
            node = NodePrivacy.of(context, {})
            with node.open_ledger() as ledger:
                ledger.note_reliance(
                    node.source,
                    clipping_norm=norm,
                    use=node.use(message.metadata.message_type),
                )

        def release(update: NDArray[np.float64]) -> NDArray[np.float64]:
            return clip_by_norm(update, norm)

        content = released_content(message, context, call_next, charge=note, release=release)
        return Message(content, reply_to=message)

    return mod


def without_instruction(handler: ClientAppCallable) -> ClientAppCallable:
    """Return a handler that does not see how its update leaves: the app would add noise, too."""

    def handle(message: Message, context: Context) -> Message:
        for key, config in list(message.content.config_records.items()):
            if key == OWN_RECORD:
                del message.content[key]
            elif INSTRUCTION_KEY in config:
                rest = {name: value for name, value in config.items() if name != INSTRUCTION_KEY}
                message.content[key] = ConfigRecord(rest)
        return handler(message, context)

    return handle


def _is_training(asked: Message) -> bool:
    return asked.metadata.message_type.partition(".")[0] == MessageType.TRAIN


def _closed(message: Message, context: Context) -> NoReturn:
    raise PolicyRefusal(
        f"this gate answers no {message.metadata.message_type!r:.40} message: what it returns is "
        "computed from data"
    )


def _require_enough(policy: GatePolicy, instruction: RoundInstruction) -> None:
    """Refuse a round whose noise is less than the owner's, or that asks for anything else.

    Raises:
        PolicyRefusal: If it does.
    """
    asked = instruction.client_noise
    if policy.keys.promise is Promise.CLIP or asked is None:
        raise PolicyRefusal("the round asks for something else than this gate does")
    least = policy.least_noise
    if (
        asked.scheme != least.scheme
        or asked.noise_multiplier < least.noise_multiplier
        or asked.clipping_norm > least.clipping_norm
    ):
        raise PolicyRefusal(
            f"the round asks for {asked.scheme} noise of multiplier {asked.noise_multiplier:g} at "
            f"norm {asked.clipping_norm:g}, and the owner for {least.scheme} noise of at least "
            f"{least.noise_multiplier:g} at norm {least.clipping_norm:g} at most"
        )
