"""Trainings with correlated noise: whose turn it is, what is released, what a restart keeps."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import a_draw
from flwr.app import Array, ArrayRecord, Error, Message
from killed_servers import Deadly, Killed, Watched, unmixed
from local_grid import Answer, answer_with_app, introducing, reply
from noise_covariance import covariance, covariance_p
from trainings import FixedClient, client_fn, plan_of, train

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import (
    CyclicSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from fl_dp.accounting import VisibleSampling as Visible
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.mechanisms import AdaptiveClipping, SecureRandom
from fl_dp.plan import Banded
from fl_dp.strategies import (
    Checkpoint,
    DPFedAvg,
    Draw,
    LawSelection,
    Unit,
)

ALARM = 1e-6
N = 8
BANDS = (4096, 2000, 1000)
NORM = np.sqrt(4096**2 + 2000**2 + 1000**2) / 4096  # of a column, worked out here
CLIP = 0.5


def cyclic(rate: float = 0.5, groups: int = 3, **changes: Any) -> Plan:
    sampling = CyclicSampling(groups=groups, inside=PoissonSampling(sampling_rate=rate))
    return correlated(sampling, **changes)


def spaced(cohort: int = 2, separation: int = 3, **changes: Any) -> Plan:
    return correlated(Visible(cohort=cohort, separation=separation), **changes)


def correlated(sampling: Any, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(
        rounds=6, sampling=sampling, correlation=Banded(coefficients=BANDS), clipping=None
    )
    fields |= changes
    if fields["clipping"] is None:
        fields |= {"clipping": None, "clipping_norm": CLIP}
    return plan_of(N, **fields)


def model(size: int = 2) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(size))})


def named(update: Any) -> Answer:
    """Nodes that tell a lasting name and move by `update`."""
    app = numpy_client_app(client_fn(lambda _: FixedClient(update)))
    return introducing(answer_with_app(app, N))


# --- Sampling and noise ---------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("plan_of_mode", [cyclic, spaced])
SIZE = 10_000


@BOTH
def test_released_noise_has_the_law_that_the_plan_charges_for(
    tmp_path: Path, plan_of_mode: Any
) -> None:
    # False alarms below 1e-6 each; 10 % of sigma move the sum of squares by 15 of its deviations.
    plan = plan_of_mode()
    done = train(tmp_path, plan, named(np.zeros(SIZE)), model(SIZE))
    noise = np.array(done.moves()) * plan.denominator / (plan.noise_multiplier * NORM * CLIP)
    designed = covariance(BANDS, range(plan.rounds))
    assert covariance_p(noise, designed) > ALARM
    for wrong in (0.9, 1.1):
        assert covariance_p(wrong * noise, designed) < ALARM
    assert covariance_p(noise, np.diag(np.diag(designed))) < ALARM


@BOTH
def test_a_training_learns_and_its_ledger_charges_what_the_plan_says(
    tmp_path: Path, plan_of_mode: Any
) -> None:
    target, rounds = np.array([0.25, -0.25]), 30

    class Learner(FixedClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [parameters[0] + 0.3 * (target - parameters[0])], 10, {}

    app = numpy_client_app(client_fn(lambda _: Learner(0.0)))
    plan = plan_of_mode(rounds=rounds, noise_multiplier=0.02)
    done = train(tmp_path, plan, introducing(answer_with_app(app, N)), model())
    assert np.abs(done.models[-1]["w"] - target).max() < 0.15
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == rounds
        assert ledger.history == plan.history
        assert dict(ledger.history) == {plan.event_at(plan.noise_multiplier): 10}  # of 30 rounds


@pytest.mark.parametrize(
    "reply_of",
    [
        lambda message, model: reply(message, {"w": model + 1e9}),
        lambda message, model: reply(message, {"w": model * np.nan}),
        lambda message, model: reply(message, {"w": np.ones(3)}),
        lambda message, model: Message(Error(code=2, reason="down"), reply_to=message),
    ],
    ids=["huge", "not finite", "another shape", "an error"],
)
@BOTH
def test_a_hostile_unit_moves_all_releases_by_no_more_than_its_turns_cost(
    tmp_path: Path, plan_of_mode: Any, reply_of: Any
) -> None:
    # The same coins and noise twice, with unit 0 and without its contribution.
    plan, honest, runs = plan_of_mode(), named(np.full(SIZE, 0.001)), []
    for zero in (False, True):

        def answer(message: Message, partition: int, zero: bool = zero) -> Message | None:
            if partition != 0 or message.metadata.message_type != "train":
                return honest(message, partition)
            [arrays] = message.content.array_records.values()
            sent = arrays["w"].numpy()
            return reply(message, {"w": sent}) if zero else reply_of(message, sent)

        folder = tmp_path / str(zero)
        folder.mkdir()
        done = train(
            folder, plan, introducing(answer), model(SIZE), rng=SecureRandom(insecure_seed=3)
        )
        runs.append(np.array(done.moves()) * plan.denominator)
    moved = runs[0] - runs[1]
    through = unmixed(moved, BANDS)
    turns = plan.charged_rounds
    # The models are float64: what is left of a round's exact sum is good to a relative 1e-9.
    assert np.square(through).sum() <= turns * (NORM * CLIP) ** 2 * (1 + 1e-6)
    assert sum(np.abs(each).max() > 1e-9 for each in moved) <= turns


def test_adaptive_clipping_keeps_one_law_in_its_own_units(tmp_path: Path) -> None:
    plan = cyclic(clipping=AdaptiveClipping(norm=0.3), rounds=5)
    done = train(tmp_path, plan, named(np.full(SIZE, 0.1)), model(SIZE))
    norms = [each[0] for each in done.clipping_norms if each is not None]
    assert len(set(norms)) > 1  # it can come back to where it was
    updates = plan.bundle(plan.noise_multiplier, size=SIZE).updates
    noise = np.array(done.moves()) * plan.denominator / np.array(norms[:5])[:, None]
    noise -= noise.mean(axis=1, keepdims=True)  # of what clients sent, the same for each coordinate
    std = updates.noise_multiplier * NORM
    assert covariance_p(noise / std, covariance(BANDS, range(5))) > ALARM


@pytest.mark.parametrize("norm", [0.3, 1.0, 3.0])
def test_noise_with_memory_has_one_law_wherever_adaptive_clipping_starts(
    tmp_path: Path, norm: float
) -> None:
    # A power of two has an exact grid step, and the norm of the next round hardly ever has one.
    plan = cyclic(clipping=AdaptiveClipping(norm=norm), rounds=4)
    done = train(tmp_path, plan, named(np.full(2, 0.1)), model())
    assert done.ledger is not None and done.ledger.rounds_committed == plan.rounds
    norms = [each[0] for each in done.clipping_norms if each is not None]
    assert norms[0] == norm and norms[1] != norm
    made = [plan.bundle(plan.noise_multiplier, clipping_norms=(each,)).updates for each in norms]
    assert len({each.law.scale for each in made}) == 1


def test_several_units_on_a_node_have_groups_of_their_own(tmp_path: Path) -> None:
    app = numpy_client_app(
        lambda context: FixedClient(0.0),
        units=NodeUnits(
            client_fn=lambda context, unit: FixedClient(np.full(2, 0.1)), count=lambda *_: 4
        ),
    )
    plan = cyclic(rate=1.0, groups=4, rounds=4, noise_multiplier=1e-5)
    answer = introducing(answer_with_app(app, 2))
    done = train(tmp_path, plan, answer, model(), nodes=2, units_per_node=4)
    assert done.ledger is not None
    assert sorted(done.ledger.group_of.values()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(done.ledger.group_of) == {f"{n}/{u}" for n in names(done) for u in range(4)}
    # Two units a turn, as many as are expected.
    assert np.allclose(done.moves(), 0.1, atol=1e-3)


def names(done: Any) -> set[str]:
    return {name.rpartition("/")[0] for name in done.ledger.group_of}


def test_a_cut_cohort_is_drawn_inside_its_group() -> None:
    inside = TruncatedPoissonSampling(sampling_rate=1.0, max_cohort=2)
    selection = LawSelection(CyclicSampling(groups=3, inside=inside))
    groups = [[Unit(node) for node in range(group, N, 3)] for group in range(3)]
    for index in range(9):
        cohort = selection.select(draw(index, groups[index % 3]))
        # Of three places, of which one is empty in the last group.
        assert len(cohort) == 2 or (index % 3 == 2 and len(cohort) == 1)
        assert set(cohort) <= set(groups[index % 3])


def draw(index: int | None, roster: list[Unit]) -> Draw:
    return a_draw(N, index=index, roster=roster)


# --- Restarts -------------------------------------------------------------------------------------


def shuffled(process: int) -> list[int]:
    """Which node has which id: another one in each process, while names last."""
    order = list(range(N))
    random.Random(process).shuffle(order)
    return order


@pytest.mark.parametrize("seed", range(2))
@BOTH
def test_random_kills_release_no_index_twice_and_ask_nobody_before_its_turn(
    tmp_path: Path, plan_of_mode: Any, seed: int
) -> None:
    plan, dice = plan_of_mode(rounds=12), random.Random(seed)
    apart = plan.sampling.least_separation
    drawn: list[int] = []
    asked: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, int] = {}
    saved: list[Checkpoint] = []
    released: list[int] = []
    groups: dict[str, int] = {}
    app = numpy_client_app(client_fn(lambda _: FixedClient(np.zeros(2))))
    inner = answer_with_app(app, N)

    checks = 0

    def dies() -> None:
        nonlocal checks
        checks += 1
        # Once at least, somewhere in the first rounds.
        if dice.random() < 0.06 or checks == 9 + seed:
            raise Killed

    for process in range(40):
        with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
            assert all(ledger.counts[name] >= before for name, before in counts.items())
            assert all(ledger.group_of[name] == group for name, group in groups.items())

            order = shuffled(process)

            def answer(
                message: Message,
                partition: int,
                ledger: PrivacyLedger = ledger,
                order: list[int] = order,
            ) -> Message | None:
                place = order[partition]
                if message.metadata.message_type == "train":
                    asked[f"partition-{place}"].append(ledger.next_index() - 1)
                return inner(message, place)

            grid = Deadly(answer, N, dies)
            strategy = DPFedAvg(plan=plan, ledger=ledger, after_round=saved.append)
            strategy.loop.noise_stream = Watched(BANDS, drawn, dies)
            if saved:
                strategy.resume(saved[-1])
            try:
                strategy.start(grid, model(), num_rounds=plan.rounds)
                ended = True
            except Killed:
                ended = False
            counts, groups = ledger.counts, ledger.group_of
            released = [ledger._state.reserved[each].index or 0 for each in ledger._state.committed]
        if ended:
            break
    assert process > 0 and ended and asked
    assert sorted(set(drawn)) == drawn
    assert sorted(set(released)) == sorted(released)
    assert set(released) <= set(drawn)
    for indices in asked.values():
        assert (np.diff(indices) >= apart).all()
    if groups:
        assert all(index % apart == groups[name] for name in asked for index in asked[name])


def test_groups_are_dealt_out_of_the_declared_clients(tmp_path: Path) -> None:
    with (
        PrivacyLedger.open(tmp_path / "ledger.db", cyclic()) as ledger,
        pytest.raises(ValueError, match="roster_may_grow"),
    ):
        DPFedAvg(plan=cyclic(), ledger=ledger, roster_may_grow=True)
