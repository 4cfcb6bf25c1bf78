"""Sums with noise in shares, played by the nodes' encoder, with canaries alone.

    >>> report = report_of_sums(make_plan(settings), "digits", size=8970, alpha=1e-6)

Nothing is masked: a sum is what members would open, modulo the words. The adversary knows all
other values, and all shares of noise but those that the plan counts. So only these nodes are
played, none late: other shares would hide more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.guarantee import Guarantee
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.correlated_run import PublicTurns
from fl_dp.lab.audit.verdict import AuditReport
from fl_dp.lab.audit.whole_run import ObservedRound
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE
from fl_dp.plan import Plan
from fl_dp.plan.distributed_noise import DistributedNoise
from fl_dp.plan.shared_bundle import SharedBundle
from fl_dp.secagg.opening import centred_words

from .canary_run import MOST_CANARIES
from .observed_run import Audited, ObservedRun, claims_of, rate_of_coins

_LONGEST = 5.0  # of an entry of many canaries' sum, in its deviations


def report_of_sums(
    plan: Plan,
    subject: str,
    *,
    size: int,
    alpha: float,
    count: int | None = None,
    seed: int = 0,
) -> AuditReport:
    """Return what a planned training's opened sums prove, beside its claim.

    The plan has noise in shares, and the model `size` coordinates. Sums that keep the claim are
    accused with probability `alpha`, over all findings. Of `count` canaries half are left out;
    None: as many as fit, up to 1000. `seed` is that of their directions and coins.

    Raises:
        ValueError: If the model or a node's values have no room for the canaries.
    """
    noise = shares_of(plan)
    bundles = [plan.bundle(multiplier) for multiplier in plan.noise_multipliers]
    shares = [noise.shared_bundle(bundle, size) for bundle in bundles]
    honest, first = noise.honest_shares, shares[0].segments[0]
    if count is None:
        cap = first.cap / first.scale / first.clipping_norm
        fitting = size * (cap / _LONGEST) ** 2  # on each node
        # Only half the canaries are present. With rotation a node with few keeps its peak.
        on_node = math.floor(fitting) if shares[0].share.rotated else 2.0 * fitting
        count = min(MOST_CANARIES, size // 2, math.floor(honest * on_node))
        if count < 1:
            raise ValueError(
                f"no canary fits: a node's values are cut at {cap:.3g} clipping norms, so leave "
                "privacy.secure_sum.element_cap and privacy.secure_sum.bits out"
            )
    canaries = Canaries(count=count, size=size, seed=seed)
    asked = turns_of(plan, count)
    coins_are_known = "and who was in each sum" if plan.sampling.visible else "but no coins"
    audited = Audited(
        run=play_sums(plan, shares, canaries, asked),
        canaries=canaries,
        sampling=plan.sampling,
        claims=claims_of(plan, plan.history, plan.epsilon().best),
        delta=plan.budget.delta,
    )
    return audited.report(
        alpha=alpha,
        subject=f"{subject}, {len(shares)} sums of {honest} shares of noise",
        promise=Guarantee.of(plan),
        knowledge=f"all others' values, all other shares of noise, {coins_are_known}",
        notes=(
            "no masks, coins of nodes, clipping or training were played, and no node was late: "
            "these are the values, noise and words of honest nodes alone",
        ),
    )


def shares_of(plan: Plan) -> DistributedNoise:
    """A plan's noise in shares.

    Raises:
        TypeError: If it has none.
    """
    if plan.noise is None:
        raise TypeError(f"noise {plan.noise_location} has no shares")
    return plan.noise


def turns_of(plan: Plan, count: int) -> NDArray[np.bool_]:
    """Return who is in which sum, shape `(rounds, count)`: as often as a unit is charged for.

    Secret coins decide, or the unit's turns where participation is visible.
    """
    law, rounds = plan.sampling, plan.rounds
    if not law.visible:
        rng = SecureRandom()
        return np.stack([rng.bernoulli(rate_of_coins(law), count) for _ in range(rounds)])
    separation = law.least_separation
    # Positions that have the most turns, of which each is charged.
    position = np.arange(count) % ((rounds - 1) % separation + 1)
    turn, position_of_round = np.divmod(np.arange(rounds)[:, None], separation)
    asked: NDArray[np.bool_] = (position_of_round == position) & (turn < plan.charged_rounds)
    return asked


def play_sums(
    plan: Plan,
    shares: Sequence[SharedBundle],
    canaries: Canaries,
    asked: NDArray[np.bool_],
) -> ObservedRun:
    """Return what the opened sums show of canaries.

    `shares` has a node's share of noise and encoder for each sum; `asked`, `(rounds, count)`,
    which canaries are in it. Each included canary sends one clipping norm.

    Raises:
        ValueError: If a node's values are cut, as too many canaries are on it.
    """
    honest, rng = shares_of(plan).honest_shares, SecureRandom()
    home = np.arange(canaries.count) % honest
    rounds = []
    for shared, present in zip(shares, asked & canaries.included, strict=True):
        updates = shared.bundle.updates
        scalars = [0.0] * (len(shared.segments) - 1)
        total = np.zeros(shared.share.size, dtype=np.int64)
        for node in range(honest):
            value = updates.clipping_norm * canaries.sum_of(present & (home == node))
            _require_uncut([value, *scalars], shared, canaries.count)
            total += shared.encode(value, scalars, rng)
        opened, _ = shared.decode(centred_words(total, shared.bits))
        rounds.append(
            ObservedRound(
                along=canaries.along(opened) / updates.clipping_norm,
                noise_multiplier=updates.noise_multiplier,
            )
        )
    return ObservedRun(
        rounds=rounds,
        moved=np.zeros(canaries.size),
        indices=list(range(len(rounds))),
        turns=PublicTurns(asked=asked) if plan.sampling.visible else None,
        coefficients=(COEFFICIENT_ONE,),
        drawn=asked[:0],  # these coins are the auditor's own
        cohorts=asked.sum(axis=1),
    )


def _require_uncut(values: Sequence[ArrayLike], shared: SharedBundle, count: int) -> None:
    if (longest := shared.share.longest(values)) > 1.0:
        raise ValueError(
            f"{count} canaries on few nodes are longer in one coordinate than a node may send, by "
            f"{longest:.2g} times: have fewer --canaries"
        )
