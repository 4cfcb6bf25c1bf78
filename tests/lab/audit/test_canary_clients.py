"""Canary clients in a training: drawn, clipped, summed and charged as every client is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audited_trainings import DELTA, OVERRIDES, Trained, Z, judged, trained
from flwr.app import Array, ArrayRecord
from wrong_systems import ShuffledDeck, noise_by, one_draw_for_both_halves

from fl_dp.accounting import (
    CyclicSampling,
    PoissonSampling,
    VisibleSampling,
    optimal_coefficients,
)
from fl_dp.app.compose import compose_settings
from fl_dp.app.settings import Settings
from fl_dp.app.workload import initial_arrays_of
from fl_dp.codec import encode_text
from fl_dp.lab.audit.cohorts import COHORTS
from fl_dp.lab.audit.correlated_run import PublicTurns
from fl_dp.lab.audit.noise_findings import NEW_COORDINATES, ONE_SIZE
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.audit.whole_run import ObservedRound, finding_of_run
from fl_dp.lab.games.canary_client import canary_update
from fl_dp.lab.games.canary_run import RUN_KEY, CanaryRun, require_auditable
from fl_dp.lab.games.canary_server import WatchedLoop
from fl_dp.lab.games.observed_run import ObservedRun, read_observed_run, write_observed_run
from fl_dp.mechanisms import BandedStream
from fl_dp.plan import Banded, CorrelatedPlan
from fl_dp.strategies import Released, Selection
from fl_dp.updates import VectorLayout

RUN = CanaryRun(count=200, seed=1)
ROUNDS, RATE = 4, 0.75


@pytest.fixture(scope="module")
def settings() -> Settings:
    return compose_settings(OVERRIDES)


def with_canaries_beyond(
    kind: type[WatchedLoop],
    folder: Path,
    rounds: int = ROUNDS,
    rate: float = RATE,
    selection: Callable[[Any], Selection] | None = None,
) -> Trained:
    """Train six clients on one node, and the canaries of four more."""
    sampling = PoissonSampling(sampling_rate=rate)
    return trained(
        kind, folder, RUN, 5, rounds=rounds, num_clients=6, sampling=sampling, selection=selection
    )


class AnEighthOfTheNoise(WatchedLoop):
    """Adds an eighth of what is charged; its auditor goes by the charge."""

    def make_mode(self, reservation: Any, *rest: Any) -> Any:
        less = replace(reservation, noise_multiplier=reservation.noise_multiplier / 8)
        return super().make_mode(less, *rest)

    def _settle(self, released: Any) -> None:
        super()._settle(released)
        self.observed[-1] = replace(self.observed[-1], noise_multiplier=Z)


IN_PLACE = CanaryRun(count=200, seed=1, in_place=True)
CORRELATED: dict[str, dict[str, Any]] = {
    "spaced": {
        "sampling": VisibleSampling(cohort=100, separation=4),
        "participation_cap": 2,
        "correlation": Banded(coefficients=optimal_coefficients(8, 4)),
    },
    "cyclic": {
        "sampling": CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=0.5)),
        "correlation": Banded(coefficients=optimal_coefficients(8, 4)),
    },
    "capped": {"sampling": VisibleSampling(cohort=100), "participation_cap": 2},
}


def audited_in_place(
    kind: type[WatchedLoop], folder: Path, *, num_clients: int = 400, rounds: int = 8, **of: Any
) -> tuple[PublicTurns, tuple[Finding, ...]]:
    """Train with canaries on the last nodes of fifty, and judge what the releases tell."""
    nodes = num_clients // 50
    run = trained(kind, folder, IN_PLACE, nodes, rounds=rounds, num_clients=num_clients, **of)
    seen, found = judged(run, IN_PLACE)
    assert seen.turns is not None
    return seen.turns, found


@pytest.mark.parametrize("kind", [WatchedLoop, AnEighthOfTheNoise])
@pytest.mark.parametrize("noise", CORRELATED)
def test_canaries_in_the_places_of_clients_are_seen_as_often_as_they_were_asked(
    noise: str, kind: type[WatchedLoop], tmp_path: Path
) -> None:
    turn, found = audited_in_place(kind, tmp_path, **CORRELATED[noise])
    if noise == "cyclic":
        assert turn.groups is not None
        assert np.bincount(turn.groups + 1).tolist() == [0, 50, 50, 50, 50]
    else:
        assert turn.asked is not None
        assert (turn.asked.sum(axis=0) == 2).all()
    assert found[0].stands is (kind is WatchedLoop)
    if kind is WatchedLoop:
        assert all(each.stands for each in found)


FALLING = tuple(4096 - 256 * band for band in range(16))


class BandsBeyondTheSeparation(WatchedLoop):
    """Gets round the check on bands: noise for units that rest for 16 rounds, and they rest for 2.

    The ledger is charged as ever, one Gaussian a participation.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self.plan, CorrelatedPlan)
        object.__setattr__(self.plan.correlation, "coefficients", FALLING)
        self.noise_stream = BandedStream(FALLING)


@pytest.mark.parametrize(
    "kind",
    # Right bands are acquitted in the test above.
    [pytest.param(WatchedLoop, marks=pytest.mark.nightly), BandsBeyondTheSeparation],
)
def test_a_strategy_whose_bands_reach_beyond_the_separation_is_convicted(
    kind: type[WatchedLoop], tmp_path: Path
) -> None:
    _, found = audited_in_place(
        kind,
        tmp_path,
        num_clients=250,
        rounds=24,
        sampling=VisibleSampling(cohort=125, separation=2),
        participation_cap=12,
        correlation=Banded(coefficients=FALLING[:2]),
    )
    assert found[0].stands is (kind is WatchedLoop)


def found_in(run: Trained) -> Finding:
    seen = run.loop.observed
    return finding_of_run(
        RUN.canaries(seen[0].along.size),
        seen,
        sampling_rate=RATE,
        claim=run.claims[0].epsilon,
        delta=DELTA,
        alpha=1e-6,
    )


def test_a_whole_run_shows_its_canaries_under_the_noise_alone_and_no_more_than_it_claims(
    tmp_path: Path,
) -> None:
    run = with_canaries_beyond(WatchedLoop, tmp_path)
    seen = np.stack([each.along for each in run.loop.observed])
    there = RUN.canaries(seen.shape[1]).included
    # What others sent is known exactly: the directions without a canary show the noise alone.
    # 1,800 draws and about 400: five deviations each.
    assert seen[:, RUN.count :].std() == pytest.approx(Z, rel=0.085)
    assert seen[:, : RUN.count][:, ~there].std() == pytest.approx(Z, rel=0.18)
    # Each is there in three of four rounds, one clipping norm long however long it was sent.
    hits = seen[:, : RUN.count][:, there]
    assert hits.mean() == pytest.approx(RATE, abs=5 * np.sqrt((Z**2 + 0.25) / hits.size))
    found = found_in(run)
    assert found.stands
    assert found.claim == pytest.approx(2.407, abs=0.01)


def test_a_run_with_an_eighth_of_the_noise_is_caught(tmp_path: Path) -> None:
    assert not found_in(with_canaries_beyond(AnEighthOfTheNoise, tmp_path)).stands


class NoiseOfTheCohort(WatchedLoop):
    """Scales the noise with the number of those that were drawn."""

    def make_mode(self, reservation: Any, *rest: Any) -> Any:
        made: Any = super().make_mode(reservation, *rest)
        inner, release = made.inner, made.inner.release

        def scaled(*args: Any) -> Released:
            released: Released = release(*args)
            exact = inner.sums.updates.total * (inner.sums.bundle.updates.grid / DENOMINATOR)
            factor = made.drawn / (DECK_RATE * (6 + RUN.count))
            return replace(released, mean=exact + (released.mean - exact) * factor)

        inner.release = scaled
        return made


SECOND_ROUNDS, DECK_RATE = 24, 0.25
DENOMINATOR = DECK_RATE * 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "selection", "rows"),
    [
        (WatchedLoop, None, set()),
        (noise_by(one_draw_for_both_halves, WatchedLoop), None, {NEW_COORDINATES}),
        (NoiseOfTheCohort, None, {ONE_SIZE}),
        (WatchedLoop, lambda law: ShuffledDeck(law.sampling_rate), {COHORTS}),
    ],
    ids=["right", "one draw for both halves", "noise by the cohort", "shuffled deck"],
)
def test_what_one_round_does_not_show_is_seen_in_the_rounds_of_a_training(
    kind: type[WatchedLoop], selection: Any, rows: set[str], tmp_path: Path
) -> None:
    run = with_canaries_beyond(kind, tmp_path, SECOND_ROUNDS, DECK_RATE, selection)
    _, found = judged(run, RUN)
    assert {each.name for each in found if not each.stands} == rows
    assert sum(each.alpha for each in found) == pytest.approx(1e-6)


def test_a_canary_moves_the_model_along_its_direction_or_not_at_all() -> None:
    model = [np.zeros((20, 20), np.float32), np.array(3), np.ones(5)]
    canaries = RUN.canaries(405)
    for canary in range(20):
        moved = canary_update(model, RUN, canary, 7.0)
        assert [array.dtype for array in moved] == [array.dtype for array in model]
        assert moved[1] == 3  # counters stay
        flat = np.concatenate([moved[0].ravel(), moved[2] - 1.0])
        expected = 7.0 * canaries.direction(canary) * canaries.included[canary]
        np.testing.assert_allclose(flat, expected, atol=1e-6)


def test_canaries_live_on_nodes_of_their_own(settings: Settings) -> None:
    assert RUN.more_nodes(settings) == 4
    assert [RUN.first_on_node(settings, node) for node in (0, 1, 2, 4)] == [None, 0, 50, 150]
    assert CanaryRun.of({RUN_KEY: encode_text(RUN)}) == RUN


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("privacy=local", "privacy=central"),
        ("selection=fixed", "selection=poisson"),
        ("clipping=per_layer", "clipping=fixed"),
        ("dp_sgd=on", "dp_sgd=on"),
    ],
)
def test_trainings_whose_claim_canaries_do_not_test_are_refused(override: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        require_auditable(compose_settings([override]))


@pytest.mark.parametrize(
    "turn",
    [
        PublicTurns(asked=np.array([[True], [False]])),
        PublicTurns(groups=np.array([2, 0]), num_groups=3),
    ],
    ids=["asked", "groups"],
)
def test_what_was_seen_is_read_back_as_it_was_written(turn: PublicTurns, tmp_path: Path) -> None:
    run = ObservedRun(
        rounds=[
            ObservedRound(along=np.arange(4.0) + n, noise_multiplier=1.0 + n) for n in range(2)
        ],
        moved=np.arange(4.0),
        indices=[4, 5],
        turns=turn,
        coefficients=(4096, 100),
        drawn=np.array([[True], [False]]),
        cohorts=np.array([3, 0]),
    )
    write_observed_run(tmp_path / "seen.npz", run)
    np.testing.assert_equal(asdict(read_observed_run(tmp_path / "seen.npz")), asdict(run))


def test_the_order_of_a_canarys_coordinates_is_the_servers(settings: Settings) -> None:
    first = initial_arrays_of(settings)
    moved = canary_update(first.to_numpy_ndarrays(), RUN, _one_that_is_there(), 1.0)
    layout = VectorLayout.of(first)
    record = ArrayRecord({n: Array(a) for n, a in zip(first.keys(), moved, strict=True)})
    along = RUN.canaries(layout.size).along(layout.flatten(record) - layout.flatten(first))
    assert along[_one_that_is_there()] == pytest.approx(1.0, abs=1e-5)


def _one_that_is_there() -> int:
    return int(np.flatnonzero(RUN.canaries(650).included)[0])
