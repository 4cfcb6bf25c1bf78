"""Configuration of a named app: as its owner wrote it down, with no choice of the server's.

Epsilon, seeds and epochs come from a run's configuration or a message, both from the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.clients.owner.node_policy import PolicyRefusal
from fl_dp.clients.records import Config, config_of, only_record
from fl_dp.codec import decode_text, encode_text
from fl_dp.plan import RecordPlan
from fl_dp.protocol.message_keys import COINS_SEED_KEY, RECORD_PLAN_KEY

from .judged_run import JudgedRun
from .policy import GatePolicy

_ROUND_KEY = "server-round"
_RECORDS = {"arrays", "config", "fitins.parameters", "fitins.config"}
"""Names of Flower's strategies for the records of a training."""

_TERMS = (
    *("noise_multiplier", "sampling_rate", "steps", "clipping_norm"),
    *("neighboring_relation", "unit"),
)


def require_pinned_run(run: JudgedRun, policy: GatePolicy) -> None:
    """Refuse a run with another configuration than the bundle's own and the owner's.

    Raises:
        PolicyRefusal: Its text names the first key with another value.
    """
    pinned = policy.keys.run_config
    config = {key: run.config.get(key) for key in {*run.overrides, *pinned}}
    _require_pinned(config, pinned, "dp-gate-run-config")


def pinned_content(message: Message, policy: GatePolicy) -> RecordDict:
    """A message's content for the app: the model, and the owner's configuration.

    It includes the plan that is charged, under the key by which fl-dp's own clients train.

    Raises:
        PolicyRefusal: The message has anything else, or other values.
        ValueError: It has not exactly one model, or more than one configuration.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        raise PolicyRefusal("the named app is asked to train alone, by no other name")
    if message.content.metric_records:
        raise PolicyRefusal("the message has metrics, which the owner has not pinned")
    for name in message.content:
        if name not in _RECORDS:
            raise PolicyRefusal(
                f"the message has a record {name!r:.50}, and the named app gets `arrays` and "
                "`config` alone: leave the names of records to Flower's strategies"
            )
    key, model = only_record(message.content.array_records, "ArrayRecord")
    require_pinned_names(model, policy)
    config = config_of(message)
    plan = plan_by_terms(config, policy)
    fixed: Config = {RECORD_PLAN_KEY: encode_text(plan)}
    if _ROUND_KEY in config:
        fixed[_ROUND_KEY] = _number_of_round(config[_ROUND_KEY])
    pinned = policy.keys.message_config
    # A run's seed stays behind: at a site whose owner pins all, coins are the site's own.
    passed = {*fixed, COINS_SEED_KEY}
    others = {name: value for name, value in config.items() if name not in passed}
    _require_pinned(dict.fromkeys(pinned) | others, pinned, "dp-gate-message-config")
    name = next(iter(message.content.config_records), "config")
    return RecordDict({key: model, name: ConfigRecord({**pinned, **fixed})})


def require_pinned_names(arrays: Iterable[str], policy: GatePolicy) -> None:
    """Refuse names of a model's arrays that are no numbers in order, and not the owner's.

    Raises:
        PolicyRefusal: Its text is the line by which the owner would allow them.
    """
    names = list(arrays)
    listed = NodeConfig.of(policy.node_config).shared_parameters or ()
    if not set(names) <= set(listed) and names != [str(index) for index in range(len(names))]:
        raise PolicyRefusal(
            "the server names the model's arrays, and the named app gets names of its owner's "
            f"alone: write dp-shared-parameters: {','.join(names)!r:.4000}"
        )


def plan_by_terms(config: Config, policy: GatePolicy) -> RecordPlan:
    """A message's plan, which has the owner's terms; without one the owner's plan.

    Its budget and number of rounds are the server's, and limit the server's own training.

    Raises:
        PolicyRefusal: It has other terms: the server would state something that the app does not
            do.
    """
    own = policy.record_plan
    if RECORD_PLAN_KEY not in config:
        return own
    asked = decode_text(RecordPlan, str(config[RECORD_PLAN_KEY]))
    for name in _TERMS:
        if getattr(asked, name) != getattr(own, name):
            raise PolicyRefusal(
                f"the server plans {name} {getattr(asked, name)}, and dp-gate-dp-sgd says "
                f"{getattr(own, name)}"
            )
    return asked


def _number_of_round(value: object) -> int:
    if type(value) is not int:
        raise PolicyRefusal(f"{_ROUND_KEY} is {value!r:.50}, and no whole number")
    return value


def _require_pinned(config: Mapping[str, Any], pinned: Mapping[str, Any], key: str) -> None:
    """Refuse server values that are not the owner's, which stand under the policy's `key`."""
    for name, value in sorted(config.items()):
        if name not in pinned:
            raise PolicyRefusal(f"the server sets {name!r:.50}, and {key} does not name it")
        if type(value) is not type(pinned[name]) or value != pinned[name]:
            raise PolicyRefusal(
                f"{name!r:.50} is {value!r:.50}, and {key} says {pinned[name]!r:.50}"
            )
