"""Liars among the nodes of secure sums, over real handlers: a sum opens, or its liar is out.

Places are by identity, and nodes by number: which place a node has is looked up by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.message_exchange import asking
from fl_dp.strategies.run_log import RunLog
from fl_dp.strategies.secure import SecureSums
from fl_dp.strategies.training_progress import Progress
from flwr.app import ArrayRecord
from local_grid import LocalGrid
from lying_nodes import (
    Lie,
    LyingNodes,
    answers_wrongly,
    both,
    random_shares,
    unreadable_bundles,
    wrong_commitments,
    wrong_shares_for,
)
from secure_nodes import SecureNodes
from secure_trainings import plan_of, tolerance, trained, updates_of

from fl_dp.accounting import VisibleSampling
from fl_dp.ledger import NodeLedger, PrivacyLedger
from fl_dp.plan import SecureSum
from fl_dp.strategies import RoundFailed

ROUNDS = 3
MANY = partial(pytest.param, marks=pytest.mark.nightly)
AS_A_CLIENT = {
    "random shares": random_shares,
    "wrong commitments": wrong_commitments,
    "unreadable bundles": unreadable_bundles,
    "wrong shares for most": wrong_shares_for(*range(7)),
}


def liars(nodes: int, lie: Lie) -> dict[int, Lie]:
    """One liar of ten, two of twenty."""
    return {1: lie} if nodes <= 10 else {1: lie, 7: lie}


def attacked(
    folder: Path, nodes: int, lies: dict[int, Lie], *, rounds: int = ROUNDS, **options: Any
) -> tuple[LyingNodes, Any, np.ndarray]:
    there = LyingNodes(folder, updates_of(nodes), liars=lies, **options)
    plan = plan_of(nodes, rounds=rounds, secure_sum=SecureSum(max_parameters=1000))
    released, strategy = trained(folder, there, plan, rounds=rounds, timeout=60.0)
    return there, strategy, released


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "nodes"), [MANY("random shares", 20), *((lie, 10) for lie in AS_A_CLIENT)]
)
def test_clients_that_lie_cost_one_sum_and_are_out(
    tmp_path: Path, lie: str, nodes: int, caplog: pytest.LogCaptureFixture
) -> None:
    lies = liars(nodes, AS_A_CLIENT[lie])
    with caplog.at_level(logging.WARNING, logger="flwr.fl_dp"):
        there, strategy, released = attacked(tmp_path, nodes, lies)
    assert strategy.rounds_completed == ROUNDS - 1
    honest = [node for node in range(nodes) if node not in lies]
    plan = strategy.plan
    expected = (ROUNDS - 1) * there.total(honest) / nodes  # by the plan's denominator
    assert np.allclose(released, expected, atol=ROUNDS * tolerance(plan, nodes))
    for node in range(nodes):
        out = f"'site-{node:03d}' sent what can't be opened"
        assert (out in caplog.text) is (node in lies)
        # Who is out is asked nothing more, and charged nothing more.
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as ledger:
            assert ledger.spendings[0].charges == (1 if node in lies else ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "unreadable"), [MANY(20, False), (10, False), (10, True)])
def test_members_that_lie_cost_nothing(tmp_path: Path, nodes: int, unreadable: bool) -> None:
    lies = liars(nodes, answers_wrongly(unreadable=unreadable))
    there, strategy, released = attacked(tmp_path, nodes, lies, rounds=2)
    assert strategy.rounds_completed == 2
    expected = 2 * there.total() / nodes  # their values are as good as anybody's
    assert np.allclose(released, expected, atol=2 * tolerance(strategy.plan, nodes))


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "rounds"), [(10, ROUNDS), MANY(20, 2)])
def test_who_lies_in_both_roles_costs_one_sum(tmp_path: Path, nodes: int, rounds: int) -> None:
    lies = liars(nodes, both(random_shares, answers_wrongly()))
    _, strategy, _ = attacked(tmp_path, nodes, lies, rounds=rounds)
    assert strategy.rounds_completed == rounds - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [wrong_shares_for(3), answers_wrongly(4), answers_wrongly(4, unreadable=True)],
    ids=["client frames member", "member frames client", "member can't read"],
)
def test_nobody_can_frame_another(
    tmp_path: Path, lie: Lie, caplog: pytest.LogCaptureFixture
) -> None:
    """A sum that opens all the same takes nobody's place, and accuses nobody."""
    with caplog.at_level(logging.WARNING, logger="flwr.fl_dp"):
        _, strategy, _ = attacked(tmp_path, 10, liars(10, lie), rounds=3)
    assert strategy.rounds_completed == 3
    assert not [record for record in caplog.records if "'site-" in record.getMessage()]


@pytest.mark.slow
def test_where_everybody_is_needed_a_liar_ends_the_training_at_once(tmp_path: Path) -> None:
    """Of five nodes a sum needs five: no later round is charged, and the message says who."""
    with pytest.raises(RoundFailed, match=r"1 of 5 .*'site-001'.*a sum needs 5"):
        attacked(tmp_path, 5, {1: random_shares})
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert ledger.rounds_spent == 1


@pytest.mark.slow
def test_what_can_not_be_decided_sits_out_one_sum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With two members gone, one that lied would look the same: the client may be honest."""

    def loses(kind: str, times: int, node: int) -> bool:
        return kind == "secagg_open" and node in (4, 5)

    with caplog.at_level(logging.WARNING, logger="flwr.fl_dp"):
        there, strategy, _ = attacked(tmp_path, 10, {1: random_shares}, rounds=6, loses=loses)
    assert "'site-001'" in caplog.text and "takes no further part" not in caplog.text
    # Out of the second sum, then of the fourth and the fifth.
    assert [number for number, node in asked_of(there) if node == 1] == [0, 2, 5]
    assert strategy.rounds_completed == 3


def lies_in(rounds: set[int], there: list[LyingNodes]) -> Lie:
    """Shares garbage in some rounds, counted from 0."""

    @contextmanager
    def lie() -> Iterator[None]:
        number = there[0].seen.count(("train", 0))  # node 0 is asked first, and never lies
        with random_shares() if number - 1 in rounds else nullcontext():
            yield

    return lie


@pytest.mark.slow
def test_liars_that_come_one_by_one_end_no_training(tmp_path: Path) -> None:
    """Three of the five that are supposed: each costs a round, which excludes it from the next."""
    nodes, holder = 21, list[LyingNodes]()
    lies = {node: lies_in({at}, holder) for at, node in enumerate((3, 8, 13))}
    there = LyingNodes(tmp_path, updates_of(nodes), liars=lies)
    holder.append(there)
    plan = plan_of(nodes, rounds=4, secure_sum=SecureSum(max_parameters=1000))
    _, strategy = trained(tmp_path, there, plan, rounds=4, timeout=60.0)
    assert strategy.rounds_completed == 1
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert ledger.rounds_spent == 4  # each stays charged
    sums = {len({n for m, n in asked_of(there) if m == number}) for number in range(4)}
    assert min(sums) >= plan.noise.shares.least  # what was promised of N holds for fewer nodes


def test_only_as_many_rounds_are_excused_as_members_may_collude(
    caplog: pytest.LogCaptureFixture,
) -> None:
    progress = Progress(cohorts_are_visible=False, log=RunLog(lambda: ""))
    model = ArrayRecord({})
    progress.released(1, model)
    excused = RoundFailed("a liar was excluded", excused=2)
    assert [progress.gives_up(excused, last=False) for _ in range(5)] == [False] * 4 + [True]
    assert "5 rounds in a row failed" in caplog.text
    progress.released(2, model)
    usual = RoundFailed("nobody was excluded")
    assert [progress.gives_up(usual, last=False) for _ in range(3)] == [False, False, True]


def test_the_most_doubtful_sit_out_as_far_as_enough_are_left(tmp_path: Path) -> None:
    sums, grid = SecureSums(), LocalGrid(SecureNodes(tmp_path, updates_of(6)), 6)
    nodes = list(grid.get_node_ids())
    sums.set_up(nodes, asking(grid, window=None))
    identity = {node: sums._identity_of(node) for node in nodes}
    for doubts, node in enumerate(nodes[:3], 1):
        sums._doubts[identity[node]], sums._sits_out[identity[node]] = doubts, 1
    assert sums.allowed(nodes, 3) == nodes[3:]
    assert sums.allowed(nodes, 4) == [nodes[0], *nodes[3:]]
    assert sums.allowed(nodes, 5) == [*nodes[:2], *nodes[3:]]
    assert sums.allowed(nodes, 6) == nodes


def asked_of(there: LyingNodes) -> list[tuple[int, int]]:
    """Return who was asked to train, with the number of the round."""
    asked, seen = [], dict.fromkeys(range(len(there.updates)), 0)
    honest = next(node for node in seen if node not in there.liars)
    for kind, node in there.seen:
        if kind == "train":
            asked.append((seen[honest] - (node > honest), node))
            seen[node] += 1
    return asked


@pytest.mark.slow
def test_an_excluded_node_reads_it_in_its_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr.fl_dp.client"):
        attacked(tmp_path, 10, {1: random_shares}, rounds=2)
    said = [r.getMessage() for r in caplog.records if "left this node out" in r.getMessage()]
    assert len(said) == 1


@pytest.mark.slow
def test_a_liar_is_drawn_no_more_into_visible_cohorts(tmp_path: Path) -> None:
    there = LyingNodes(tmp_path, updates_of(7), liars={1: random_shares})
    plan = plan_of(7, rounds=8, sampling_rate=None, sampling=VisibleSampling(cohort=5))
    _, strategy = trained(tmp_path, there, plan, rounds=8, timeout=60.0)
    # It is drawn in some round but for a chance of (2 / 7)^8, 4e-5.
    assert [node for kind, node in there.seen if kind == "train"].count(1) == 1
    assert strategy.rounds_completed == 7
