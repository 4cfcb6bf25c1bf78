"""The answer to the identity query: a node's name, and the form of its answers, without data.

The server asks before any charge (`strategies/rehearsal.py`). Nothing here may depend on a record.
An `ArraysFn` makes the arrays' forms without data; an exhausted budget is looked up by the data's
name alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from flwr.app import Array, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray

from fl_dp.accounting import NeighboringRelation
from fl_dp.accounting.budget import Limit
from fl_dp.codec import decode_text
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.introduction import Ability, Form, NodeIdentity, forms_from_json
from fl_dp.protocol.message_keys import MODEL_KEY, RECORD_PLAN_KEY, ROUNDS_KEY, WIRE, WIRE_KEY
from fl_dp.user_code import Contained

from .owner.node_config import NodeConfig
from .owner.node_policy import refusal_of_training
from .owner.node_privacy import NodePrivacy, in_simulation
from .records import Config, config_of

if TYPE_CHECKING:
    from torch import nn

    from fl_dp.ledger.node import Account, Charge, Spending

logger = logging.getLogger("flwr.fl_dp.client")

ArraysFn: TypeAlias = Callable[[Context, Config], "Sequence[NDArray[Any]] | nn.Module"]
"""Returns arrays of the forms that `fit` will return, in its order, made without any data.

Or the PyTorch module that `fit` trains, of which it returns the whole state or what is trained:
then the server also learns which arrays are trained.
"""

_PACKAGES = ("flwr", "numpy", "torch", "opacus")


def identity_handler(
    *,
    app: str,
    arrays_fn: ArraysFn | None = None,
    mods: Sequence[Mod] = (),
    abilities: Collection[Ability] = (),
) -> ClientAppCallable:
    """Return a handler that introduces the node and the form of its answers.

    Message: ConfigRecord as of a train message, with `fl-dp-model`, the model's forms. Reply:
    ConfigRecord, see `NodeIdentity`. The name is `NodeConfig.node_name`. Without an `arrays_fn`
    the node can't tell forms. `mods` are those around the training.
    """

    def answer(message: Message, context: Context) -> Message:
        config, owner = config_of(message), NodeConfig.of(context.node_config)
        if (server_wire := config.get(WIRE_KEY)) != WIRE:
            spoken = f"version {server_wire!r:.20}"
            if server_wire is None:
                spoken = "messages without a version"
            logger.warning(
                "the server's fl-dp speaks %s, and this node's (%s) version %d: it may not be "
                "served; agree on one fl-dp (docs/upgrades.md)",
                spoken,
                _versions()["fl-dp"],
                WIRE,
            )
        arrays, trained, failed = None, None, ""
        if arrays_fn is not None and MODEL_KEY in config:
            line = "arrays_fn failed; the server is told only the kind of error"
            with Contained(line) as attempt:
                sent = forms_from_json(str(config[MODEL_KEY]))
                arrays, trained = _described(arrays_fn(context, config), sent)
            if attempt.failure is not None:
                failed = type(attempt.failure).__name__
        refusal = refusal_of_training(owner, config, _names_of_model(config))
        if refusal is not None:
            logger.warning("this node will take no part in the training: %s", refusal)
        tells = owner.tell_exhausted or in_simulation()
        exhausted = _exhausted_limit(context, config) if tells else None
        identity = NodeIdentity(
            name=owner.node_name,
            app=app,
            versions=_versions(),
            mods=tuple(getattr(mod, "__name__", "") for mod in mods),
            arrays=arrays,
            trained=trained,
            failed=failed,
            refuses=refusal is not None,
            exhausted=exhausted,
            falls_short=tells and exhausted is None and _falls_short(context, config),
            abilities=frozenset(abilities),
        )
        return Message(RecordDict({"identity": identity.to_config()}), reply_to=message)

    return answer


def _described(
    answer: Sequence[NDArray[Any]] | nn.Module, model: Mapping[str, Form]
) -> tuple[dict[str, Form], frozenset[str] | None]:
    """The forms of an app's arrays, and the names of those that it trains, if it tells."""
    if not hasattr(answer, "named_parameters"):
        return _forms(answer, model), None
    module = cast("nn.Module", answer)
    from fl_dp.model_arrays import get_arrays, sent_names, trained_names  # with torch, as it is

    own, trained = sent_names(module, model), set(trained_names(module))
    forms = _forms(list(get_arrays(module, own).values()), model)
    pairs = zip(forms, own, strict=True)  # the message's name and the module's
    return forms, frozenset(sent for sent, name in pairs if name in trained)


def _forms(arrays: Sequence[Any] | Mapping[str, Any], model: Mapping[str, Form]) -> dict[str, Form]:
    """The arrays' forms under the model's names in order, as training names them."""
    values = arrays.values() if isinstance(arrays, Mapping) else arrays  # of `get_arrays`
    converted = [item if isinstance(item, Array) else Array(np.asarray(item)) for item in values]
    names = [*model, *(f"#{index}" for index in range(len(model), len(converted)))]
    pairs = zip(names, converted, strict=False)
    return {name: (tuple(array.shape), array.dtype) for name, array in pairs}


def _names_of_model(config: Config) -> Sequence[str]:
    if MODEL_KEY not in config:
        return []
    return list(forms_from_json(str(config[MODEL_KEY])))


def _versions() -> dict[str, str]:
    from fl_dp import __version__  # the package's own, which imports this

    loaded = [name for name in _PACKAGES if name in sys.modules]
    # The modules' own versions: in metadata nightly versions are packages of another name.
    return {"fl-dp": __version__} | {name: str(sys.modules[name].__version__) for name in loaded}


def _exhausted_limit(context: Context, config: Config) -> Limit | None:
    """The limit by which the node's ledger would refuse a round of this training, if any."""
    node = NodePrivacy.from_context(context, config)
    charge = _planned_charge(config, node)
    if node.ledger is None or charge is None:
        return None
    spending = _spending(node.ledger, node, charge.account)
    if spending is None:
        return Limit.CAP
    return spending.limit_exceeded(charge)


def _falls_short(context: Context, config: Config) -> bool:
    """Tell whether the owner's cap has room for a round of this training, but not for all of it.

    A training that has charged the node before is not judged: how much remains is unknown.
    """
    node = NodePrivacy.from_context(context, config)
    cap, instruction = node.cap, RoundInstruction.from_config(config)
    if cap is None:
        return False
    if instruction is not None and (summed := instruction.secure_sum) is not None:
        return cap.epsilon < (summed.epsilon or 0.0) or cap.delta < (summed.delta or 0.0)
    charge = _planned_charge(config, node)
    if node.ledger is None or charge is None:
        return False
    spending = _spending(node.ledger, node, charge.account)
    if spending is None or (charge.limit is not None and charge.limit.run in spending.runs):
        return False
    planned = replace(charge, count=_rounds_of(config) * charge.count, limit=None)
    return spending.limit_exceeded(planned) is not None


def _rounds_of(config: Config) -> int:
    """Most rounds of this training that the node may be charged; 1 by default."""
    if RECORD_PLAN_KEY in config:
        from fl_dp.plan import RecordPlan

        return decode_text(RecordPlan, str(config[RECORD_PLAN_KEY])).participations
    rounds = str(config.get(ROUNDS_KEY, ""))
    return int(rounds) if rounds.isdecimal() else 1


def _spending(path: str, node: NodePrivacy, account: Account) -> Spending | None:
    """The spending of the node's data in its ledger; None: nothing more may be spent.

    It is looked up by the data's source alone: a fingerprint would depend on records.
    """
    from fl_dp.ledger import NodeLedger  # with SciPy, for a node that keeps a ledger alone
    from fl_dp.ledger.node import Spending

    try:
        with NodeLedger.read(path) as ledger:
            if ledger.revoked is not None:
                return None
            return ledger.spending_of_source(account)
    except FileNotFoundError:
        return Spending(unit=account.unit)


def _planned_charge(config: Config, node: NodePrivacy) -> Charge | None:
    """One round's charge at the node; None: there is none."""
    if RECORD_PLAN_KEY in config:
        from fl_dp.ledger.node import Charge  # with SciPy, for a node that keeps a ledger alone
        from fl_dp.plan import RecordPlan

        plan = node.plan(decode_text(RecordPlan, str(config[RECORD_PLAN_KEY])))
        return Charge(
            account=node.account(unit=plan.unit),
            event=plan.event,
            count=plan.steps,
            cap=node.cap,
            limit=node.limit(plan.budget, training=plan.training),
            neighboring_relation=plan.neighboring_relation,
        )
    instruction = RoundInstruction.from_config(config)
    if instruction is None or (noise := instruction.client_noise) is None:
        return None
    from fl_dp.ledger.node import Charge

    try:
        limit = node.limit_of_noise(noise)
    except ValueError:  # there is no budget, which training reports
        return None
    return Charge(
        account=node.account(unit="client"),
        event=noise.mechanism().event(),
        count=1,
        cap=node.cap,
        limit=limit,
        neighboring_relation=NeighboringRelation(noise.neighboring_relation),
    )
