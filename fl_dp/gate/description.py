"""Description of a gate's behaviour in plain words, before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_dp.accounting import NeighboringRelation, PrivacyBudget, PrivacyEvent
from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.clients.owner.policy_description import PolicyDescription, describe_limits
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account, Tally
from fl_dp.plan import RecordPlan

from .policy import FULL_HASH, GatePolicy, GatePromise

_PROMISES = {
    GatePromise.LOCAL: "adds Gaussian noise of {noise:g} times that norm at least, whatever the "
    "app does",
    GatePromise.DISTRIBUTED: "adds its share of noise and masks it: sums alone are opened",
    GatePromise.CLIP: "adds no noise: it relies upon the server's, and promises no epsilon of its "
    "own",
}


def describe_gate(policy: GatePolicy) -> PolicyDescription:
    """Describe what a gate with this policy does, after a look at the files that it names."""
    owner, keys = NodeConfig.of(policy.node_config), policy.keys
    limits = describe_limits(owner)
    of_records = keys.promise is GatePromise.RECORD
    on_apps = _of_named_app(policy) if of_records else _of_any_app(policy)
    try:
        room, lack = _room(policy, owner)
    except (ArithmeticError, ValueError) as error:  # of numbers that no accountant computes with
        room, lack = [], [f"nobody can compute the charge of an answer, so none leaves: {error}"]
    sentences = [
        *on_apps,
        f"Each training is answered {keys.answer_after:g} s after it came, and an app that failed "
        "or is late by the unchanged model",
        "Nothing else of a reply leaves but what a line of this policy names",
        *room,
        _allowed_apps(owner),
    ]
    return PolicyDescription(
        sentences=(*sentences, *limits.sentences), wrong=(*limits.wrong, *lack)
    )


def _room(policy: GatePolicy, owner: NodeConfig) -> tuple[list[str], list[str]]:
    """Say how many answers fit into the cap, and what is wrong with it."""
    event: PrivacyEvent
    match policy.keys.promise, owner.cap:
        case GatePromise.LOCAL, PrivacyBudget() as cap:
            noise = policy.least_noise
            event, count = noise.mechanism().event(), 1
            relation = NeighboringRelation(noise.neighboring_relation)
            unit, answer, remedy = "client", "answer", "raise dp-gate-noise-multiplier"
        case GatePromise.RECORD, PrivacyBudget() as cap:
            plan = policy.record_plan
            event, count, relation = plan.event, plan.steps, plan.neighboring_relation
            unit, answer, remedy = "record", "training", "write other terms in dp-gate-dp-sgd"
        case _:  # the terms of a sum decide, or nothing is charged
            return [], []

    def exceeds(charged: Tally) -> bool:
        return charged.would_exceed(event, count=count, budget=cap, neighboring_relation=relation)

    if exceeds(Tally()):
        return [], [f"the cap has no room for one {answer}: {remedy}, or raise dp-max-epsilon"]
    if exceeds(_charged(owner, unit)):
        spent = f"what was charged so far leaves no room in the cap for one more {answer}"
        return [], [f"{spent}: raise dp-max-epsilon, or let it end"]
    if count > 1:
        return [], []
    most = Tally().most(event, budget=cap, neighboring_relation=relation)
    return [f"Of answers with that noise the whole cap has room for {most:,}"], []


def _charged(owner: NodeConfig, unit: str) -> Tally:
    """What the ledger has charged to the gate's data; another line tells if it can't be read."""
    assert owner.ledger_path is not None  # every promise that is charged needs one
    try:
        with NodeLedger.read(owner.ledger_path) as ledger:
            return ledger.spending_of_source(Account(unit=unit, source=owner.source))
    except (OSError, RuntimeError, ValueError):
        return Tally()


def _allowed_apps(owner: NodeConfig) -> str:
    """Which apps may reach the data; the gate reads and hashes each bundle itself."""
    rules = owner.allowed_apps
    if rules is None:
        return (
            "Each app that the server sends may reach the data here: "
            'dp-allowed-apps: "hospital/heart>=1.2,<2" names some'
        )
    named = ", ".join(rule.text for rule in rules)
    line = f"It passes messages to {named} alone: the gate reads and hashes each bundle itself"
    if all(len(rule.fab_hash) == FULL_HASH for rule in rules):
        return line
    return (
        f"{line}, but a bundle without all {FULL_HASH} digits of its hash in the rule can be "
        "anybody's that takes the name"
    )


def _of_any_app(policy: GatePolicy) -> list[str]:
    noise = _PROMISES[policy.keys.promise].format(noise=policy.keys.noise_multiplier or 0.0)
    return [f"It clips each update to the L2 norm {policy.clipping_norm:g}, and {noise}"]


def _of_named_app(policy: GatePolicy) -> list[str]:
    keys, plan = policy.keys, policy.record_plan
    return [
        "It promises something to each record, and nothing to the site as a whole, by the DP-SGD "
        "of one app, whose code the owner trusts; each other app is refused",
        f"It lets a run set {_listed(keys.run_config)}, and a training message "
        f"{_listed(keys.message_config)}; each other value is refused",
        "It lets a server name arrays by numbers, or as dp-shared-parameters lists them",
        f"It trusts the app's packages as they are: {keys.environment}",
        f"It charges each training as {plan.steps} steps of noise multiplier "
        f"{plan.noise_multiplier:g} on samples of rate {plan.sampling_rate:g}: {_price(plan)}",
        "An app that fails or is late, or a restart while it trains, ends this site's part in the "
        "run",
    ]


def _price(plan: RecordPlan) -> str:
    try:
        price = Guarantee.of(plan, plan.epsilon(1).best)
    except (ArithmeticError, ValueError):  # as of the charge itself
        return "nobody can compute what one alone costs"
    return f"one alone costs {price}"


def _listed(pinned: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in pinned.items()) or "nothing"
