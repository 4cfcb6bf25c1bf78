"""What a gate will and will not do, in plain words, before it is started."""

from __future__ import annotations

from fl_dp.clients.node_config import NodeConfig
from fl_dp.clients.policy_description import PolicyDescription, describe_limits

from .policy import GatePolicy

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
    sentences = (
        f"It clips each update to the L2 norm {keys.clipping_norm:g}, and {noise}",
        f"Each training is answered {keys.answer_after:g} s after it came, and an app that failed "
        "or is late by the unchanged model",
        "Nothing else of a reply leaves but what a line of this policy names",
    )
    return PolicyDescription(sentences=sentences + limits.sentences, wrong=limits.wrong)
