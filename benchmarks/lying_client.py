"""How far one lying client of a secure sum moves the model before the server's check refuses.

Digits (scikit-learn's 1,797 images of 8 x 8), a linear model, noise and check of a real plan. The
liar sends what its own images' update is not, as long as the check lets pass. Messages and masks
are left out: they change no sum. Nothing was tuned.

    python benchmarks/lying_client.py [--seeds 3] [--epsilon 8]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import mean, stdev
from types import SimpleNamespace

import numpy as np
from fl_dp.strategies.secure.one_sum import OneSum, Summed
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fl_dp.accounting import PrivacyBudget
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.secagg import SecureSumFailed

Array = NDArray[np.float64]
_CLASSES, _DELTA = 10, 1e-5


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Who sends what.

    Attributes:
        nodes: Their number; one may lie.
        rounds: Number of sums.
        of_records: Whether each record's gradient is clipped, or each node's update.
        rate: The server's learning rate.
        local: A node's steps on its own images, where its update is clipped.
    """

    name: str
    nodes: int
    rounds: int
    of_records: bool
    rate: float
    local: int = 5


FEDERATIONS = (
    Federation(name="10 silos, records", nodes=10, rounds=60, of_records=True, rate=2.0),
    Federation(name="100 clients", nodes=100, rounds=15, of_records=False, rate=1.0),
)


def scores(weights: Array, images: Array) -> Array:
    """A linear model's probabilities."""
    logits = images @ weights.reshape(-1, _CLASSES)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def gradients(weights: Array, images: Array, labels: NDArray[np.int64]) -> Array:
    """Each record's gradient, flattened."""
    wrong = scores(weights, images) - np.eye(_CLASSES)[labels]
    return (images[:, :, None] * wrong[:, None, :]).reshape(len(images), -1)


def clipped(rows: Array, norm: float = 1.0) -> Array:
    """Rows of at most that norm."""
    return np.asarray(rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / norm))


def trained(
    federation: Federation, plan: DistributedPlan, seed: int, lie: str, fraction: float
) -> tuple[float, int, float]:
    """Return accuracy, refused rounds, and the liar's norm in shares of an honest node's most.

    Args:
        federation: Who sends what.
        plan: Plan of the noise.
        seed: Seed of split and noise.
        lie: `no`, `within` (no longer than an honest node's), `last` or `every` round.
        fraction: The liar's norm, over what passes the check in expectation.
    """
    rng = np.random.default_rng(seed)
    digits = load_digits()
    images = np.column_stack([digits.data / 16.0, np.ones(len(digits.data))])
    order = rng.permutation(len(images))
    test, train = order[:360], order[360:]
    held = np.array_split(train, federation.nodes)
    units = len(held[0]) if federation.of_records else 1
    size = images.shape[1] * _CLASSES
    shared = plan.shared_bundle(plan.noise_multiplier, size=size)
    share = shared.share
    check = SimpleNamespace(
        _summed=Summed(purpose="train", share=share, bits=shared.bits, units_in_sum=units)
    )
    std = share.noise_scale / share.segments[0].scale * np.sqrt(federation.nodes)
    noise, most = std * np.sqrt(size), float(federation.nodes * units)
    longest = fraction * np.sqrt(most**2 + 2.0 * most * noise)
    weights, speed, refused = np.zeros(size), np.zeros(size), 0
    for at in range(federation.rounds):
        updates = []
        for mine in held:
            if federation.of_records:
                updates.append(-clipped(gradients(weights, images[mine], digits.target[mine])))
                continue
            local = weights.copy()
            for _ in range(federation.local):
                local -= 0.5 * gradients(local, images[mine], digits.target[mine]).mean(axis=0)
            updates.append(clipped((local - weights)[None]))
        sums = [update.sum(axis=0) for update in updates]
        if lie in ("within", "every") or (lie == "last" and at == federation.rounds - 1):
            length = float(units) if lie == "within" else longest
            sums[0] = -length * sums[0] / np.linalg.norm(sums[0])
        total = np.sum(sums, axis=0) + rng.normal(0.0, std, size)
        try:
            OneSum._require_plausible(check, [total], repliers=federation.nodes)
        except SecureSumFailed:
            refused += 1
            continue
        speed = 0.9 * speed + total / most if federation.of_records else total / most
        weights = weights + federation.rate * speed
    right = scores(weights, images[test]).argmax(axis=1) == digits.target[test]
    return float(right.mean()), refused, longest / units


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--fraction", type=float, default=0.9)
    given = parser.parse_args()
    for federation in FEDERATIONS:
        plan = DistributedPlan(
            budget=PrivacyBudget(epsilon=given.epsilon, delta=_DELTA),
            rounds=federation.rounds,
            num_clients=federation.nodes,
            clipping=FixedClipping(norm=1.0),
            secure_sum=SecureSum(),
            contribution_check=False,
        ).calibrated()
        print(f"{federation.name}: noise multiplier {plan.noise_multiplier:.3f}")
        for lie in ("no", "within", "last", "every"):
            runs = [
                trained(federation, plan, seed, lie, given.fraction) for seed in range(given.seeds)
            ]
            accuracy = [run[0] for run in runs]
            print(
                f"  {lie:7} accuracy {mean(accuracy):.3f} +- {stdev(accuracy):.3f}, refused "
                f"{mean(run[1] for run in runs):.1f} of {federation.rounds}, at most "
                f"{runs[0][2]:.1f} times an honest node's"
            )


if __name__ == "__main__":
    main()
