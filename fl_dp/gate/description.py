"""What a gate will and will not do, in plain words, before it is started."""

from __future__ import annotations

from fl_dp.accounting import NeighboringRelation
from fl_dp.clients.node_config import NodeConfig
from fl_dp.clients.policy_description import PolicyDescription, describe_limits
from fl_dp.ledger.node import Tally

from .policy import GatePolicy, Promise

_PROMISES = {
    "local": "adds Gaussian noise of {noise:g} times that norm at least, whatever the app does",
    "distributed": "adds its share of noise and masks it: sums alone are opened",
    "clip": "adds no noise: it relies upon the server's, and promises no epsilon of its own",
}


def describe_gate(policy: GatePolicy) -> PolicyDescription:
    """Say what a gate with this policy will do, after looking at the files that it names."""
    keys = policy.keys
    noise = _PROMISES[keys.promise].format(noise=keys.noise_multiplier or 0.0)
    limits = describe_limits(NodeConfig.of(policy.node_config))
    room, lack = _room(policy)
    sentences = (
        f"It clips each update to the L2 norm {keys.clipping_norm:g}, and {noise}",
        f"Each training is answered {keys.answer_after:g} s after it came, and an app that failed "
        "or is late by the unchanged model",
        "Nothing else of a reply leaves but what a line of this policy names",
    )
    return PolicyDescription(
        sentences=sentences + room + limits.sentences, wrong=limits.wrong + lack
    )


def _room(policy: GatePolicy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a sentence of how many answers the cap has room for, and what is wrong with it."""
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
