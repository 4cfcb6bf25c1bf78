"""Canaries under noise with memory: what releases tell, and a separation that is broken."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_dp.accounting import (
    CyclicSampling,
    History,
    NeighboringRelation,
    PoissonSampling,
    VisibleSampling,
    epsilon,
    optimal_coefficients,
)
from fl_dp.accounting.trade_off import TradeOff, trade_off
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.correlated_run import PublicTurns, matched_filters
from fl_dp.lab.audit.lower_bounds import gaussian_epsilon_of
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.audit.whole_run import ObservedRound, finding_of_run
from fl_dp.mechanisms import BandedStream, SecureRandom
from fl_dp.mechanisms.banded_stream import BandedGaussianMechanism

Z, COUNT, SIZE, DELTA = 1.5, 400, 2000, 1e-5
FALLING = tuple(4096 - 256 * band for band in range(16))


def releases(
    present: NDArray[np.bool_],
    coefficients: Sequence[int],
    *,
    size: int = SIZE,
    share: float = 1.0,
) -> list[ObservedRound]:
    """What the real stream releases of canaries that take part as told, `(rounds, count)`."""
    mechanism = BandedGaussianMechanism(
        noise_multiplier=share * Z,
        clipping_norm=1.0,
        coefficients=tuple(coefficients),
        size=size,
    )
    stream = BandedStream(tuple(coefficients))
    rng = SecureRandom(insecure_seed=2026)  # three errors are exceeded once in 400 draws
    rounds = []
    for index, there in enumerate(present):
        # Directions are orthonormal, so noise along them has the law of noise on coordinates.
        noise = stream.next(mechanism.law, size, rng, index=index)
        along = noise.astype(np.float64) * mechanism.grid
        along[: len(there)] += there
        rounds.append(ObservedRound(along=along, noise_multiplier=Z))
    return rounds


def spaced(rounds: int, separation: int, count: int = COUNT) -> NDArray[np.bool_]:
    """Who is asked when each canary rests for as long as it has to."""
    first = np.arange(count) % separation
    asked: NDArray[np.bool_] = (np.arange(rounds)[:, None] - first) % separation == 0
    return asked


def audited(
    asked: NDArray[np.bool_], coefficients: Sequence[int], *, charged: int, noise: float = 1.0
) -> Finding:
    canaries = Canaries(count=COUNT, size=SIZE, seed=0)
    rounds = releases(asked & canaries.included, coefficients, share=noise)
    seen = matched_filters(
        rounds, range(len(rounds)), PublicTurns(asked=asked), coefficients=coefficients
    )
    history = {VisibleSampling(cohort=10).event(Z, 1000): charged}
    return finding_of_run(
        canaries,
        seen,
        sampling_rate=1.0,
        claim=gaussian_epsilon_of(math.sqrt(charged) / Z, delta=DELTA),
        delta=DELTA,
        alpha=1e-6,
        curve=curve_of(history),
    )


def curve_of(history: History) -> TradeOff:
    return trade_off(history, neighboring_relation=NeighboringRelation.ZERO_OUT)


@pytest.mark.parametrize(("noise", "holds"), [(1.0, True), (0.9, False)])
def test_a_canary_in_five_spaced_rounds_is_seen_as_five_gaussians_and_no_better(
    noise: float, holds: bool
) -> None:
    """The matched filter shows mu within three errors of sqrt(5) / z."""
    separation = bands = 8
    coefficients = optimal_coefficients(40, bands)
    trials = 20_000
    asked = spaced(40, separation, trials)
    asked[:] = asked[:, :1]  # all at once: each is a trial of one client's
    there = np.arange(trials) % 2 == 0
    rounds = releases(asked & there, coefficients, size=trials, share=noise)
    (seen,) = matched_filters(
        rounds, range(40), PublicTurns(asked=asked), coefficients=coefficients
    )
    apart = seen.along[there].mean() - seen.along[~there].mean()
    mu = apart / seen.along[~there].std()
    error = math.sqrt(4.0 / trials + 0.5 * (mu**2) / (trials / 2))
    charged = math.sqrt(5) / Z
    assert bool(mu <= charged + 3.0 * error) is holds
    if holds:
        # The last block ends with the run's last round, so that nothing of it is cut off.
        assert mu == pytest.approx(charged, abs=3.0 * error)
        assert seen.noise_multiplier == pytest.approx(np.full(trials, 1.0 / charged))


def test_spaced_noise_is_not_accused() -> None:
    found = audited(spaced(40, 8), optimal_coefficients(40, 8), charged=5)
    assert found.stands
    assert found.share is not None
    assert found.share > 0.3  # it sees most of what there is


def test_bands_beyond_the_separation_are_convicted() -> None:
    """Each takes part in every second round, under noise for those who rest for sixteen."""
    assert not audited(spaced(40, 2), FALLING, charged=20).stands
    assert audited(spaced(40, 2), FALLING[:2], charged=20).stands
    assert audited(spaced(40, 16), FALLING, charged=3).stands


def groups_audited(groups: int, turns_of: int, coefficients: Sequence[int]) -> Finding:
    """Audit turns of `turns_of` groups that are charged as such."""
    rate, rounds = 0.5, 40
    canaries = Canaries(count=COUNT, size=SIZE, seed=0)
    group = np.arange(COUNT) % groups
    coins = np.random.default_rng(5).random((rounds, COUNT)) < rate
    turn = np.arange(rounds)[:, None] % groups == group
    seen = matched_filters(
        releases(coins & turn & canaries.included, coefficients),
        range(rounds),
        PublicTurns(groups=group, num_groups=groups),
        coefficients=coefficients,
    )
    sampling = CyclicSampling(groups=turns_of, inside=PoissonSampling(sampling_rate=rate))
    history = {sampling.event(Z, 1000): math.ceil(rounds / groups)}
    return finding_of_run(
        canaries,
        seen,
        sampling_rate=rate,
        claim=epsilon(history, DELTA).best,
        delta=DELTA,
        alpha=1e-6,
        curve=curve_of(history),
    )


def test_groups_that_take_turns_are_not_accused() -> None:
    assert groups_audited(4, 4, optimal_coefficients(40, 4)).stands


def test_bands_beyond_the_groups_are_convicted() -> None:
    assert not groups_audited(2, 2, FALLING).stands
    assert groups_audited(2, 2, FALLING[:2]).stands


def test_a_run_with_a_gap_is_not_audited() -> None:
    rounds = releases(np.zeros((3, COUNT), dtype=np.bool_), (4096, 2048))
    turn = PublicTurns(asked=np.ones((3, COUNT), dtype=np.bool_))
    with pytest.raises(ValueError, match="audit a run without a crash"):
        matched_filters(rounds, (0, 2, 3), turn, coefficients=(4096, 2048))
