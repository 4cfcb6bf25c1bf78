"""A Flower `ClientApp` over the Message API that serves any `NumPyClient`.

    >>> app = numpy_client_app(lambda context: MyNumPyClient(context))

or, where records are summed over nodes, any model and its records (`record_sums`).

Arrays keep their names, by which a server can match them. Of a client's error the server gets a
code and a class name, as an exception's text can carry data.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.files import StorageUnavailable
from fl_dp.protocol.failures import reason_in_full
from fl_dp.protocol.flower_compat import ErrorCode, Mod
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import (
    IDENTITY_ACTION,
    METRICS_KEY,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    UTILITY_METRIC,
)
from fl_dp.secagg import Refused
from fl_dp.user_code import Contained

from .client_noise import with_noise
from .coins import coins_mod
from .identity import ArraysFn, identity_handler
from .owner.deadline import deadline_mod
from .owner.node_config import NodeConfigError
from .owner.node_policy import PolicyRefusal, node_policy_mod
from .queries import StatisticsFn, evaluation_handler, statistic_handler
from .record_sums import RecordsFn, sum_of_records
from .records import config_of, metric_record, metrics_in, only_record
from .secure_node import secure_node_handlers
from .secure_sum_client import secure_sum_mod
from .simulated_failures import note_failure, noted_failures, unless_simulated
from .trained_unit import TrainedUnit, numpy_client_of, train_unit
from .units import NodeUnits, sum_of_units

if TYPE_CHECKING:
    from .torch_units import TorchUnits

ClientFn = Callable[[Context], NumPyClient | Client]


def numpy_client_app(
    client_fn: ClientFn | None = None,
    mods: list[Mod] | None = None,
    *,
    units: NodeUnits | TorchUnits | None = None,
    records: RecordsFn | None = None,
    statistics_fn: StatisticsFn | None = None,
    arrays_fn: ArraysFn | None = None,
) -> ClientApp:
    """Return a `ClientApp` whose messages are answered by a `NumPyClient`.

    Without a round instruction a train message is answered as by any Flower client. With one:

    - `num-examples` is 1 in every reply; only metrics that the instruction names are sent. The
      true number of records, from `fit`, becomes a weight on the node.
    - What a selection asks is `records` (that number) or a metric of `fit`, for instance its
      `loss`; one that is missing or no number is not sent.
    - An evaluate message with a query (`evaluate_federation`) gets bounded measurements of each
      hosted unit; one without, what any Flower client answers.
    - Several units are trained by `units.client_fn` and summed (`sum_of_units`); without `units`,
      `client_fn` makes the client of the node's only unit, number 0.
    - Where units are records, their clipped gradients are summed (`sum_of_records`); they leave
      the node only in a secure sum.
    - Sums for a secure sum are noised and masked (`secure_sum_mod`).
    - Noise at the client is added outside all mods (`client_noise_mod`), and the result is encoded
      (`compression_mod`).

    Messages that the node's owner does not allow are refused first (`node_policy_mod`); a client
    that hangs ends with its message's time to live (`deadline_mod`).

    Args:
        client_fn: Makes the client for one message from the node's `Context`: a `NumPyClient`, or
            the result of its `to_client()`. None: this node answers with sums alone.
        mods: Flower mods around train and evaluate, outermost first, inside the guard that stops
            exception texts at the node.
        units: The privacy units of a node that hosts several: `TorchUnits` for a training of a
            PyTorch module, which needs no `client_fn`; `NodeUnits` for clients of your own.
        records: Records that are each a privacy unit, such as `NodeRecords`.
        statistics_fn: One unit's values, for private statistics; see `StatisticsFn`. If it raises,
            that unit contributes zero. None: this node answers none.
        arrays_fn: Arrays of the forms that `fit` will return, from the node's `Context` and the
            message's config, made without any data; or the PyTorch module that `fit` trains. The
            server compares them with its model, and what is trained with what it releases, before
            any charge. None: a client that trains another model shows in training only.

    Returns:
        An app for `[tool.flwr.app.components]` or a simulation. Train replies carry one ArrayRecord
        under the message's name; train and evaluate replies carry one MetricRecord, `metrics`,
        with `num-examples` (and `loss` for evaluate) as Flower's strategies expect. Queries are
        answered as `fl_dp.clients.queries` says.

    Raises:
        TypeError: `client_fn` is no function of one argument, for instance a client itself.
        ValueError: `mods` has `client_noise_mod`, which would add the noise twice, or
            `compression_mod`; or there is nothing to answer with.
    """
    _require_client_fn(client_fn)
    if client_fn is None and units is None and records is None:
        raise ValueError("numpy_client_app needs a client_fn, units or records to answer with")
    trained_module = getattr(records or units, "arrays_fn", None)  # `TorchUnits` has it, too
    if units is not None and not isinstance(units, NodeUnits):
        client_fn = client_fn or units.client_fn  # where a node hosts one
        units = units.of_node()
    noised = with_noise(mods, of="numpy_client_app")

    def make_client(context: Context) -> NumPyClient:
        if client_fn is None:
            raise ValueError("this node's app has no client_fn: it answers with sums alone")
        return numpy_client_of(client_fn(context))

    hosted = NodeUnits.single(make_client) if units is None else units
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        key, model = only_record(message.content.array_records, "ArrayRecord")
        config = config_of(message)
        instruction = RoundInstruction.from_config(config)
        if instruction is None:
            unit = train_unit(make_client(context), model, config)
            arrays = unit.arrays
            metrics = metric_record({"num-examples": unit.num_examples}, unit.metrics)
        elif instruction.of_records:
            if records is None:
                raise ValueError(
                    "the units of this training are records: give numpy_client_app(records=...)"
                )
            arrays, sums = sum_of_records(instruction, model, config, context, records)
            metrics = metric_record({"num-examples": 1} | sums, {})
        elif instruction.sums_units:
            arrays, sums = sum_of_units(instruction, model, config, context, hosted)
            metrics = metric_record({"num-examples": 1} | sums, {})
        else:
            unit = train_unit(make_client(context), model, config)
            arrays, metrics = _answer_of_one(unit, model, instruction)
        return Message(RecordDict({key: arrays, METRICS_KEY: metrics}), reply_to=message)

    evaluate_privately = evaluation_handler(hosted)

    def evaluate(message: Message, context: Context) -> Message:
        _, arrays = only_record(message.content.array_records, "ArrayRecord")
        config = config_of(message)
        if STATISTIC_QUERY_KEY in config:
            return evaluate_privately(message, context)
        loss, num_examples, metrics = make_client(context).evaluate(
            arrays.to_numpy_ndarrays(), config
        )
        records = metric_record({"num-examples": num_examples, "loss": loss}, metrics_in(metrics))
        return Message(RecordDict({METRICS_KEY: records}), reply_to=message)

    abilities: set[Ability] = set()
    if client_fn is not None:
        abilities |= {Ability.NOISE, Ability.SUMS, Ability.UTILITY, Ability.WEIGHTS}
    if units is not None:
        abilities |= {Ability.SUMS, Ability.UNITS, Ability.UTILITY, Ability.WEIGHTS}
    if client_fn is not None or units is not None:
        abilities.add(Ability.EVALUATION)
    if records is not None:
        unit = getattr(records, "unit", None)  # `NodeRecords` has it; a function tells it later
        abilities |= {Ability.RECORDS} if unit != "person" else set()
        abilities |= {Ability.PERSONS} if unit != "record" else set()
    if statistics_fn is not None:
        abilities.add(Ability.STATISTICS)
    identity = identity_handler(
        app="numpy_client_app of fl-dp",
        arrays_fn=arrays_fn or trained_module,
        mods=mods or (),
        abilities=abilities,
    )
    owners: list[Mod] = [deadline_mod, node_policy_mod, coins_mod]
    # Outside all handlers that read data: an answer to a message with terms leaves masked only.
    declared = getattr(records, "declared_gradients", None)  # `NodeRecords` has it, too
    summed: list[Mod] = [*owners, partial(secure_sum_mod, declared_gradients=declared)]
    app.train()(guarded(train, [*summed, *noised]))
    app.evaluate()(guarded(evaluate, [*summed, *(mods or [])]))
    app.query(IDENTITY_ACTION)(guarded(identity, owners))
    app.query(STATISTIC_ACTION)(guarded(statistic_handler(statistics_fn, hosted), summed))
    for action, handler in secure_node_handlers().items():
        app.query(action)(guarded(handler, owners))
    return app


def _require_client_fn(client_fn: object) -> None:
    """Check that `client_fn` can be called with a node's context."""
    if client_fn is None:
        return
    if not callable(client_fn):
        name = type(client_fn).__name__
        raise TypeError(
            f"client_fn is a {name}, not a function: write "
            f"numpy_client_app(lambda context: {name}(...)), which makes a client for each message"
        )
    try:
        inspect.signature(client_fn).bind(None)
    except ValueError:  # a function in C has no signature
        return
    except TypeError as error:
        raise TypeError(
            f"client_fn is called with the node's Context alone ({error}): write "
            "numpy_client_app(lambda context: ...)"
        ) from None


def _answer_of_one(
    unit: TrainedUnit, model: ArrayRecord, instruction: RoundInstruction
) -> tuple[ArrayRecord, MetricRecord]:
    """The arrays and metrics of a node's only unit that the server may see."""
    required: dict[str, float] = {"num-examples": 1}
    asked = unit.asked_of(instruction)
    if not math.isnan(asked):
        required[UTILITY_METRIC] = asked
    arrays = unit.weighted_arrays(model, instruction.weight_cap)
    return arrays, metric_record(required, unit.measured(instruction.bundle))


def guarded(handler: ClientAppCallable, mods: Sequence[Mod]) -> ClientAppCallable:
    """Run mods, outermost first, and a handler; reply to an exception without its text.

    The node's log has it; a simulated node sends it whole.
    """
    for mod in reversed(mods):
        handler = _wrapped(mod, handler)

    def answer(message: Message, context: Context) -> Message:
        line = unless_simulated("the client failed; the server is told only the kind of error")
        with noted_failures() as noted:
            with Contained(line, expected=_REFUSALS) as attempt:
                reply = handler(message, context)
                for failure in noted[:1]:
                    failure.attach_to(reply)
                return reply
            note_failure(attempt.failure)
            reason = _kind_of(attempt.failure)
            for failure in noted[:1]:
                reason = reason_in_full(reason, failure)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    return answer


_REFUSALS = (PolicyRefusal, Refused, NodeConfigError, PrivacyBudgetExhausted)


def _kind_of(failure: BaseException | None) -> str:
    """The part of a failure that a server may know: not which of the node's disks has failed."""
    if isinstance(failure, StorageUnavailable):
        return StorageUnavailable.__name__
    kind = type(failure).__name__
    if isinstance(failure, Refused):  # its code is one of a few words, and depends on no data
        return f"{kind} {failure.code}"
    return kind


def _wrapped(mod: Mod, handler: ClientAppCallable) -> ClientAppCallable:
    return lambda message, context: mod(message, context, handler)
