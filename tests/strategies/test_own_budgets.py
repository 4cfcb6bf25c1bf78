"""Groups of clients with budgets of their own: what each spends, how often each takes part.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from draws import a_draw
from fl_dp.strategies.modes import client_noise_of
from flat_plans import calibrated_plan, noised_plan
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from laws import ALARM, counts_p, normal_p
from local_grid import FIRST_NODE, LocalGrid, introducing
from trainings import FixedClient, able, noised

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    NoiseSchedule,
    OwnRatesSampling,
    PoissonGaussianEvent,
    PoissonSampling,
)
from fl_dp.accounting.filters import OwnBudgetsFilter
from fl_dp.clients import numpy_client_app
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import IncompatibleOptions, OptionError
from fl_dp.plan import GroupedPlan, SecureSum
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.statement import PrivacyStatement
from fl_dp.statement.markdown import statement_markdown
from fl_dp.statement.of_clients import privacy_statement
from fl_dp.strategies import DPFedAvg, LawSelection, UnprotectedFedAvg
from fl_dp.updates import Compression

BUDGETS, SHARES, RATE, ROUNDS, DELTA = (1.0, 3.0, 8.0), (0.5, 0.3, 0.2), 0.2, 30, 1e-3


def planned(num_clients: int = 10, **other: Any) -> Plan:
    law = OwnRatesSampling.at(RATE, budgets=BUDGETS, shares=SHARES)
    given: dict[str, Any] = {
        "rounds": ROUNDS,
        "num_clients": num_clients,
        "sampling": law,
        "clipping_norm": 1.0,
    }
    return calibrated_plan(PrivacyBudget(epsilon=8.0, delta=DELTA), **given | other)


PLAN = planned()
LAW = cast(OwnRatesSampling, PLAN.sampling)


def truly_spent(noise_multiplier: float, rate: float) -> float:
    """What a unit spends, by dp-accounting itself."""
    accountant = PLDAccountant()
    sampled = PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier))
    accountant.compose(SelfComposedDpEvent(sampled, ROUNDS))
    return float(accountant.get_epsilon(DELTA))


# --- What is spent --------------------------------------------------------------------------------


@pytest.mark.parametrize("group", range(3))
def test_each_group_spends_its_own_budget_and_nothing_is_left(group: int) -> None:
    noise, rate = PLAN.noise_multiplier, LAW.rates[group]
    spent = truly_spent(noise, rate)
    assert 0.998 * BUDGETS[group] < spent <= BUDGETS[group] * (1.0 + 1e-4)
    # The power of this test: with a tenth less noise no group would keep its promise.
    assert truly_spent(0.9 * noise, rate) > 1.05 * BUDGETS[group]


def test_the_cohort_is_as_large_on_average_as_it_was_wanted() -> None:
    assert PLAN.sampling_rate == pytest.approx(RATE, rel=1e-2)
    assert PLAN.denominator == pytest.approx(10 * RATE, rel=1e-2)
    assert all(low < high for low, high in pairwise(LAW.rates))


def test_every_group_pays_for_other_releases() -> None:
    other = {GaussianEvent(noise_multiplier=9.0): 1}
    with_other = planned(other_releases=other)
    law = with_other.sampling
    assert isinstance(law, OwnRatesSampling)
    for group in range(3):
        history = law.history_for(group, with_other.history)
        assert with_other.epsilon(history).best <= BUDGETS[group]
        assert dict(history)[GaussianEvent(noise_multiplier=9.0)] == 1


def test_no_gate_lets_a_release_through_that_is_too_much_for_any_group() -> None:
    gate = PLAN.filter()
    assert isinstance(gate, OwnBudgetsFilter)
    for _ in range(ROUNDS):
        event = PLAN.event_of(1)
        assert not gate.would_exceed(event)
        gate.spend(event)
    assert gate.would_exceed(PLAN.event_of(1))
    # Room for the last group alone is no room: the strictest group is at its end.
    generous = replace(PLAN.budget, epsilon=80.0)
    law = replace(LAW, budgets=(1.0, 3.0, 80.0))
    assert isinstance(PLAN, GroupedPlan)
    wide = replace(PLAN, budget=generous, sampling=law).filter()
    for _ in range(ROUNDS):
        wide.spend(PLAN.event_of(1))
    assert wide.would_exceed(PLAN.event_of(1))


# --- Who takes part -------------------------------------------------------------------------------


def test_a_unit_takes_part_at_the_rate_of_its_group_and_independently() -> None:
    groups = [0, 0, 1, 2]
    draw = replace(a_draw(4), groups=groups)
    selection = LawSelection(LAW)
    draws = 20_000
    seen: Counter[frozenset[int]] = Counter()
    for _ in range(draws):
        seen[frozenset(draw.roster.index(unit) for unit in selection.select(draw))] += 1
    cells = [frozenset(p for p in range(4) if code >> p & 1) for code in range(16)]

    def law(rates: tuple[float, ...]) -> np.ndarray[Any, Any]:
        chances = []
        for cell in cells:
            each = [rates[g] if p in cell else 1.0 - rates[g] for p, g in enumerate(groups)]
            chances.append(float(np.prod(each)))
        return np.array(chances)

    counts = np.array([seen[cell] for cell in cells])
    assert counts_p(counts, law(LAW.rates)) > ALARM
    # The power of this test: one rate that is a tenth larger would show.
    assert counts_p(counts, law((*LAW.rates[:2], 1.1 * LAW.rates[2]))) < ALARM


def test_units_are_dealt_by_the_shares_once_and_for_good(tmp_path: Path) -> None:
    names = [f"ward-{number:02}" for number in range(10)]
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        dealt = ledger.assign(names[:7])
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        groups = ledger.assign(names)
    assert Counter(groups.values()) == {0: 5, 1: 3, 2: 2}
    assert dealt.items() <= groups.items()


# --- A training -----------------------------------------------------------------------------------


def trained(
    place: Path, plan: Plan, *, owners: Mapping[str, float] | None = None, nodes: int = 10
) -> tuple[DPFedAvg, PrivacyLedger, LocalGrid]:
    app = numpy_client_app(lambda context: FixedClient([np.full(4, 0.1)]))

    def answer(message: Message, number: int) -> Message:
        config: dict[str, Any] = {"partition-id": number, "dp-unit-name": f"ward-{number}"}
        return app(message, Context(1, FIRST_NODE + number, config, RecordDict(), {}))

    grid = LocalGrid(introducing(answer), nodes)
    ledger = PrivacyLedger.open(place, plan)
    strategy = DPFedAvg(plan=plan, ledger=ledger, owners=owners)
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=plan.rounds)
    return strategy, ledger, grid


def test_a_training_goes_by_the_groups_and_its_statement_says_each_promise(tmp_path: Path) -> None:
    _, ledger, grid = trained(tmp_path / "ledger.db", PLAN)
    with ledger:
        assert ledger.rounds_committed == ROUNDS
        groups = ledger.group_of
        statement = privacy_statement(ledger)
    asked = Counter(groups[f"ward-{m.metadata.dst_node_id - FIRST_NODE}"] for m in grid.sent)
    sizes = Counter(groups.values())
    for group in range(3):
        trials = sizes[group] * ROUNDS
        # Six deviations of a binomial count.
        spread = 6.0 * (trials * LAW.rates[group] * (1.0 - LAW.rates[group])) ** 0.5
        assert abs(asked[group] - trials * LAW.rates[group]) < spread
    assert statement.own_budgets is not None
    assert [each.budget for each in statement.own_budgets] == list(BUDGETS)
    for each in statement.own_budgets:
        assert 0.998 * each.budget < each.epsilon <= each.budget
    assert statement.best_epsilon == statement.own_budgets[-1].epsilon
    again = PrivacyStatement.from_dict(json.loads(json.dumps(statement.to_dict())))
    assert again == statement
    page = statement_markdown(statement)
    assert "epsilon 1.0000 of 1 for 50 % of the clients" in page


def test_owners_say_their_own_epsilon_by_name_and_strangers_take_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners = {f"ward-{number}": BUDGETS[number % 3] for number in range(9)}
    shares = (3 / 9, 3 / 9, 3 / 9)
    law = OwnRatesSampling.at(RATE, budgets=BUDGETS, shares=shares)
    plan = planned(sampling=law)
    _, ledger, grid = trained(tmp_path / "ledger.db", plan, owners=owners)
    with ledger:
        assert ledger.group_of == {name: BUDGETS.index(owners[name]) for name in owners}
    assert 109 not in {message.metadata.dst_node_id for message in grid.sent}
    assert "1 nodes take no part" in caplog.text
    assert "ward-9" in caplog.text


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"budgets": (1.0, 1.0)}, "must increase"),
        ({"budgets": (0.0, 1.0)}, "must increase"),
        ({"budgets": (1.0, float("nan"))}, "must increase"),
        ({"shares": (0.5, 0.4)}, "add up to 1"),
        ({"shares": (1.0, 0.0)}, "add up to 1"),
        ({"shares": (1.0,)}, "a number for each"),
        ({"rates": (0.5, 1.0)}, "in \\(0, 1\\)"),
        ({"rates": (0.5, 0.4)}, "in \\(0, 1\\)"),
        ({"scales": (1.0, 0.5)}, "over its own is 1"),
        ({"scales": (0.0, 1.0)}, "over its own is 1"),
    ],
)
def test_numbers_that_can_t_be_meant_are_refused(fields: dict[str, Any], match: str) -> None:
    right: dict[str, Any] = {"budgets": (1.0, 2.0), "shares": (0.5, 0.5), "rates": (0.1, 0.2)}
    OwnRatesSampling(**right)
    with pytest.raises(OptionError, match=match):
        OwnRatesSampling(**right | fields)


def test_options_that_do_not_go_with_own_budgets_are_refused() -> None:
    for other in ({"coins_at_nodes": True}, {"schedule": NoiseSchedule(name="linear")}):
        with pytest.raises(IncompatibleOptions, match="means nothing where"):
            planned(**other)
    with pytest.raises(ValueError, match="without privacy there is none"):
        UnprotectedFedAvg(selection=LawSelection(LAW))
    everybody = OwnRatesSampling.at(1.0, budgets=BUDGETS, shares=SHARES)
    with pytest.raises(IncompatibleOptions, match="a distributed plan has cohorts by"):
        planned(sampling=everybody, secure_sum=SecureSum())
    with pytest.raises(OptionError, match="must be the largest of the budgets: write epsilon=8"):
        noised_plan(1.0, delta=DELTA, rounds=5, num_clients=10, clipping_norm=1.0, sampling=LAW)
    sampled = PoissonGaussianEvent(noise_multiplier=9.0, sampling_rate=LAW.rates[-1])
    with pytest.raises(OptionError, match="at the rate of the last group"):
        replace(PLAN, other_releases=((sampled, 1),))


def test_a_group_that_can_t_spend_its_budget_is_told() -> None:
    law = OwnRatesSampling.at(0.9, budgets=(1.0, 12.0), shares=(0.5, 0.5))
    with pytest.raises(OptionError, match="would take part in every round"):
        calibrated_plan(
            PrivacyBudget(epsilon=12.0, delta=DELTA),
            rounds=2, num_clients=10, sampling=law, clipping_norm=1.0,
        )  # fmt: skip


def test_a_name_with_an_epsilon_that_no_group_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="epsilon of 2"):
        trained(tmp_path / "a.db", PLAN, owners={"ward-0": 2.0})
    other = planned(sampling=PoissonSampling(sampling_rate=RATE))
    with pytest.raises(OptionError, match="one for all"):
        trained(tmp_path / "b.db", other, owners={"ward-0": 1.0})


# --- Noise of their own, at the clients -----------------------------------------------------------


SCHEMES = pytest.mark.parametrize("scheme", ["gaussian", "laplace", "exponential"])


def locally(scheme: str = "gaussian", **others: Any) -> Plan:
    law = OwnRatesSampling.at(1.0, budgets=BUDGETS, shares=SHARES)
    return planned(sampling=law, client_scheme=scheme, rounds=5, **others)


LOCAL = locally()
OWN_NOISE = cast(OwnRatesSampling, LOCAL.sampling)


@SCHEMES
def test_each_message_is_as_noisy_as_its_groups_budget_needs(scheme: str) -> None:
    plan = locally(scheme)
    law = cast(OwnRatesSampling, plan.sampling)
    for group in range(3):
        bounds = plan.epsilon(law.history_for(group, plan.history))
        assert 0.998 * BUDGETS[group] < bounds.best <= BUDGETS[group]
        # What a client of the group would charge for what it is told, by its own mechanism.
        told = client_noise_of(plan, plan.noise_multiplier, Compression(), group=group)
        charged = law.event_for(group, plan.event_of(1))
        assert asdict(charged) == pytest.approx(asdict(told.mechanism().event()), rel=1e-12)
        assert told.epsilon == BUDGETS[group]


def test_own_noise_spends_the_budget_by_another_accountant() -> None:
    for group, budget in enumerate(BUDGETS):
        accountant = PLDAccountant()
        noise = LOCAL.noise_multiplier / OWN_NOISE.own_groups[group].scale
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), 5))
        assert 0.99 * budget < accountant.get_epsilon(DELTA) <= budget * (1.0 + 1e-4)


def test_messages_have_their_groups_noise_and_weigh_the_inverse_of_its_variance(
    tmp_path: Path,
) -> None:
    size, sent = 4_000, {}
    app = numpy_client_app(lambda context: FixedClient([np.zeros(size)]))

    def answer(message: Message, number: int) -> Message:
        config: dict[str, Any] = {
            "partition-id": number,
            "dp-unit-name": f"ward-{number}",
            "dp-ledger-path": str(tmp_path / f"ward-{number}.db"),
        }
        reply = app(message, Context(1, FIRST_NODE + number, config, RecordDict(), {}))
        if reply.has_content() and reply.content.array_records:
            sent[number] = next(iter(reply.content.array_records.values()))["w"].numpy()
        return reply

    plan = replace(LOCAL, rounds=1)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        grid = LocalGrid(introducing(answer), 10)
        start = ArrayRecord({"w": Array(np.zeros(size))})
        result = strategy.start(grid, start, num_rounds=1)
        groups = ledger.group_of
        statement = privacy_statement(ledger)
    weights = np.zeros(10)
    for number, message in sent.items():
        group = groups[f"ward-{number}"]
        std = plan.noise_multiplier / OWN_NOISE.own_groups[group].scale
        assert normal_p(message / std) > ALARM
        assert normal_p(message / (1.1 * std)) < ALARM  # the power of this test
        weights[number] = std**-2.0
        # The node's own ledger has what its own noise costs, within its own group's budget.
        with NodeLedger.read(tmp_path / f"ward-{number}.db") as own:
            (spending,) = own.spendings
        ((event, count),) = spending.history
        assert count == 1
        assert cast(GaussianEvent, event).noise_multiplier == pytest.approx(std)
    mean = sum(weights[number] * message for number, message in sent.items()) / weights.sum()
    np.testing.assert_allclose(result.arrays["w"].numpy(), mean, atol=1e-9)
    said = f"at rate 1 and {1.0 / OWN_NOISE.own_groups[0].scale:.4g} times the noise"
    assert said in statement_markdown(statement)


def test_noise_of_their_own_is_for_clients_that_add_it() -> None:
    with pytest.raises(OptionError, match="different rates, below 1"):
        planned(sampling=OwnRatesSampling.at(1.0, budgets=BUDGETS, shares=SHARES))
    with pytest.raises(OptionError, match=r"nothing is amplified: .*write sampling_rate=1"):
        planned(client_scheme="gaussian")  # at rate .2


def test_a_node_is_asked_beforehand_for_no_more_than_any_group_would_ask(tmp_path: Path) -> None:
    @able(Ability.NOISE)
    def answer(message: Message, node: int) -> Message:
        return noised(message, w=np.ones(3))

    grid = LocalGrid(answer, 10)
    with PrivacyLedger.open(tmp_path / "ledger.db", LOCAL) as ledger:
        strategy = DPFedAvg(plan=LOCAL, ledger=ledger)
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=1)
    configs = [
        each for asked in grid.introductions for each in asked.content.config_records.values()
    ]
    noises = [
        RoundInstruction.from_json(str(each[INSTRUCTION_KEY])).client_noise for each in configs
    ]
    assert noises
    for noise in noises:
        assert noise is not None
        # By the last group's budget: a node that has spent more than the first one's is not out.
        assert noise.epsilon == BUDGETS[-1]
        assert noise.noise_multiplier == LOCAL.noise_multiplier / OWN_NOISE.own_groups[0].scale


def test_noise_of_the_mean_is_that_of_all_messages_together() -> None:
    scales = np.array([OWN_NOISE.own_groups[group].scale for group in range(3)])
    numbers = 10 * np.array(SHARES)
    weights, noises = scales**2, LOCAL.noise_multiplier / scales
    std = np.sqrt(numbers @ (weights * noises) ** 2) / (numbers @ weights)
    assert LOCAL.noise_of_mean(LOCAL.noise_multiplier) == pytest.approx(std)
