"""Records of Flower's older API: of `NumPyClient` apps, and of the strategies of `flwr.server`.

    fitins.parameters, fitins.config -> fitres.parameters, fitres.num_examples, fitres.metrics, ...

A gate answers such a message as any other, under the names that its server reads.
"""

from __future__ import annotations

from collections.abc import Collection

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.clients.owner.node_policy import PolicyRefusal
from fl_dp.documents import real_number
from fl_dp.protocol.flower_compat import Mod
from fl_dp.protocol.message_keys import METRICS_KEY

_FIT, _EVALUATE = "fitres", "evaluateres"
_ANSWERS = {"fitins.parameters": _FIT, "evaluateins.parameters": _EVALUATE}
_EXAMPLES, _LOSS, _OK = "num_examples", "loss", 0


def older_names(evaluation: Collection[str]) -> Mod:
    """A mod that answers messages of the older API under its names.

    `evaluation` names the numbers that an evaluation may return.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Rename the records of a reply.

        Raises:
            PolicyRefusal: It is an evaluation, whose loss may not leave.
        """
        prefix = _prefix_of(message)
        if prefix is None:
            return call_next(message, context)
        if prefix == _EVALUATE and evaluation and _LOSS not in evaluation:
            raise PolicyRefusal(
                "an evaluation of Flower's older API answers with its loss: add a range of `loss` "
                "to dp-gate-evaluation, or let the server write fraction_evaluate=0"
            )
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        return Message(_in_older_names(reply.content, prefix), reply_to=message)

    return mod


def in_todays_names(app: ClientAppCallable) -> ClientAppCallable:
    """A handler that answers messages of the older API under today's names."""

    def handle(message: Message, context: Context) -> Message:
        prefix = _prefix_of(message)
        reply = app(message, context)
        if prefix is None or reply.has_error():
            return reply
        return Message(_in_todays_names(reply.content, prefix), reply_to=message)

    return handle


def _prefix_of(message: Message) -> str | None:
    """The prefix of the answer's names; None: the message is of today's API."""
    for name, prefix in _ANSWERS.items():
        if name in message.content:
            return prefix
    return None


def _in_older_names(content: RecordDict, prefix: str) -> RecordDict:
    """A gate's answer in the form that a server of the older API reads."""
    numbers = dict(content.metric_records[METRICS_KEY])
    renamed = RecordDict()
    for arrays in content.array_records.values():
        renamed[f"{prefix}.parameters"] = arrays
    if prefix == _EVALUATE:
        renamed[f"{prefix}.loss"] = MetricRecord({_LOSS: numbers.pop(_LOSS)})
    examples = numbers.pop("num-examples")
    renamed[f"{prefix}.num_examples"] = MetricRecord({_EXAMPLES: examples})
    renamed[f"{prefix}.metrics"] = ConfigRecord(dict(numbers))
    renamed[f"{prefix}.status"] = ConfigRecord({"code": _OK, "message": ""})
    return renamed


def _in_todays_names(content: RecordDict, prefix: str) -> RecordDict:
    """An app's answer under today's names."""
    if content.config_records[f"{prefix}.status"]["code"] != _OK:
        raise ValueError("the app replied with a status that is not OK")
    numbers = {
        name: real_number(value)
        for name, value in content.config_records[f"{prefix}.metrics"].items()
    }
    counted = content.metric_records[f"{prefix}.num_examples"]
    numbers["num-examples"] = real_number(counted[_EXAMPLES])
    renamed = RecordDict()
    if prefix == _EVALUATE:
        numbers[_LOSS] = real_number(content.metric_records[f"{prefix}.loss"][_LOSS])
    else:
        renamed["arrays"] = content.array_records[f"{prefix}.parameters"]
    renamed[METRICS_KEY] = MetricRecord(dict(numbers))
    return renamed
