"""Ways of an update out of a site: the owner's mods around the app, one class for each promise.

owner's noise -> policy -> encoding -> clip and noise -> the app          (`local`)
owner's sums -> policy -> share of noise and masks -> clip -> the app        (`distributed`)
policy -> clip -> the app                                                    (`clip`)
owner's pins -> policy -> charge -> the named app                            (`record`)
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from fl_dp.accounting import NeighboringRelation, PrivacyBudgetExhausted
from fl_dp.clients.client_noise import charge_noise, client_noise_mod, released_content
from fl_dp.clients.compressed_reply import compression_mod
from fl_dp.clients.owner.mod_host import present_host
from fl_dp.clients.owner.node_policy import PolicyRefusal, node_policy_mod
from fl_dp.clients.owner.node_privacy import NodePrivacy
from fl_dp.clients.records import Config, config_of, instruction_of, only_record
from fl_dp.clients.secure_node import secure_node_handlers
from fl_dp.clients.secure_sum_client import secure_sum_mod
from fl_dp.clients.unfinished_participation import RunIsOver, UnfinishedParticipation
from fl_dp.codec import encode_text
from fl_dp.files import StorageUnavailable
from fl_dp.mechanisms import SecureRandom, clip_by_norm
from fl_dp.promise import Enforcement
from fl_dp.protocol.flower_compat import Mod
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.introduction import Ability, forms_from_json
from fl_dp.protocol.message_keys import (
    INSTRUCTION_KEY,
    METRICS_KEY,
    MODEL_KEY,
    SCALARS_METRIC,
    STATISTIC_QUERY_KEY,
)
from fl_dp.protocol.secure_sum_messages import SUM_KEY
from fl_dp.updates import BundleSum, VectorLayout, only_array_record
from fl_dp.user_code import Contained

from .judged_run import JudgedRun
from .metrics import (
    config_of_sum,
    noised,
    noised_evaluation,
    numbers_in,
    require_allowed,
    require_allowed_query,
    summed_evaluation,
)
from .pinned import pinned_content, plan_by_terms, require_pinned_names, require_pinned_run
from .policy import GatePolicy, GatePromise

logger = logging.getLogger("flwr.fl_dp.client")

OWN_RECORD = "fl-dp-gate"
"""Name of the gate's own instruction, where the server sends none."""

_HIDDEN = {INSTRUCTION_KEY, STATISTIC_QUERY_KEY, SUM_KEY}


class Chain(NamedTuple):
    """A handler with mods around it, which together answer a message.

    Attributes:
        handler: Makes the answer.
        mods: The mods around it, outermost first.
    """

    handler: ClientAppCallable
    mods: Sequence[Mod]


class Way(ABC):
    """The treatment of trainings under one promise."""

    abilities: frozenset[Ability] = frozenset()
    """Abilities that the gate reports to a server."""
    enforcement: Enforcement | None = None
    """Enforcement of the promise, where that is not the gate."""

    def __init__(self, policy: GatePolicy, run: JudgedRun) -> None:
        """Store policy and the message's run."""
        self._policy, self._run = policy, run

    @abstractmethod
    def require(self, instruction: RoundInstruction) -> None:
        """Refuse a round whose update would leave with less than the owner asks for.

        The instruction is a round's, or the rehearsal's, which says less.

        Raises:
            PolicyRefusal: It would, or the round asks for anything else.
        """

    def require_rehearsed(self, config: Config) -> None:
        """Refuse a training or a statistic that the rehearsal announces, before it is charged.

        Raises:
            PolicyRefusal: It would be refused.
        """
        instruction = RoundInstruction.from_config(config)
        if instruction is not None:
            self.require(instruction)
        if STATISTIC_QUERY_KEY in config:
            require_allowed_query(config, self._policy)

    @abstractmethod
    def training(self, app: ClientAppCallable) -> Chain:
        """The chain that answers a training message around the app."""

    def evaluation(self, app: ClientAppCallable) -> Chain | None:
        """The chain that answers an evaluation around the app. None: it is refused."""
        return None

    def queries(self) -> dict[str, ClientAppCallable]:
        """Handlers of queries that the gate answers itself, by their actions."""
        return {}


class LocalWay(Way):
    """The gate adds the noise: the server is not trusted."""

    abilities = frozenset({Ability.NOISE})

    def require(self, instruction: RoundInstruction) -> None:
        """Refuse less noise than the owner's, and other neighbours."""
        asked, least = instruction.client_noise, self._policy.least_noise
        if asked is None:
            raise PolicyRefusal("the round asks for something else than noise at this site")
        _require_own_relation(asked.neighboring_relation)
        if (
            asked.scheme != least.scheme
            or asked.noise_multiplier < least.noise_multiplier
            or asked.clipping_norm > least.clipping_norm
        ):
            raise PolicyRefusal(
                f"the round asks for {asked.scheme} noise of multiplier "
                f"{asked.noise_multiplier:g} at norm {asked.clipping_norm:g}, and the owner for "
                f"{least.scheme} noise of at least {least.noise_multiplier:g} at norm "
                f"{least.clipping_norm:g} at most"
            )

    def training(self, app: ClientAppCallable) -> Chain:
        """Noise each training by the larger of the owner's and the server's noise."""
        mods = [self._own_noise, node_policy_mod, compression_mod, self._noise]
        return Chain(without_instruction(app), mods)

    def evaluation(self, app: ClientAppCallable) -> Chain | None:
        """Noise the owner's numbers."""
        if not self._policy.keys.evaluation:
            return None
        handler = noised_evaluation(self._policy, without_instruction(app))
        return Chain(handler, [_policy_without_offer])

    def _own_noise(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Add the owner's noise instruction where a server knows nothing of fl-dp.

        Such a server gets what it expects: a model and `num-examples`.
        """
        instruction = instruction_of(message)
        if instruction is not None:
            self.require(instruction)
            return call_next(message, context)
        if OWN_RECORD in message.content:
            raise ValueError(f"a message with a record {OWN_RECORD} of the server's")
        noise = RoundInstruction(server_round=0, client_noise=self._policy.least_noise)
        message.content[OWN_RECORD] = ConfigRecord({INSTRUCTION_KEY: encode_text(noise)})
        return call_next(message, context)

    def _noise(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Clip and noise an update, as the server asks, or as the owner does.

        Privacy: that of `client_noise_mod`. By the owner's instruction, the policy's metrics leave
        with the update as one Gaussian of the owner's noise multiplier. The owner's noise is
        charged, also where the server asks for more: events that differ would take the cap's room.
        """
        instruction = instruction_of(message)
        assert instruction is not None  # the server's, or that of `_own_noise`
        assert instruction.client_noise is not None
        noise = instruction.client_noise
        _log_signal(message, noise.mechanism().noise_std, noise.clipping_norm, in_a_sum=False)
        if OWN_RECORD not in message.content:
            return client_noise_mod(message, context, call_next, charged=self._policy.least_noise)
        bundle, metrics = self._policy.own_bundle, self._policy.keys.metrics
        numbers: dict[str, float] = {}

        def train(message: Message, context: Context) -> Message:
            reply = call_next(message, context)
            with Contained("the app's metrics can't be read, and the middles are noised"):
                numbers.update(numbers_in(reply, [metric.name for metric in metrics]))
            return reply

        content = released_content(
            message,
            context,
            train,
            charge=lambda: charge_noise(self._policy.least_noise, message, context),
            release=lambda update: bundle.updates.privatize(update, SecureRandom()),
        )
        content[METRICS_KEY] = noised(metrics, numbers, bundle)
        return Message(content, reply_to=message)


class DistributedWay(Way):
    """The gate adds a share of the noise, and masks: nobody sees this site's update."""

    abilities = frozenset({Ability.EVALUATION})

    def require(self, instruction: RoundInstruction) -> None:
        """Refuse sums in which this site would be more than one unit."""
        price = instruction.secure_sum
        if price is None or instruction.client_noise is not None:
            raise PolicyRefusal("the round asks for something else than a secure sum")
        _require_own_relation(price.neighboring_relation)
        if instruction.of_records or price.unit != "client":
            raise PolicyRefusal("the sum is of records, and this gate hides the whole site")
        if instruction.max_units != 1 or instruction.weight_cap is not None:
            raise PolicyRefusal("this gate is one unit of a sum, of weight 1")
        if instruction.sampling_rate not in (None, 1.0):
            raise PolicyRefusal(
                "the sum has secret coins, for which a gate can't keep an app's time secret yet: "
                "plan sampling_rate=1"
            )
        bundle, most = instruction.bundle, self._policy.clipping_norm
        if bundle is None:
            return
        require_allowed(bundle.metrics, self._policy.keys.metrics)
        if bundle.updates.clipping_norm > most:
            raise PolicyRefusal(
                f"the round clips to {bundle.updates.clipping_norm:g}, and the owner allows "
                f"{most:g} at most"
            )

    def training(self, app: ClientAppCallable) -> Chain:
        """Add the site's one clipped update to a sum."""
        mods = [self._own_sums, node_policy_mod, secure_sum_mod]
        return Chain(sum_of_one(without_instruction(app)), mods)

    def _own_sums(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        instruction = instruction_of(message)
        if instruction is not None:  # without one nothing offers privacy, which the policy refuses
            self.require(instruction)
            if instruction.bundle is not None:
                updates = instruction.bundle.updates
                _log_signal(message, updates.noise_std, updates.clipping_norm, in_a_sum=True)
        return call_next(message, context)

    def evaluation(self, app: ClientAppCallable) -> Chain | None:
        """Add the owner's numbers to a sum."""
        if not self._policy.keys.evaluation:
            return None
        mods = [self._own_evaluation, node_policy_mod, secure_sum_mod]
        return Chain(summed_evaluation(without_instruction(app)), mods)

    def _own_evaluation(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        require_allowed_query(config_of_sum(message), self._policy)
        return call_next(message, context)

    def queries(self) -> dict[str, ClientAppCallable]:
        """The gate's own answers with keys and shares."""
        return secure_node_handlers()


class ClipWay(Way):
    """The gate clips: the server is trusted to add the noise."""

    def require(self, instruction: RoundInstruction) -> None:
        """Refuse every instruction."""
        raise PolicyRefusal("this gate clips whole models, and follows no round's instruction")

    def training(self, app: ClientAppCallable) -> Chain:
        """Clip the update."""
        return Chain(without_instruction(app), [node_policy_mod, self._clip])

    def _clip(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Clip the update in a train reply, and add no noise.

        Privacy: one reply moves the model by at most the norm, in any dtype and whatever the data
        are. The server alone decides how much noise covers that: the site promises no epsilon, and
        its ledger says so.
        """
        norm = self._policy.clipping_norm
        instruction = instruction_of(message)
        if instruction is not None:
            self.require(instruction)

        def note() -> None:
            node = NodePrivacy.from_context(context, {})
            with node.open_ledger() as ledger:
                ledger.note_reliance(
                    node.source,
                    clipping_norm=norm,
                    use=node.use(message.metadata.message_type),
                )

        def release(update: NDArray[np.float64]) -> NDArray[np.float64]:
            return clip_by_norm(update, norm)

        content = released_content(
            message,
            context,
            call_next,
            charge=note,
            release=release,
            rounded=VectorLayout.unflatten_inwards,  # no noise hides how a number is rounded
        )
        return Message(content, reply_to=message)


class RecordWay(Way):
    """The gate admits and charges one app that the owner names, which trains by its own DP-SGD.

    The server chooses nothing of the app's input but the model.
    """

    enforcement = Enforcement.NAMED_APP

    def require(self, instruction: RoundInstruction) -> None:
        """Refuse every instruction."""
        raise PolicyRefusal("this gate passes on what one app trains, and follows no instruction")

    def require_rehearsed(self, config: Config) -> None:
        """Refuse another configuration than the owner's, other names of arrays, or other terms."""
        super().require_rehearsed(config)
        require_pinned_run(self._run, self._policy)
        if MODEL_KEY in config:
            require_pinned_names(forms_from_json(str(config[MODEL_KEY])), self._policy)
        _ = plan_by_terms(config, self._policy)

    def training(self, app: ClientAppCallable) -> Chain:
        """Charge for the app, and pass on its model."""
        return Chain(app, [self._pinned, node_policy_mod, self._charged])

    def _pinned(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Refuse what the owner has not written down, and give the app only that."""
        require_pinned_run(self._run, self._policy)
        message.content = pinned_content(message, self._policy)
        return call_next(message, context)

    def _charged(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Charge a training before the app gets the message, and pass on its model.

        Privacy: that of the app's DP-SGD by the owner's terms, for one record of this site,
        zero-out neighbours, where the app's code, packages and configuration do as the terms say:
        the owner trusts that, and nothing here checks it. The model passes by name, finite and in
        the message's form; nothing else of a reply leaves. If the budget is spent, the answer is
        the model as it came. So it is if the app failed, which shows, as in `OpacusClient`, once
        per run: the site contributes nothing more to it.
        """
        key, received = only_record(message.content.array_records, "ArrayRecord")
        # A copy, so that the received model can go back unchanged.
        model = ArrayRecord({name: copy(array) for name, array in received.items()})
        layout = VectorLayout.of(model)
        sent = layout.flatten(model)
        with Contained("the named app failed: this site contributes nothing more to the run"):
            try:
                mark = self._pay(message, context)
                reply = call_next(message, context)
                if reply.has_error():
                    raise ValueError("the app replied with an error")
                trained = layout.flatten(only_array_record(reply.content))
                if not np.isfinite(trained).all():
                    raise ValueError("the app's model is not finite")
                sent = trained
                present_host().once_sent(mark.remove)
            except (PrivacyBudgetExhausted, RunIsOver) as over:
                logger.info("%s; this site contributes nothing", over)
            except StorageUnavailable as unavailable:
                logger.error("%s; this site contributes nothing", unavailable)
        arrays = layout.merge(layout.unflatten(sent), model)
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({key: arrays, METRICS_KEY: metrics}), reply_to=message)

    def _pay(self, message: Message, context: Context) -> UnfinishedParticipation:
        """Write one training to the ledger, and mark it as begun.

        Raises:
            RunIsOver: An earlier one in the run did not end.
            PrivacyBudgetExhausted: It does not fit; nothing was written.
        """
        node = NodePrivacy.from_context(context, {})
        use = node.use(message.metadata.message_type)
        account = node.account(unit="record")
        mark = UnfinishedParticipation.beside(node.required_ledger, account, use)
        mark.require_absent()
        plan = plan_by_terms(config_of(message), self._policy)
        with node.open_ledger() as ledger:
            ledger.charge(
                account,
                plan.event,
                count=plan.steps,
                budget=node.cap,
                limit=node.limit(plan.budget, training=plan.training),
                what=f"run {context.run_id}",
                neighboring_relation=plan.neighboring_relation,
                use=use,
            )
        mark.put()
        return mark


_WAYS: dict[GatePromise, Callable[[GatePolicy, JudgedRun], Way]] = {
    GatePromise.LOCAL: LocalWay,
    GatePromise.DISTRIBUTED: DistributedWay,
    GatePromise.CLIP: ClipWay,
    GatePromise.RECORD: RecordWay,
}


def way_of(policy: GatePolicy, run: JudgedRun) -> Way:
    """The way of a policy's promise for a run."""
    return _WAYS[policy.keys.promise](policy, run)


def _log_signal(message: Message, noise_std: float, norm: float, *, in_a_sum: bool) -> None:
    """Log, before a run's first round, how many sites it takes to see more than noise.

    `noise_std` is the noise's standard deviation on each number, of a sum over sites or of one
    update. `norm` bounds the norm of a site's update.
    """
    _, model = only_record(message.content.array_records, "ArrayRecord")
    size = VectorLayout.of(model).size
    length = noise_std * math.sqrt(size)
    if in_a_sum:
        noised, sites = "a sum of sites", math.ceil(length / norm)
    else:
        noised, sites = "this site's update", math.ceil((length / norm) ** 2)
    _log_once(
        message.metadata.run_id,
        f"the noise on {noised} has length {length:.3g} over {size:,} parameters, and an update "
        f"{norm:g} at most: with fewer than {sites:,} sites a round has more noise than updates",
    )


def _require_own_relation(asked: str) -> None:
    if asked != NeighboringRelation.ZERO_OUT:
        raise PolicyRefusal(
            f"the round's neighbours are {asked!r:.50}, and this gate charges for zero-out: plan "
            "neighboring_relation=zero-out"
        )


@lru_cache(maxsize=64)
def _log_once(run: int, line: str) -> None:
    logger.info("run %d: %s", run, line)


def sum_of_one(app: ClientAppCallable) -> ClientAppCallable:
    """A handler that answers with the sum of one unit: an app's update.

    Privacy: the sums move by at most the bundle's clipping norms, whatever the app replies. An app
    that fails, or replies with anything but a finite model of the message's form, adds zero. Noise
    and masks are added around this handler.
    """

    def handle(message: Message, context: Context) -> Message:
        instruction = instruction_of(message)
        assert instruction is not None  # the mods around have checked
        assert instruction.bundle is not None
        key, model = only_record(message.content.array_records, "ArrayRecord")
        layout = instruction.layout_of(model)
        sums = BundleSum(instruction.bundle, layout, layout.flatten(model))
        with Contained("the app failed, and this site adds zero to the sum"):
            reply = app(message, context)
            if reply.has_error():
                raise ValueError("the app replied with an error")
            numbers = numbers_in(reply, [metric.name for metric in instruction.bundle.metrics])
            sums.add(only_array_record(reply.content), numbers)
        metrics = MetricRecord({"num-examples": 1, SCALARS_METRIC: sums.scalars.tolist()})
        content = RecordDict({key: sums.updates.steps(), METRICS_KEY: metrics})
        return Message(content, reply_to=message)

    return handle


def _policy_without_offer(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Check the owner's policy except that the server offers noise: the gate adds it."""
    context.node_config["dp-require-privacy"] = "none"
    return node_policy_mod(message, context, call_next)


def without_instruction(handler: ClientAppCallable) -> ClientAppCallable:
    """A handler that does not see the instruction: the app would add noise, too."""

    def handle(message: Message, context: Context) -> Message:
        records = {}
        for key, record in message.content.items():
            if key == OWN_RECORD:
                continue
            if isinstance(record, ConfigRecord):
                values = {name: value for name, value in record.items() if name not in _HIDDEN}
                record = ConfigRecord(values)
            records[key] = record
        message.content = RecordDict(records)
        return handler(message, context)

    return handle
