"""Trainings by secure sums, over real handlers, keys and ledgers; only the network is none."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fl_dp.strategies.contributions import ContributionCheck
from fl_dp.strategies.node_answers import RehearsalFailed
from fl_dp.strategies.secure.one_sum import OneSum, Summed
from flat_plans import noised_plan
from flwr.app import Context
from local_grid import LocalGrid
from owned_clock import answer_at_once
from secure_nodes import SecureNodes, refusals
from secure_trainings import NODES, SHAPES, model, plan_of, tolerance, trained, updates_of
from trainings import record
from worked_here import work_here

from fl_dp.accounting import SharedNoise, VisibleSampling
from fl_dp.clients.secure_node import IDENTITY_FILE, STORE_FILE, at_work
from fl_dp.ledger import NodeLedger, PrivacyLedger
from fl_dp.mechanisms import AdaptiveClipping, GaussianBundle, SecureRandom
from fl_dp.plan import SecureSum
from fl_dp.plan.shared_bundle import WordSize
from fl_dp.secagg import Identity, Roster, SQLiteStore
from fl_dp.secagg.opening import SecureSumFailed
from fl_dp.strategies import DPFedAvg, RoundFailed


def test_the_mean_over_everybody_is_released(tmp_path: Path) -> None:
    nodes, plan = SecureNodes(tmp_path, updates_of(NODES)), plan_of()
    released, strategy = trained(tmp_path, nodes, plan)
    assert np.allclose(released, nodes.total() / NODES, atol=tolerance(plan, NODES))
    assert not np.allclose(released, nodes.total() / NODES, atol=1e-9)  # there is noise
    assert strategy.ledger.location


def test_narrow_words_carry_the_mean_rotated(tmp_path: Path) -> None:
    nodes = SecureNodes(tmp_path, updates_of(NODES, norm=0.2))
    plan = plan_of(secure_sum=SecureSum(bits=8))
    assert plan.shared_bundle(plan.noise_multiplier, size=nodes.total().size).share.rotated
    released, _ = trained(tmp_path, nodes, plan)
    assert np.allclose(released, nodes.total() / NODES, atol=tolerance(plan, NODES))


@pytest.mark.parametrize("bits", [8, 16])
def test_a_count_that_is_cut_ends_no_training(
    tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(ContributionCheck, "observe", lambda _, count, **rest: seen.append(count))
    nodes = SecureNodes(tmp_path, updates_of(NODES))
    plan = plan_of(secure_sum=SecureSum(bits=bits), contribution_check=True)
    trained(tmp_path, nodes, plan)
    assert bool(seen) == (bits == 16)


def test_honest_sums_that_are_cut_are_not_taken_for_lies() -> None:
    """What is cut off updates moves scalars by more than their noise: they were one vector."""
    nodes, units, size = 10, 20_000, 650
    words = WordSize(
        noise=SharedNoise(cohort=nodes, least=nodes, colluding=1, committee=nodes, threshold=nodes),
        shares=nodes - 1,
        units_in_sum=units,
        bits=9,
        element_cap=None,
    )
    counted = GaussianBundle(
        noise_multiplier=2.0, clipping_norms=(1.0,), count_noise_std=2.0 + 0.05 * nodes * units
    )
    share = words.fit(counted, size).share
    summed = Summed(purpose="train", share=share, bits=9, units_in_sum=units)
    checked = OneSum(cast(Any, None), cast(Any, None), summed, number=1)._require_plausible
    random = np.random.default_rng(0)
    for _ in range(50):
        update = random.normal(size=size)
        update *= 0.6 * units / np.linalg.norm(update)
        sent = [share.encode([update, [float(units)]], SecureRandom()) for _ in range(nodes)]
        checked(share.decode(np.sum(sent, axis=0)), repliers=nodes)
    longest = [nodes * units * each.scale * each.clipping_norm for each in share.segments]
    lie = np.full(share.size, 2.0 * math.hypot(*longest) / math.sqrt(share.size), dtype=np.int64)
    with pytest.raises(SecureSumFailed, match="longer"):
        checked(share.decode(lie), repliers=nodes)


def test_rounds_need_one_message_a_client_and_one_a_member(tmp_path: Path) -> None:
    nodes, plan = SecureNodes(tmp_path, updates_of(NODES)), plan_of()
    trained(tmp_path, nodes, plan, rounds=3)
    kinds = [kind for kind, _ in nodes.seen]
    assert kinds.count("secagg_key") == kinds.count("secagg_directory") == NODES  # once a run
    assert kinds.count("train") == 3 * NODES
    assert kinds.count("secagg_open") <= 3 * NODES
    assert kinds.count("secagg_done") == NODES


def test_a_strategy_that_is_started_again_begins_another_run(tmp_path: Path) -> None:
    """To its nodes the first run has ended, and does not go on."""
    nodes, plan = SecureNodes(tmp_path, updates_of(NODES)), plan_of()
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        for _ in range(2):
            strategy.start(LocalGrid(nodes, NODES), model(), num_rounds=1, timeout=10.0)
        assert ledger.rounds_committed == 2
    assert not refusals(nodes)


@pytest.mark.parametrize("cross_check", [False, True])
def test_nodes_that_drop_out_leave_the_sum_of_the_rest(tmp_path: Path, cross_check: bool) -> None:
    def loses(kind: str, times: int, node: int) -> bool:
        return (kind == "train" and node == 1) or (kind.startswith("secagg_open") and node == 2)

    nodes = SecureNodes(tmp_path, updates_of(10), loses=loses)
    plan = plan_of(10, secure_sum=SecureSum(least=9, cross_check=cross_check))
    released, _ = trained(tmp_path, nodes, plan)
    left = [node for node in range(10) if node != 1]
    assert np.allclose(released, nodes.total(left) / 10, atol=tolerance(plan, 10))


def test_too_few_repliers_fail_the_round_and_it_stays_charged(tmp_path: Path) -> None:
    def loses(kind: str, times: int, node: int) -> bool:
        return kind == "train" and times == 0 and node < 2

    nodes, plan = SecureNodes(tmp_path, updates_of(NODES), loses=loses), plan_of()
    released, strategy = trained(tmp_path, nodes, plan, rounds=2)
    assert strategy.rounds_completed == 1
    assert strategy.ledger.rounds_spent == 2
    assert np.allclose(released, nodes.total() / NODES, atol=tolerance(plan, NODES))
    for node in range(2, NODES):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as ledger:
            assert ledger.spendings[0].charges == 2


def never(kind: str) -> Any:
    """Messages of this kind are lost."""
    return lambda sent, times, node: sent == kind


def test_no_keys_no_charge(tmp_path: Path) -> None:
    nodes = SecureNodes(tmp_path, updates_of(NODES), loses=never("secagg_key"))
    with pytest.raises(RehearsalFailed, match="nothing was charged"):
        trained(tmp_path, nodes, plan_of())
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert ledger.rounds_spent == 0


def test_a_training_that_fails_adds_zero_and_noise(tmp_path: Path) -> None:
    updates = updates_of(NODES)
    updates[3] = [None]
    nodes, plan = SecureNodes(tmp_path, updates), plan_of()
    released, _ = trained(tmp_path, nodes, plan)
    assert np.allclose(released, nodes.total() / NODES, atol=tolerance(plan, NODES))


def test_hostile_updates_are_clipped_before_they_are_masked(tmp_path: Path) -> None:
    updates = updates_of(NODES)
    updates[0] = [[1e30 * each for each in updates[0][0]]]
    updates[1] = [[np.full(shape, np.nan) for shape in SHAPES]]
    updates[2] = [[np.full(shape, np.inf) for shape in SHAPES]]
    nodes, plan = SecureNodes(tmp_path, updates), plan_of()
    released, _ = trained(tmp_path, nodes, plan)
    assert np.linalg.norm(released) * NODES < 1.0 + 2 * 0.5 + NODES * tolerance(plan, NODES) * 3.2


def test_several_units_a_node(tmp_path: Path) -> None:
    nodes = SecureNodes(tmp_path, updates_of(NODES, units=3))
    plan = plan_of(3 * NODES, units_per_node=3)
    released, _ = trained(tmp_path, nodes, plan)
    assert np.allclose(released, nodes.total() / 15, atol=tolerance(plan, 15))


def test_coins_at_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    answer_at_once(monkeypatch)
    # Each unit adds one to the same coordinate, so that the sum counts those whose coin came up.
    ones = [np.zeros(shape) for shape in SHAPES]
    ones[0][0, 0] = 1.0
    nodes = SecureNodes(tmp_path, [[ones] * 4] * NODES)
    plan = plan_of(
        4 * NODES,
        units_per_node=4,
        coins_at_nodes=True,
        sampling_rate=0.5,
        secure_sum=SecureSum(reply_after=600.0),
    )
    released, _ = trained(tmp_path, nodes, plan)
    summed = 10 * released
    came = round(summed[0])
    assert 0 < came < 4 * NODES  # none or all of 20 coins: once in 500,000 runs
    summed[0] -= came
    assert np.all(np.abs(summed) < 10 * tolerance(plan, 10))


def test_a_visible_cohort_of_few_nodes(tmp_path: Path) -> None:
    """The committee is as large as the plan says, however many nodes there are besides."""
    nodes = SecureNodes(tmp_path, updates_of(8))
    plan = plan_of(8, sampling_rate=None, sampling=VisibleSampling(cohort=4))
    _, strategy = trained(tmp_path, nodes, plan, rounds=3)
    assert strategy.rounds_completed == 3


def test_a_committee_that_the_plan_is_not_for_costs_nothing(tmp_path: Path) -> None:
    nodes = SecureNodes(tmp_path, updates_of(22))
    plan = plan_of(22, secure_sum=SecureSum(roster=True))
    identities = {}
    for node, context in nodes.contexts.items():
        folder = Path(str(context.node_config["dp-ledger-path"])).parent
        identities[node] = Identity.load_or_create(folder / IDENTITY_FILE).public
    lines = [
        {"name": f"site-{node:03d}", "identity": each.hex(), "committee": node < 5}
        for node, each in identities.items()
    ]
    roster_file = tmp_path / "roster.json"
    roster_file.write_text(json.dumps({"federation": "tests", "members": lines}))
    owner = {"dp-secagg-roster": str(roster_file), "dp-require-privacy": "distributed"}
    for context in nodes.contexts.values():
        context.node_config = dict(context.node_config) | owner | {"dp-max-epsilon": 1e6}
    roster = Roster.read(roster_file)
    with pytest.raises(RehearsalFailed, match=r"SecureSum\(committee=5\)"):
        trained(tmp_path, nodes, plan, secure_roster=roster)
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert ledger.rounds_spent == 0


def test_adaptive_clipping_goes_through_the_same_sum(tmp_path: Path) -> None:
    nodes = SecureNodes(tmp_path, updates_of(10, norm=0.01))
    plan = plan_of(10, clipping_norm=None, clipping=AdaptiveClipping(norm=1.0))
    _, strategy = trained(tmp_path, nodes, plan, timeout=60.0)  # nobody is lost
    assert strategy.clipping_norms[0] < 1.0  # nobody's update is longer: the norm goes down


@pytest.mark.parametrize(
    "clipping", [{}, {"clipping_norm": None, "clipping": AdaptiveClipping(norm=1.0)}]
)
def test_everybody_is_charged_what_the_plan_says(tmp_path: Path, clipping: dict[str, Any]) -> None:
    """As one event: of events that differ in the last digit a ledger admits far fewer."""
    nodes, plan = SecureNodes(tmp_path, updates_of(NODES)), plan_of(**clipping)
    trained(tmp_path, nodes, plan, rounds=3, timeout=60.0)
    for node in range(NODES):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as ledger:
            ((event, count),) = ledger.spendings[0].history
        assert count == 3
        assert event.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-9)  # type: ignore[union-attr]


def test_a_reply_shows_nothing_but_uniform_bytes(tmp_path: Path) -> None:
    """Two trainings with very different updates: neither bytes nor form tell them apart."""
    for name, norm in (("a", 0.0), ("b", 0.9)):
        nodes = SecureNodes(tmp_path / name, updates_of(NODES, norm=norm))
        (tmp_path / name / "server").mkdir(parents=True)
        trained(tmp_path / name / "server", nodes, plan_of())
        masked = [r for r in nodes.replies if r.metadata.message_type == "train"]
        for reply in masked:
            assert set(reply.content) == {"masked", "bundles"}
            assert not list(reply.content.metric_records)


def test_a_node_that_was_told_another_run_configuration_spoils_the_sum(tmp_path: Path) -> None:
    """It might train otherwise, so that a server could tell its part: no sum with it opens."""
    nodes, plan = SecureNodes(tmp_path, updates_of(NODES)), plan_of()
    apart = nodes.contexts[2]
    nodes.contexts[2] = Context(
        apart.run_id, apart.node_id, apart.node_config, apart.state, {"learning-rate": 0.0}
    )
    with pytest.raises(RoundFailed):
        trained(tmp_path, nodes, plan, rounds=3)


def test_the_released_noise_is_that_of_all_shares(tmp_path: Path) -> None:
    """Its deviation to 5 of its own standard errors, 5.6 %: noise that is 10 % off would show."""
    size, nodes_there = 4_000, 5
    flat = [[[np.zeros(size)]] for _ in range(nodes_there)]
    nodes = SecureNodes(tmp_path, flat)
    plan = noised_plan(
        1.0,
        delta=1e-3,
        rounds=1,
        num_clients=nodes_there,
        sampling_rate=1.0,
        clipping_norm=0.5,
        secure_sum=SecureSum(),
        contribution_check=False,
    )
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        grid, arrays = LocalGrid(nodes, nodes_there), record(w=np.zeros(size))
        result = DPFedAvg(plan=plan, ledger=ledger).start(grid, arrays, num_rounds=1, timeout=5.0)
    (released,) = result.arrays.to_numpy_ndarrays()
    # Of 5 nodes one may collude: all five shares together are more than the multiplier's.
    expected = 1.0 * 0.5 * (5 / 4) ** 0.5 / nodes_there
    assert released.std() == pytest.approx(expected, rel=0.056)
    assert abs(released.mean()) < 5.0 * expected / size**0.5


@pytest.mark.parametrize("there", [20, pytest.param(100, marks=pytest.mark.nightly)])
def test_of_many_nodes_a_third_is_lost_at_any_point(tmp_path: Path, there: int) -> None:
    """In each round others are lost: before they are asked, with their reply, or as members."""
    rounds, rng = 3, np.random.default_rng(3)
    lost = int(0.3 * there)
    phases = ("train", "train's reply", "secagg_open", "secagg_open's reply")
    fate = {
        (server_round, int(node)): str(rng.choice(phases))
        for server_round in range(rounds)
        for node in rng.choice(there, lost, replace=False)
    }
    # A member is one of 40 at most, and 20 % of them may be gone: fewer of those are lost.
    told = [key for key, phase in fate.items() if phase.startswith("secagg_open")]
    for key in told[there // 10 :]:
        fate[key] = "train"

    def loses(kind: str, times: int, node: int) -> bool:
        return fate.get((times, node)) == kind

    def loses_reply(kind: str, times: int, node: int) -> bool:
        return fate.get((times, node)) == f"{kind}'s reply"

    nodes = SecureNodes(tmp_path, updates_of(there), loses=loses, loses_reply=loses_reply)
    options = SecureSum(least=int(0.7 * there), max_parameters=1000)
    plan = plan_of(there, rounds=rounds, secure_sum=options)
    released, strategy = trained(tmp_path, nodes, plan, rounds=rounds, timeout=600.0)
    assert strategy.rounds_completed == rounds
    replied = [
        node
        for server_round in range(rounds)
        for node in range(there)
        if not fate.get((server_round, node), "").startswith("train")
    ]
    expected = nodes.total(replied) / there
    assert np.allclose(released, expected, atol=rounds * tolerance(plan, there))


def pinned(
    folder: Path, count: int = NODES, **more: Any
) -> tuple[dict[int, dict[str, Any]], Roster]:
    """Owners with one roster of all nodes, and the roster."""
    members = []
    for node in range(count):
        (folder / f"node-{node}").mkdir(mode=0o700)
        identity = Identity.load_or_create(folder / f"node-{node}" / IDENTITY_FILE)
        members.append({"name": f"site-{node:03d}", "identity": identity.public.hex()})
    file = folder / "roster.json"
    file.write_text(json.dumps({"federation": "tests", "members": members}))
    owner = {
        "dp-secagg-roster": str(file),
        "dp-require-privacy": "distributed",
        "dp-max-epsilon": 1e6,
    }
    return {node: owner | more for node in range(count)}, Roster.read(file)


@pytest.mark.slow
def test_a_slow_node_and_lost_messages_are_accounted_for_and_lock_nobody_out(
    tmp_path: Path,
) -> None:
    """Four rounds without node 4, whose answers are late; then a message never reaches it."""
    owners, roster = pinned(tmp_path)
    nodes = SecureNodes(
        tmp_path,
        updates_of(NODES),
        owners=owners,
        loses=lambda kind, times, node: kind == "train" and node == 4 and times == 4,
        loses_reply=lambda kind, times, node: kind == "train" and node == 4 and times < 4,
    )
    plan = plan_of(rounds=6, secure_sum=SecureSum(least=4, roster=True))
    trained(tmp_path, nodes, plan, rounds=6, secure_roster=roster)
    assert not refusals(nodes)


def test_a_node_that_lost_its_store_comes_back_under_the_same_id(tmp_path: Path) -> None:
    file = tmp_path / "node-4" / STORE_FILE

    def loses(kind: str, times: int, node: int) -> bool:
        if (kind, times, node) == ("train", 1, 4):
            file.unlink()
        return False

    nodes = SecureNodes(tmp_path, updates_of(NODES), loses=loses)
    plan = plan_of(secure_sum=SecureSum(least=4))
    trained(tmp_path, nodes, plan, rounds=3)
    assert refusals(nodes) == ["Refused directory"]  # in the second round


@pytest.mark.parametrize("least", [4, 5])
def test_a_late_node_is_asked_no_more_and_not_blamed(
    tmp_path: Path, least: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It would refuse each later sum; where everybody is needed, no other is charged for one."""

    def loses(kind: str, times: int, node: int) -> bool:
        if (kind, node) == ("train", 4):  # as if its work had not been done in time
            store = SQLiteStore(tmp_path / "node-4" / STORE_FILE)
            store.put(None, f"late {nodes.contexts[4].run_id}", b"once")
            store.close()
        return False

    nodes = SecureNodes(tmp_path, updates_of(NODES), loses=loses)
    plan = plan_of(secure_sum=SecureSum(least=least))
    needed = least == NODES
    said = (
        r"1 of 5 nodes were not done in time \('site-004'; raise reply_after\), and a sum needs 5"
    )
    with pytest.raises(RoundFailed, match=said) if needed else nullcontext():
        trained(tmp_path, nodes, plan, rounds=3)
    assert refusals(nodes) == ["Refused late"]
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert ledger.rounds_spent == (1 if needed else 3)
    for node in range(NODES - 1):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as of_node:
            assert of_node.spendings[0].charges == (1 if needed else 3)
    assert ("secagg_done", 4) in nodes.seen or needed
    assert "left this node out" not in caplog.text
    assert "its work was not done in time" in caplog.text


def test_a_node_that_is_still_at_work_is_asked_again(tmp_path: Path) -> None:
    with ExitStack() as work:

        def loses(kind: str, times: int, node: int) -> bool:
            if (kind, times, node) == ("train", 0, 4):
                work.enter_context(at_work(tmp_path / "node-4", nodes.contexts[4].run_id))
            elif (kind, times, node) == ("train", 1, 4):
                work.close()
            return False

        nodes = SecureNodes(tmp_path, updates_of(NODES), loses=loses)
        trained(tmp_path, nodes, plan_of(secure_sum=SecureSum(least=4)), rounds=3)
    assert refusals(nodes) == ["Refused busy"]
    with NodeLedger.read(tmp_path / "node-4" / "ledger.db") as of_node:
        assert of_node.spendings[0].charges == 2


def test_a_model_larger_than_was_accounted_is_refused_before_a_round_is_charged(
    tmp_path: Path,
) -> None:
    nodes = SecureNodes(tmp_path, updates_of(NODES))
    plan = plan_of(secure_sum=SecureSum(max_parameters=3))
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        with pytest.raises(ValueError, match="the plan accounts for 3"):
            strategy.start(LocalGrid(nodes, NODES), model(), num_rounds=1, timeout=10.0)
        assert ledger.rounds_spent == 0
