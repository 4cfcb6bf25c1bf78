"""Releases of a buffer: what does not hold when contributions arrive whenever they are ready."""

from __future__ import annotations

from fl_dp.accounting import IncompatibleOptions, Sampling

from .distributed_noise import DistributedNoise
from .hosting import Hosting
from .noise import ClientNoise, Noise
from .release import Release


def check_buffered(
    *,
    sampling: Sampling,
    noise: Noise,
    release: Release,
    hosting: Hosting,
    num_clients: int,
    rounds: int,
    participation_cap: int | None,
) -> None:
    """Refuse what buffered releases do not go with; nothing where nobody is buffered.

    Raises:
        ValueError: With what to write instead.
    """
    if not sampling.buffered:
        return
    if isinstance(noise, DistributedNoise):
        raise IncompatibleOptions(
            "a secure sum opens when all of its nodes have masked for one another, and a buffer is "
            "filled by whoever answers first: leave secure_sum out, or use VisibleSampling"
        )
    if isinstance(noise, ClientNoise):
        raise IncompatibleOptions(
            "a buffer waits for answers that the server clips and sums, with noise of its own: "
            "leave client_scheme out, or use VisibleSampling"
        )
    if hosting.sums_at_nodes:
        raise IncompatibleOptions(
            "in a buffer each unit counts by itself, with the model that it was sent and its own "
            "clipping, which a sum made at a node does not show: write units_per_node=1 and no "
            "coins_at_nodes"
        )
    if release.capped_denominator:
        raise IncompatibleOptions(
            "a buffer is divided by its public size, whatever its contributions weigh: leave "
            "capped_denominator out"
        )
    if participation_cap is None:
        return
    needed = rounds * sampling.expected_cohort(num_clients)
    if participation_cap * num_clients < needed:
        raise ValueError(
            f"{num_clients} clients that are asked at most participation_cap={participation_cap} "
            f"times each can't fill {rounds} buffers of {needed / rounds:g}: allow at least "
            f"{-(-needed // num_clients):.0f}, and some more for answers that never come"
        )
