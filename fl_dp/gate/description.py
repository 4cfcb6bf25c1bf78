"""Description of a gate's behaviour in plain words, before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_dp.accounting import NeighboringRelation
from fl_dp.clients.node_config import NodeConfig
from fl_dp.clients.policy_description import PolicyDescription, describe_limits
from fl_dp.ledger.node import Tally
from fl_dp.promise import rounded_up

from .policy import GatePolicy, Promise

_PROMISES = {
    Promise.LOCAL: "adds Gaussian noise of {noise:g} times that norm at least, whatever the app "
    "does",
    Promise.DISTRIBUTED: "adds its share of noise and masks it: sums alone are opened",
    Promise.CLIP: "adds no noise: it relies upon the server's, and promises no epsilon of its own",
}


def describe_gate(policy: GatePolicy) -> PolicyDescription:
    """Describe what a gate with this policy does, after a look at the files that it names."""
    keys = policy.keys
    of_records = keys.promise is Promise.RECORD
    limits = describe_limits(NodeConfig.of(policy.node_config))
    room, lack = _room(policy)
    on_apps = _of_named_app(policy) if of_records else _of_any_app(policy)
    sentences = (
        *on_apps,
        f"Each training is answered {keys.answer_after:g} s after it came, and an app that failed "
        "or is late by the unchanged model",
        "Nothing else of a reply leaves but what a line of this policy names",
    )
    return PolicyDescription(
        sentences=sentences + room + limits.sentences, wrong=limits.wrong + lack
    )


def _room(policy: GatePolicy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A sentence on how many answers fit into the cap, and what is wrong with it."""
    cap = NodeConfig.of(policy.node_config).cap
    if policy.keys.promise is not Promise.LOCAL or cap is None:
        return (), ()
    noise = policy.least_noise
    most = Tally().most(
        noise.mechanism().event(),
        budget=cap,
        neighboring_relation=NeighboringRelation(noise.neighboring_relation),
    )
    if not most:
        lack = "the cap has no room for one answer: raise dp-gate-noise-multiplier"
        return (), (lack,)
    return (f"Of answers with that noise the whole cap has room for {most:,}",), ()


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
        f"It trusts the app's packages as they are: {keys.environment}",
        f"It charges each training as {plan.steps} steps of noise multiplier "
        f"{plan.noise_multiplier:g} on samples of rate {plan.sampling_rate:g}: one alone costs "
        f"epsilon {rounded_up(plan.epsilon(1).best)} at delta {plan.budget.delta:g}",
        "An app that fails or is late, or a restart while it trains, ends this site's part in the "
        "run",
    ]


def _listed(pinned: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in pinned.items()) or "nothing"
