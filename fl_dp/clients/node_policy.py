"""What a node's owner requires of every server: a message that asks for less is refused.

    flower-supernode ... --node-config 'require-privacy="example" ledger-path="/data/ledger.db" ...'

Without it a node does what the server's messages say. A server that is not trusted could leave out
what protects the node, or ask for an evaluation, whose loss is computed from private data.
"""

from __future__ import annotations

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.updates.instruction import EXAMPLE_PLAN_KEY, IDENTITY_ACTION, RoundInstruction

from .node_privacy import NodePrivacy

REQUIRE_PRIVACY_KEY = "require-privacy"
"""Key of `--node-config`: `example`, `local`, or both as `example+local`."""

_REQUIREMENTS = ("example", "local")


class PolicyRefusal(PermissionError):
    """The node's owner does not allow what the message asks for."""


def node_policy_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Refuse a message that asks for less privacy than the node's owner requires.

    `example`: only training by DP-SGD (an `ExamplePlan` in the message). `local`: only training
    whose reply the client noises itself. Evaluations, statistics and utilities are refused under
    either, the node's name is told. `numpy_client_app` has it built in, outside everything else.

    Raises:
        PolicyRefusal: If it is refused.
        ValueError: If the requirement is unknown, or the node keeps no ledger to stop at.
    """
    required = _required(context)
    if not required:
        return call_next(message, context)
    category, _, action = message.metadata.message_type.partition(".")
    if category == MessageType.QUERY and action == IDENTITY_ACTION:
        return call_next(message, context)
    if category != MessageType.TRAIN:
        raise PolicyRefusal(f"this node trains privately and answers no {category} message")
    configs = list(message.content.config_records.values())
    if NodePrivacy.of(context, {}).ledger is None:
        raise ValueError("require-privacy needs a ledger: --node-config 'ledger-path=\"...\"'")
    instructions = [RoundInstruction.of(config) for config in configs]
    offered = {
        "example": any(EXAMPLE_PLAN_KEY in config for config in configs),
        "local": any(each is not None and each.client_noise for each in instructions),
    }
    missing = [each for each in required if not offered[each]]
    if missing:
        raise PolicyRefusal(f"this node requires privacy={missing[0]}, and the message has none")
    return call_next(message, context)


def _required(context: Context) -> tuple[str, ...]:
    asked = context.node_config.get(REQUIRE_PRIVACY_KEY)
    if asked is None:
        return ()
    required = tuple(str(asked).split("+"))
    unknown = [each for each in required if each not in _REQUIREMENTS]
    if unknown:
        raise ValueError(
            f"--node-config: {REQUIRE_PRIVACY_KEY} must be example, local or example+local, got "
            f"'{asked}'"
        )
    return required
