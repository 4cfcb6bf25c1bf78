"""Answers of a gate: the owner's mods around any app that a message is for.

Only answers that a mod makes leave. Queries are refused, except those that the gate answers
itself: its introduction, and the keys and shares of secure sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.clients.identity import identity_handler
from fl_dp.clients.numpy_client_app import guarded
from fl_dp.clients.owner.mod_host import ModHost, hosted_by
from fl_dp.clients.owner.node_config import NodeConfigError
from fl_dp.clients.owner.node_policy import PolicyRefusal, node_policy_mod
from fl_dp.clients.owner.running_app import RunningApp
from fl_dp.clients.records import config_of
from fl_dp.promise import Enforcement
from fl_dp.protocol.flower_compat import ErrorCode
from fl_dp.protocol.gate_marks import mark
from fl_dp.protocol.introduction import NodeIdentity
from fl_dp.protocol.message_keys import IDENTITY_ACTION, INSTRUCTION_KEY
from fl_dp.secagg import Refused

from .judged_run import JudgedRun
from .older_api import in_todays_names, older_names
from .policy import GatePolicy, GatePromise
from .ways import Chain, Way, way_of

logger = logging.getLogger("flwr.fl_dp.client")

PULLS = 3.0
"""Seconds between two pulls of a gate."""

APP = "gate of fl-dp"
"""Answer to an identity query, instead of an app's name."""


class GateHost(ModHost):
    """A gate as mods see it: it knows the app, which runs in another process."""

    def __init__(
        self,
        app: RunningApp,
        enforcement: Enforcement,
        message_id: str,
        once_sent: Callable[[Callable[[], None]], None],
    ) -> None:
        """Store the app, its policy's enforcement, the message's id and who keeps late work."""
        self._app, self._enforcement, self._message_id = app, enforcement, message_id
        self._once_sent = once_sent

    def once_sent(self, work: Callable[[], None]) -> None:
        """Keep work until the answer has left."""
        self._once_sent(work)

    def running_app(self) -> RunningApp:
        """The app, with all digits of its bundle's hash."""
        return self._app

    def bundle_hash(self) -> str:
        """All digits of the hash that the gate has computed."""
        return self._app.fab_hash

    def enforcement(self) -> Enforcement:
        """The charge's enforcement."""
        return self._enforcement

    def message_id(self) -> str:
        """The id that the server has given the message."""
        return self._message_id

    def apps_are_verified(self) -> bool:
        """True: no app can leave out what the owner requires."""
        return True

    def apart(self, *work: Any, **options: Any) -> NoReturn:
        """Refuse: a process forked here does not reach the app.

        Raises:
            Refused: Always.
        """
        raise Refused("terms", "a gate takes part in no sum with secret coins")


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """Decision about one message, by the policy at its arrival.

    Attributes:
        answer_after: Seconds until the answer leaves. None: at once, and no app is asked.
        answer: Returns the answer around a handler, which hands the message to the app.
        once: Whether the message is for the one app that the owner names; see `Site.offer`.
        once_sent: Work that is left to do when the answer has left.
    """

    answer_after: float | None
    answer: Callable[[ClientAppCallable], Message]
    once: bool = False
    once_sent: list[Callable[[], None]] = field(default_factory=list)


class Gate:
    """Decides about each message by the owner's policy. It does not know how messages travel.

    Attributes:
        isolated: Whether root has tried, and found, that apps can't bypass the gate.
    """

    def __init__(self, policy: Path, *, isolated: bool = False) -> None:
        """Read the policy once: an invalid one is an error at the start.

        Its file is read again at every message. For `isolated` see the class.

        Raises:
            NodeConfigError: The policy can't be read or is invalid.
        """
        self._file, self.isolated = policy, isolated
        GatePolicy.read(policy)

    def _enforcement_of(self, way: Way) -> Enforcement:
        if way.enforcement is not None:
            return way.enforcement
        return Enforcement.SITE if self.isolated else Enforcement.COOPERATIVE

    def judge(self, asked: Message, run: JudgedRun, *, came: float) -> Ruling:
        """The decision about a message, which came at that time, in seconds since 1970.

        Nothing is charged before its answer is made.
        """
        try:
            policy = GatePolicy.read(self._file)
        except NodeConfigError as error:
            logger.error("nothing is answered: %s", error)
            kind = type(error).__name__
            refusal = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, kind), reply_to=asked)
            return Ruling(answer_after=None, answer=lambda handler: refusal)
        way, once_sent = way_of(policy, run), list[Callable[[], None]]()
        answer_after = policy.keys.answer_after if _may_reach_app(asked) else None
        left = asked.metadata.created_at + asked.metadata.ttl - came
        has_instruction = _has_instruction(asked)  # before a mod has changed the message
        enforcement, message_id = self._enforcement_of(way), asked.metadata.message_id

        def answer(handler: ClientAppCallable) -> Message:
            """The message that leaves the site as the answer.

            Privacy: under `local`, as `client_noise_mod` states of its reply, and under
            `distributed` as `secure_sum_mod` does, for all data of this site and whatever the app
            does. Under `clip` one reply moves the model by no more than the norm. Under `record`
            the named app's promise to each record holds. Of the app's reply only a model of the
            message's form and the numbers that the policy names are used. All else is constant, or
            depends on the message and the owner's policy alone.
            """
            context = Context(
                run_id=asked.metadata.run_id,
                node_id=asked.metadata.dst_node_id,
                node_config=dict(policy.node_config),
                state=RecordDict(),
                run_config=dict(run.config),  # its digest goes into the masks of a sum
            )
            chain = self._chain(asked, way, policy, in_todays_names(handler))
            if answer_after is not None and answer_after >= left:
                chain = Chain(partial(_too_late, answer_after, left), [])
            names = older_names([metric.name for metric in policy.keys.evaluation])
            with hosted_by(GateHost(run.app, enforcement, message_id, once_sent.append)):
                made = guarded(chain.handler, [names, *chain.mods])(asked, context)
            if not has_instruction:
                return made  # a server without fl-dp expects no mark
            return mark(made, enforcement)

        return Ruling(
            answer_after=answer_after,
            answer=answer,
            once=policy.keys.promise is GatePromise.RECORD,
            once_sent=once_sent,
        )

    def _chain(
        self, asked: Message, way: Way, policy: GatePolicy, handler: ClientAppCallable
    ) -> Chain:
        category, _, action = asked.metadata.message_type.partition(".")
        closed = Chain(_closed, [])
        if category == MessageType.TRAIN:
            return way.training(handler)
        if category == MessageType.EVALUATE:
            return way.evaluation(handler) or closed
        if category == MessageType.QUERY:
            own = {IDENTITY_ACTION: self._introduction(way, policy), **way.queries()}
            if action in own:
                return Chain(own[action], [node_policy_mod])
        return closed

    def _introduction(self, way: Way, policy: GatePolicy) -> ClientAppCallable:
        """A handler of the identity query: it describes the gate, whatever the app."""
        handler = identity_handler(app=APP, abilities=way.abilities)

        def introduce(message: Message, context: Context) -> Message:
            reply = handler(message, context)
            ((key, config),) = reply.content.config_records.items()
            identity = replace(
                NodeIdentity.from_config(config),
                enforcement=self._enforcement_of(way),
                answer_after=policy.keys.answer_after + PULLS,  # as a message may wait so long
            )
            try:
                way.require_rehearsed(config_of(message))
            except PolicyRefusal as refused:
                logger.warning("this gate will refuse what the server plans: %s", refused)
                identity = replace(identity, refuses=True)
            reply.content[key] = identity.to_config()
            return reply

        return introduce


def welcome_in(asked: Message, answer: Message) -> NodeIdentity | None:
    """The introduction by which a server may begin its run. None: the answer is none."""
    if asked.metadata.message_type != f"{MessageType.QUERY}.{IDENTITY_ACTION}":
        return None
    if answer.has_error():
        return None
    (config,) = answer.content.config_records.values()
    identity = NodeIdentity.from_config(config)
    return None if identity.refuses else identity


def _has_instruction(asked: Message) -> bool:
    """Tell whether a message is a training with an instruction, well-formed or not."""
    is_training = asked.metadata.message_type.partition(".")[0] == MessageType.TRAIN
    configs = asked.content.config_records.values()
    return is_training and any(INSTRUCTION_KEY in config for config in configs)


def _may_reach_app(asked: Message) -> bool:
    category = asked.metadata.message_type.partition(".")[0]
    return category in (MessageType.TRAIN, MessageType.EVALUATE)


def _too_late(answer_after: float, left: float, message: Message, context: Context) -> NoReturn:
    raise PolicyRefusal(
        f"the server waits for {left:.3g} s more, and dp-gate-answer-after is "
        f"{answer_after:g}: the answer would be charged, and come too late. Lower it, or ask the "
        "server's operator for a longer time-out"
    )


def _closed(message: Message, context: Context) -> NoReturn:
    raise PolicyRefusal(
        f"this gate answers no {message.metadata.message_type!r:.40} message: what it returns is "
        "computed from data"
    )
