"""Owners who trust the server with noise, at a price: each joins at its own budget or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from local_grid import FIRST_NODE, LocalGrid, introducing
from trainings import FixedClient

from fl_dp import PrivacyBudget, PrivacyLedger, PrivacyPlan
from fl_dp.accounting import OwnRatesSampling, PoissonGaussianEvent
from fl_dp.clients import numpy_client_app
from fl_dp.clients.node_config import NodeConfig, NodeConfigError
from fl_dp.clients.node_privacy import NodePrivacy
from fl_dp.clients.policy_description import describe_policy
from fl_dp.ledger import NodeLedger
from fl_dp.protocol.keys import PRICE_KEY
from fl_dp.protocol.own_price import TrainingPrice, offers_from_json, offers_to_json
from fl_dp.strategies import DPFedAvg, RehearsalFailed

BUDGETS, ROUNDS, DELTA = (1.0, 3.0, 8.0), 20, 1e-3
APP = numpy_client_app(lambda context: FixedClient(np.full(4, 0.1)))
PLANS = {
    method: PrivacyPlan.calibrate(
        PrivacyBudget(epsilon=8.0, delta=DELTA),
        rounds=ROUNDS,
        num_clients=6,
        sampling=OwnRatesSampling.at(
            0.3, budgets=BUDGETS, shares=(1 / 3, 1 / 3, 1 / 3), method=method
        ),
        clipping_norm=1.0,
    )
    for method in ("sample", "scale")
}
PLAN = PLANS["sample"]


def law_of(plan: PrivacyPlan) -> OwnRatesSampling:
    return cast(OwnRatesSampling, plan.sampling)


class Ward:
    """A node's policy: who joins at its own budget, with a ledger in a folder."""

    def __init__(self, folder: Path, name: str, max_epsilon: float, **others: Any) -> None:
        self.ledger = folder / f"{name}.db"
        self.config: dict[str, Any] = {
            "unit-name": name,
            "ledger-path": str(self.ledger),
            "max-epsilon": max_epsilon,
            # A node's ledger counts at nine tenths of its delta.
            "max-delta": 1.2 * DELTA,
            "require-privacy": "central",
            "join-at-own-budget": True,
            "allow-unverified-apps": True,
        } | others

    def charges(self) -> list[tuple[Any, int]]:
        if not self.ledger.exists():
            return []
        with NodeLedger.read(self.ledger) as ledger:
            return [release for each in ledger.spendings for release in each.history]


def trained(
    place: Path,
    configs: Sequence[Mapping[str, Any]],
    *,
    plan: PrivacyPlan = PLAN,
    rounds: int = ROUNDS,
    owners: Mapping[str, float] | None = None,
) -> tuple[dict[str, int], LocalGrid]:
    def answer(message: Message, number: int) -> Message:
        config = {"partition-id": number, **configs[number]}
        return APP(message, Context(1, FIRST_NODE + number, dict(config), RecordDict(), {}))

    grid = LocalGrid(introducing(answer), len(configs))
    with PrivacyLedger.open(place, plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger, owners=owners)
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=rounds)
        return ledger.group_of, grid


def asked(grid: LocalGrid) -> set[int]:
    return {message.metadata.dst_node_id - FIRST_NODE for message in grid.sent}


@pytest.mark.parametrize("method", ["sample", "scale"])
def test_each_owner_joins_at_the_largest_budget_that_it_allows(tmp_path: Path, method: str) -> None:
    plan = PLANS[method]
    wards = [
        Ward(tmp_path, f"ward-{number}", cap)
        for number, cap in enumerate((1.0, 2.0, 3.5, 100.0, 0.5))
    ]
    configs = [*(ward.config for ward in wards), {"unit-name": "plain"}]
    groups, grid = trained(tmp_path / "server.db", configs, plan=plan)
    assert {name: groups.get(name) for name in ("ward-0", "ward-1", "ward-2", "ward-3")} == {
        "ward-0": 0, "ward-1": 0, "ward-2": 1, "ward-3": 2,
    }  # fmt: skip
    assert "ward-4" not in groups and 4 not in asked(grid)
    assert "plain" in groups  # who asks for no price is dealt a group, as ever
    law = law_of(plan)
    for number, group in ((0, 0), (1, 0), (2, 1), (3, 2)):
        event = PoissonGaussianEvent(
            noise_multiplier=plan.noise_multiplier / law.scale_of(group),
            sampling_rate=law.rates[group],
        )
        # Once, and in full, by the group's own rate and norm; who was never drawn spent nothing.
        expected = [(event, ROUNDS)] if number in asked(grid) else []
        assert wards[number].charges() == expected
    assert len(asked(grid)) >= 3  # of five, at rates above .1 in 20 rounds
    assert wards[4].charges() == []


def test_nothing_is_spent_before_the_first_training_message(tmp_path: Path) -> None:
    wards = [Ward(tmp_path, f"ward-{number}", 1.0 + number) for number in range(6)]
    seen: list[bool] = []

    def answer(message: Message, number: int) -> Message:
        if message.metadata.message_type.startswith("query"):
            seen.append(any(ward.ledger.exists() for ward in wards))
        config = {"partition-id": number, **wards[number].config}
        return APP(message, Context(1, FIRST_NODE + number, config, RecordDict(), {}))

    grid = LocalGrid(introducing(answer), 6)
    with PrivacyLedger.open(tmp_path / "server.db", PLAN) as ledger:
        strategy = DPFedAvg(plan=PLAN, ledger=ledger)
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=1)
    assert seen == [False] * 6


def test_without_the_key_an_owner_who_allows_less_than_the_run_takes_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = {"join-at-own-budget": False}
    wards = [Ward(tmp_path, f"ward-{number}", 4.0 + number, **closed) for number in range(6)]
    groups, grid = trained(tmp_path / "server.db", [ward.config for ward in wards])
    assert groups == {"ward-4": 2, "ward-5": 2}  # they allow 8 and 9, and the run plans 8
    assert asked(grid) <= {4, 5}
    assert "4 nodes take no part" in caplog.text


def test_a_training_that_goes_on_is_charged_once_and_another_one_again(tmp_path: Path) -> None:
    wards = [Ward(tmp_path, f"ward-{number}", 1.0) for number in range(6)]
    configs = [ward.config for ward in wards]
    trained(tmp_path / "server.db", configs, rounds=ROUNDS // 2)
    groups, first = trained(tmp_path / "server.db", configs, rounds=ROUNDS // 2)
    assert set(groups.values()) == {0}
    spent = {n for n, ward in enumerate(wards) if ward.charges()}
    assert asked(first) <= spent
    assert all(ward.charges()[0][1] == ROUNDS for ward in wards if ward.charges())
    # What an earlier training has taken is gone: nothing is left for another one.
    if len(spent) == len(wards):
        with pytest.raises(RehearsalFailed, match="6 of the 6 nodes that answered take no part"):
            trained(tmp_path / "another.db", configs)
        return
    again, _ = trained(tmp_path / "another.db", configs)
    assert not {int(name[-1]) for name in again} & spent


def test_an_owner_joins_at_what_earlier_trainings_have_left(tmp_path: Path) -> None:
    wards = [Ward(tmp_path, f"ward-{number}", 12.0) for number in range(6)]
    configs = [ward.config for ward in wards]
    before, first = trained(tmp_path / "server.db", configs)
    after, second = trained(tmp_path / "another.db", configs)
    spent = asked(first)
    assert {before[f"ward-{number}"] for number in spent} == {2}
    assert {after[f"ward-{number}"] for number in spent} == {0}
    [charges] = {tuple(wards[number].charges()) for number in spent & asked(second)}
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for event, count in charges:
        gaussian = GaussianDpEvent(event.noise_multiplier)
        drawn = PoissonSampledDpEvent(event.sampling_rate, gaussian)
        accountant.compose(SelfComposedDpEvent(drawn, count))
    assert len(charges) == 2 and accountant.get_epsilon(1.2 * DELTA) <= 12.0


def test_the_stricter_word_of_the_file_and_of_the_node_holds(tmp_path: Path) -> None:
    wards = [Ward(tmp_path, f"ward-{number}", 3.0) for number in range(6)]
    owners = {f"ward-{number}": BUDGETS[number % 3] for number in range(5)}
    groups, _ = trained(tmp_path / "server.db", [ward.config for ward in wards], owners=owners)
    assert groups == {"ward-0": 0, "ward-1": 1, "ward-2": 1, "ward-3": 0, "ward-4": 1}


def test_a_server_that_says_no_price_or_one_that_is_too_high_gets_nothing(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "ward", 1.0)
    groups, _ = trained(tmp_path / "server.db", [ward.config] + [{}] * 5)
    assert groups["ward"] == 0

    def answered(price: TrainingPrice | None) -> Message:
        told = ConfigRecord({} if price is None else {PRICE_KEY: price.to_json()})
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(4))}), "config": told})
        message = Message(content, dst_node_id=FIRST_NODE, message_type="train")
        message.metadata.__dict__["_message_id"] = "1"
        return APP(message, Context(1, FIRST_NODE, ward.config, RecordDict(), {}))

    before = ward.charges()
    assert answered(None).error.reason == "PolicyRefusal"
    price = TrainingPrice(
        training="x" * 64,
        epsilon=0.5,  # a lie: the node computes what the releases spend
        event={"event": "poisson-gaussian", "noise_multiplier": 0.5, "sampling_rate": 0.5},
        rounds=50,
        neighboring_relation="zero-out",
    )
    assert answered(price).error.reason == "PrivacyBudgetExhausted"
    assert ward.charges() == before


def test_under_dp_sgd_the_key_makes_a_record_s_own_epsilon_of_the_cap(tmp_path: Path) -> None:
    config = Ward(tmp_path, "ward", 1.0, **{"require-privacy": "record"}).config
    context = Context(1, 1, config, RecordDict(), {})
    assert NodePrivacy.of(context, {}).record_epsilon == 1.0
    context = Context(1, 1, config | {"record-epsilon": 0.5}, RecordDict(), {})
    assert NodePrivacy.of(context, {}).record_epsilon == 0.5
    context = Context(1, 1, config | {"join-at-own-budget": False}, RecordDict(), {})
    assert NodePrivacy.of(context, {}).record_epsilon is None


def test_an_owner_tells_its_budget_only_if_it_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tells = {"tell-budget": True}
    configs = [
        Ward(tmp_path, f"ward-{number}", 8.0 if number < 4 else 1.0, **(tells if number else {}))
        for number in range(6)
    ]
    caplog.set_level("INFO", logger="flwr.fl_dp")
    trained(tmp_path / "server.db", [ward.config for ward in configs], rounds=1)
    assert "epsilon 1 (2 nodes), epsilon 8 (3 nodes)" in caplog.text
    assert "selection.budgets=[1,8] selection.shares=[0.4,0.6]" in caplog.text


@pytest.mark.parametrize("key", ["join-at-own-budget", "tell-budget"])
def test_keys_about_a_budget_need_one_and_are_said_in_words(tmp_path: Path, key: str) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} is about a budget"):
        NodeConfig.of({key: True})
    config = Ward(tmp_path, "ward", 4.0, **{"tell-budget": True}).config
    said = " ".join(describe_policy(NodeConfig.of(config)).sentences)
    assert "joins at what it allows itself" in said
    assert "tells the server that it allows epsilon 4" in said
    assert "noise of the server, which is trusted" in said


def test_joining_changes_nothing_only_where_all_that_is_required_is_local(tmp_path: Path) -> None:
    for required, nothing in (("any", False), ("record", False), ("local", True)):
        config = Ward(tmp_path, "ward", 4.0, **{"require-privacy": required}).config
        said = " ".join(describe_policy(NodeConfig.of(config)).sentences)
        assert ("join-at-own-budget changes nothing" in said) == nothing
        assert ("joins at what it allows itself" in said) != nothing


def test_prices_travel_as_text_and_other_text_is_refused() -> None:
    price = TrainingPrice(
        training="a",
        epsilon=1.0,
        event={"event": "gaussian"},
        rounds=2,
        neighboring_relation="zero-out",
    )
    assert offers_from_json(offers_to_json([price])) == (price,)
    other = offers_to_json([price]).replace("zero-out", "x")
    for text in ("{", "[1]", '["{}"]', other):
        with pytest.raises(ValueError):
            offers_from_json(text)
