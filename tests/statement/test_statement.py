"""The privacy statement: what the records say, in words that promise no more than the numbers."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import runpy
from dataclasses import asdict, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from flat_plans import noised_plan
from hypothesis import given
from hypothesis import strategies as st

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import (
    EpsilonBounds,
    FixedSizeSampling,
    NeighboringRelation,
    NoiseSchedule,
    PoissonGaussianEvent,
    PoissonSampling,
    PrivacyBudget,
    PrivacyEvent,
    epsilon,
)
from fl_dp.accounting.events import FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent, freeze
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.accounting.second_figure import TOLERANCE, SecondFigure
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import FixedClipping, SecureRandom
from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)
from fl_dp.plan import CentralPlan, LocalPlan, SecureSum
from fl_dp.statement import PrivacyStatement, of_clients, privacy_statement, statement_markdown
from fl_dp.statement.check import statement_differences, statement_page
from fl_dp.statement.words import describe_event, second_figure_in_words

RECOMPUTE = Path(__file__).resolve().parents[2] / "examples" / "recompute_epsilon.py"
"""Every epsilon again, from the file and dp-accounting alone."""

SIZES: dict[str, Any] = {"clipping_norm": 1.0, "num_clients": 200}
PLAN = noised_plan(1.0, delta=1e-3, rounds=5, sampling_rate=0.25, **SIZES)
WIDE = CentralPlan(
    budget=PrivacyBudget(epsilon=50.0, delta=1e-3),
    rounds=12,
    sampling=PoissonSampling(sampling_rate=0.25),
    noise_multiplier=1.0,
    clipping=FixedClipping(norm=1.0),
    num_clients=200,
)
EVERY_KIND: tuple[PrivacyEvent, ...] = (
    LaplaceEvent(noise_multiplier=3.0),
    ExponentialEvent(epsilon=0.3),
    ExponentialEvent(epsilon=0.25, draws=3),
    GaussianEvent(noise_multiplier=5.0),
    FixedSizeGaussianEvent(noise_multiplier=6.0, num_units=200, cohort=20),
    TruncatedPoissonGaussianEvent(
        noise_multiplier=3.0, sampling_rate=0.2, num_units=200, max_cohort=60
    ),
)
EVERYBODY = replace(WIDE, sampling=PoissonSampling(sampling_rate=1.0), noise_multiplier=4.0)
CAPPED = replace(EVERYBODY, sampling=PoissonSampling(sampling_rate=1.0, participation_cap=3))
LOCAL = LocalPlan(
    budget=WIDE.budget,
    rounds=12,
    num_clients=200,
    clipping=FixedClipping(norm=1.0),
    noise_multiplier=4.0,
    sampling=PoissonSampling(sampling_rate=1.0, participation_cap=12),
)
IN_SHARES = noised_plan(
    4.0, delta=1e-3, rounds=12, sampling_rate=1.0, secure_sum=SecureSum(), **SIZES
)
SCHEDULED = replace(WIDE, schedule=NoiseSchedule(name="linear", levels=4))
CAPPED_AND_SCHEDULED = replace(CAPPED, noise_multiplier=1.0, schedule=SCHEDULED.schedule)
CROWDED = replace(WIDE, schedule=NoiseSchedule(name="linear", levels=None))


STATEMENT: dict[str, Any] = {
    "delta": 1e-5,
    "epsilon": {"pld": 1.0},
    "epsilon_so_far": {"pld": 1.0},
    "quoted": "pld",
    "budget": {"epsilon": 2.0, "delta": 1e-5},
    "neighboring_relation": "zero-out",
    "against": "whoever sees the models",
    "releases": [{"event": "gaussian", "noise_multiplier": 1.0, "count": 1}],
    "not_covered": [],
    "randomness": [],
    "versions": {},
    "insecure": False,
    "most_rounds": None,
    "clipping": {"kind": "fixed", "norm": 1.0},
    "noise_multipliers": [],
    "metrics": [],
    "sampling_rate": 0.25,
    "ledger": "ledger.db",
    "ledger_hash": "0" * 64,
    "account": {
        "name": "ledger.db",
        "training": "training",
        "trainings": 1,
        "epsilon": 2.0,
        "delta": 0.01,
        "cap": None,
    },
    "second_figure": {"how": "PLDAccountant, asked by hand", "epsilon": 1.0, "ours": 1.0},
    **dict.fromkeys(("unit", "adversary", "trusted", "mechanism", "sampling", "rule"), "-"),
    **dict.fromkeys(("clipping_norm", "num_clients", "denominator"), 1),
    **dict.fromkeys(("rounds", "rounds_committed", "rounds_planned", "ledger_entries"), 1),
}


@pytest.fixture
def statement(tmp_path: Path) -> dict[str, Any]:
    means = LaplaceEvent(noise_multiplier=20.0)
    budget = PrivacyBudget(epsilon=4.0, delta=1e-3)
    plan = replace(PLAN, budget=budget, other_releases=((means, 1),))
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        ledger.commit(ledger.reserve_release("means", means))
        for number in (1, 2, 3):
            reservation = ledger.reserve(round=number)
        ledger.commit(reservation)
        return privacy_statement(ledger).to_dict()


def test_it_says_what_the_records_say(tmp_path: Path, statement: dict[str, Any]) -> None:
    ledger = PrivacyLedger.read(tmp_path / "ledger.db")
    again = privacy_statement(ledger).to_dict()
    assert again == statement == json.loads(json.dumps(statement, allow_nan=False))
    assert statement["epsilon_so_far"] == ledger.epsilon().by_name
    assert statement["epsilon"] == ledger.promise().by_name == ledger.plan.epsilon().by_name
    assert statement["epsilon"].keys() == {"pld", "rdp", "naive"}
    assert statement["quoted"] == "pld"
    assert statement["delta"] == 1e-3
    assert statement["budget"] == {"epsilon": 4.0, "delta": 1e-3}
    assert statement["neighboring_relation"] == "zero-out"
    assert statement["unit"] == "one client's whole contribution over the whole training"
    assert statement.get("epsilon_of_several") is None  # of records alone
    assert "every released model" in statement["adversary"]
    assert "does not see who took part" in statement["adversary"]
    assert statement["trusted"].startswith("the server")
    assert "L2-clipped" in statement["mechanism"]
    assert statement["sampling"].startswith("Poisson")
    assert statement["rule"] == PLAN.filter().rule
    assert (statement["rounds"], statement["rounds_committed"]) == (3, 1)
    assert (statement["rounds_planned"], statement["most_rounds"]) == (5, None)
    assert statement["noise_multipliers"] == [1.0] * 3
    assert statement["releases"] == [
        {"event": "laplace", "noise_multiplier": 20.0, "count": 1},
        {"event": "poisson-gaussian", "noise_multiplier": 1.0, "sampling_rate": 0.25, "count": 3},
    ]
    assert (statement["sampling_rate"], statement["denominator"]) == (0.25, 50.0)
    assert (statement["clipping_norm"], statement["num_clients"]) == (1.0, 200)
    assert (statement["randomness"], statement["insecure"]) == ([SecureRandom.SECURE_KIND], False)
    assert len(statement["not_covered"]) >= 5
    assert {"fl-dp", "dp-accounting", "numpy"} <= statement["versions"].keys()
    assert statement["ledger_hash"] == ledger.entries[-1].hash


def test_the_page_says_all_that_the_statement_says(statement: dict[str, Any]) -> None:
    page = statement_page(statement)
    assert re.findall(r"^#+ .*", page, re.MULTILINE) == [
        "# Privacy statement",
        "## What was released",
        "## Epsilon by each accountant",
        "## What is not covered",
    ]
    for key in ("unit", "adversary", "trusted", "mechanism", "sampling", "rule", "ledger_hash"):
        assert statement[key] in page
    for text in (*statement["not_covered"], *statement["randomness"]):
        assert text in page
    for name, number in statement["versions"].items():
        assert f"{name} {number}" in page
    assert "zero-out: a client of the public roster" in page
    assert "| rounds | 3 charged and 1 released, of 5 planned |" in page
    assert "| clients | 200, public denominator 50 |" in page
    assert "- 3 x Gaussian, noise multiplier 1, Poisson sample at rate 0.25" in page
    assert "- 1 x Laplace, scale 20 of the L1 sensitivity" in page
    assert page.count("(quoted)") == 1
    assert "| privacy-loss distributions (quoted) |" in page
    assert "No privacy" not in page


@pytest.mark.parametrize("plan", [PLAN, CAPPED, LOCAL, IN_SHARES, SCHEDULED])
def test_a_statement_comes_back_from_its_json_with_its_page(tmp_path: Path, plan: Plan) -> None:
    named: dict[str, Any] = {"participants": ["a"]} if plan.sampling.visible else {}
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        ledger.commit(ledger.reserve(round=1, **named))
        made = privacy_statement(ledger)
    document = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert PrivacyStatement.from_dict(document) == made
    assert statement_page(document) == statement_markdown(made)


@pytest.mark.parametrize("name", [*STATEMENT])
def test_a_statement_that_lacks_a_part_is_refused(name: str) -> None:
    rest = {key: value for key, value in STATEMENT.items() if key != name}
    with pytest.raises(ValueError, match="statement"):
        PrivacyStatement.from_dict(rest)


def test_a_statement_with_a_part_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="certified_by"):
        PrivacyStatement.from_dict(STATEMENT | {"certified_by": "us"})


def test_every_accountant_can_be_named_on_the_page(statement: dict[str, Any]) -> None:
    every = {field.name: 1.0 + place for place, field in enumerate(fields(EpsilonBounds))}
    page = statement_page(statement | {"epsilon": every})
    for value in every.values():
        assert f"| {value:.4f} |" in page


def printed_epsilons(page: str) -> list[str]:
    return re.findall(r"epsilon ([0-9.e+]+) at delta", page)


@given(value=st.floats(1e-9, 1e9), delta=st.floats(1e-12, 0.99))
def test_what_is_printed_is_never_less_than_what_is_known(value: float, delta: float) -> None:
    page = statement_page(STATEMENT | {"epsilon": {"pld": value}, "delta": delta})
    (promise,) = re.findall(r"\*\*.*epsilon (\S+) at delta ([^,]+),.*\*\*", page)
    printed_epsilon, printed_delta = map(Decimal, promise)
    assert printed_epsilon >= Decimal(repr(value))
    assert printed_epsilon <= Decimal(repr(value)) * Decimal("1.001") + Decimal("0.0001")
    assert Decimal(repr(delta)) <= printed_delta <= Decimal(repr(delta)) * Decimal("1.01")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.0, "0.0000"),
        (2.0, "2.0000"),
        (math.nextafter(2.0, 3.0), "2.0001"),
        (1.23450000001, "1.2346"),
        (0.1, "0.1000"),
        (1234400.1, "1.235e+06"),
    ],
)
def test_epsilon_is_rounded_up(value: float, printed: str) -> None:
    page = statement_page(STATEMENT | {"epsilon": {"pld": value}})
    promised = f"{float(printed):.10g}"
    assert printed_epsilons(page) == [promised, "2"]  # and the account's
    assert f"| privacy-loss distributions (quoted) | {printed} |" in page


def test_a_promise_is_not_printed_above_its_budget(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        for number in range(1, 6):
            ledger.reserve(round=number)
        page = statement_page(privacy_statement(ledger).to_dict())
    promise = re.search(r"\*\*epsilon (\S+) at delta 0\.001, .*\*\*, of a budget of (\S+) ", page)
    assert promise is not None
    assert promise[1] == promise[2]


def test_records_of_one_client_move_its_update_no_more_than_one_of_them(tmp_path: Path) -> None:
    """The update is clipped as a whole, so one number holds for any number of them."""
    plan = replace(
        WIDE,
        rounds=5,
        unit="record",
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        sampling=FixedSizeSampling(cohort=50),
        budget=PrivacyBudget(epsilon=100.0, delta=1e-3),
    )
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        made = privacy_statement(ledger)
    assert made.epsilon_of_several == dict.fromkeys(("2", "5", "10"), made.best_epsilon)
    assert "one person's records at one client" in statement_markdown(made)


def test_dp_accountings_figure_stands_beside_ours(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        statement = privacy_statement(ledger)
        second = statement.second_figure
        assert second.epsilon == pytest.approx(statement.best_epsilon, rel=TOLERANCE)
        assert second.ours == statement.best_epsilon  # of the whole plan, as it is quoted
        page = statement_markdown(statement)
        assert "for the same releases (PLDAccountant, for REPLACE_SPECIAL neighbours)" in page
        assert "they agree within 1 %. Both believe that each release" in page
        # An edited figure is found like any other number.
        edited = statement.to_dict()
        edited["second_figure"]["epsilon"] *= 1.001
        (line,) = statement_differences(ledger, edited)
        assert line.startswith("second_figure.epsilon is")


def test_a_second_figure_that_is_above_ours_is_the_first_thing_not_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = SecondFigure(how="PLDAccountant, by hand", epsilon=1.05, ours=1.0)
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        assert not any("THE NUMBER" in line for line in privacy_statement(ledger).not_covered)
        monkeypatch.setattr(of_clients, "second_figure", lambda *_, **__: figure)
        warned = privacy_statement(ledger)
    assert "Go by epsilon 1.0500" in warned.not_covered[0]
    assert "5.0 % MORE" in statement_markdown(warned)
    cautious = replace(figure, epsilon=0.95)
    assert "more cautious one, by 5.0 %" in second_figure_in_words(cautious)
    assert not cautious.above_ours


@pytest.mark.parametrize(("delta", "warned"), [(1e-3, False), (0.00101, True)])
def test_a_page_warns_of_a_large_delta(tmp_path: Path, delta: float, warned: bool) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        made = replace(privacy_statement(ledger), delta=delta)
    opening = statement_markdown(made).partition("| | |")[0]
    assert ("> **Delta 0.00101 is large" in opening) is warned


def test_a_stopped_training_states_the_plan_and_says_what_was_spent(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        made, spent = privacy_statement(ledger), ledger.epsilon().best
    guarantee = Guarantee.of(PLAN, made.best_epsilon, spent=spent)
    assert made.guarantee == guarantee
    assert guarantee.ended_early
    assert f"| promise | **{guarantee}**, of a budget of" in statement_markdown(made)


def test_where_dp_accounting_has_no_event_the_page_says_so() -> None:
    none = SecondFigure(how="dp-accounting has no event for a dance")
    page = statement_page(STATEMENT | {"second_figure": asdict(none)})
    assert f"There is no second figure of dp-accounting: {none.how}." in page


def test_nothing_released_and_nothing_known_are_not_the_same() -> None:
    nothing = STATEMENT | {"releases": [], "epsilon": {"pld": 0.0}}
    assert "**nothing was released**, of a budget of 2" in statement_page(nothing)
    unknown = STATEMENT | {"epsilon": {}, "quoted": "none"}
    assert "**no finite epsilon is known**" in statement_page(unknown)
    assert "nothing" not in statement_page(unknown)


def test_an_insecure_run_says_so_first_and_loudly(tmp_path: Path) -> None:
    rng = SecureRandom(insecure_seed=12345)
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN, rng=rng) as ledger:
        ledger.reserve(round=1)
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:  # securely, but too late
        ledger.reserve(round=2)
        statement = privacy_statement(ledger).to_dict()
    page = statement_page(statement)
    assert page.splitlines()[2].startswith("> **No privacy at all.** ANYTHING AGAINST WHO KNOWS")
    assert statement["insecure"]
    assert SecureRandom.INSECURE_KIND in page
    assert "12345" not in page


@pytest.mark.parametrize(
    ("plan", "names", "sampling", "adversary"),
    [
        (EVERYBODY, {"participants": ["a"]}, "none: every round is charged in full", "sees who"),
        (CAPPED, {"participants": ["a"]}, "none: 3 rounds are charged in full", "sees who"),
        (WIDE, {}, "Poisson", "does not see who"),
    ],
)
def test_it_says_whether_sampling_is_a_secret(
    tmp_path: Path, plan: Plan, names: dict[str, Any], sampling: str, adversary: str
) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        ledger.reserve(round=1, **names)
        statement = privacy_statement(ledger).to_dict()
    assert statement["sampling"].startswith(sampling)
    assert adversary in statement["adversary"]
    assert ("at most 3 for one client" in statement_page(statement)) == (plan is CAPPED)
    # Nobody is trusted with coins where none are flipped in secret.
    assert ("the coins and the noise" in statement["trusted"]) == (plan is WIDE)


def test_a_list_of_fewer_releases_than_there_were_says_whose_they_are(tmp_path: Path) -> None:
    said = "Of the 4 rounds one client is in 3 at most, as counted here:"
    with PrivacyLedger.open(tmp_path / "ledger.db", CAPPED) as ledger:
        for number in range(1, 4):
            ledger.reserve(round=number, participants=["a"])
        assert "as counted here" not in statement_markdown(privacy_statement(ledger))
        ledger.reserve(round=4, participants=["b"])
        page = statement_markdown(privacy_statement(ledger))
    assert f"{said}\n\n- 3 x Gaussian" in page


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_every_relation_is_explained(relation: NeighboringRelation) -> None:
    page = statement_page(STATEMENT | {"neighboring_relation": str(relation)})
    assert re.search(rf"\| neighbours \| {relation}: \w+", page)


@pytest.mark.parametrize(
    "event",
    [*EVERY_KIND, PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1), ZcdpEvent(rho=1)],
    ids=lambda event: str(event.kind),
)
def test_every_event_is_described_with_its_numbers(event: PrivacyEvent) -> None:
    description = describe_event(event)
    for field in fields(event):
        assert f"{getattr(event, field.name):.5g}" in description


@pytest.mark.parametrize(
    ("plan", "others", "rounds"),
    [
        (PLAN, (), 3),
        (WIDE, EVERY_KIND, 5),
        (EVERYBODY, EVERY_KIND[:3], 5),
        (IN_SHARES, (), 5),
        (CAPPED, EVERY_KIND[:3], 6),
        (SCHEDULED, EVERY_KIND[:2], 12),
        (CAPPED_AND_SCHEDULED, EVERY_KIND[:2], 12),
        (CROWDED, EVERY_KIND[:2], 12),
    ],
    ids=[
        "rounds",
        "every-kind",
        "everybody",
        "in-shares",
        "capped",
        "scheduled",
        "capped-and-scheduled",
        "many-distinct",
    ],
)
def test_epsilon_is_recomputed_from_the_file_without_fl_dp(
    tmp_path: Path,
    plan: Plan,
    others: tuple[PrivacyEvent, ...],
    rounds: int,
) -> None:
    named: dict[str, Any] = {"participants": []} if plan.sampling.cap is not None else {}
    plan = replace(plan, other_releases=freeze([(event, 1) for event in others]))
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        for event in others:
            ledger.commit(ledger.reserve_release("statistics", event))
        for number in range(1, rounds + 1):
            ledger.commit(ledger.reserve(round=number, **named))
        expected = privacy_statement(ledger).to_dict()["epsilon_so_far"]["pld"]
    assert "fl_dp" not in RECOMPUTE.read_text(encoding="utf-8")
    assert recomputed(tmp_path / "ledger.db") == pytest.approx(expected, rel=1e-6)


def recomputed(ledger: Path) -> float:
    """Return what the script prints for a ledger."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(RECOMPUTE))["main"](str(ledger))
    return float(printed.getvalue())


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (FixedSizeSampling(cohort=50), NeighboringRelation.ADD_OR_REMOVE_ONE),
        (FixedSizeSampling(cohort=50), NeighboringRelation.REPLACE_ONE),
        (PoissonSampling(sampling_rate=0.25), NeighboringRelation.REPLACE_ONE),
    ],
)
def test_recomputing_refuses_what_it_would_get_wrong(
    tmp_path: Path, sampling: Any, relation: NeighboringRelation
) -> None:
    plan = replace(WIDE, sampling=sampling, neighboring_relation=relation, noise_multiplier=8.0)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
    with pytest.raises(SystemExit, match=f"under {relation} neighbours"):
        recomputed(tmp_path / "ledger.db")


def test_with_noise_at_the_clients_no_number_rests_on_the_noise_of_all_together(
    tmp_path: Path,
) -> None:
    """Rounding a message to floating-point numbers can swallow its noise, and sums show it."""
    with PrivacyLedger.open(tmp_path / "ledger.db", LOCAL) as ledger:
        ledger.commit(ledger.reserve(round=1, participants=["north"]))
        statement = privacy_statement(ledger).to_dict()
        one_message = epsilon({GaussianEvent(noise_multiplier=4.0): 1}, LOCAL.budget.delta).by_name
    assert "of_the_sums" not in statement
    assert statement["epsilon_so_far"] == one_message
    assert "against others" not in statement_page(statement)


def test_a_buffered_promise_says_that_the_time_of_an_answer_is_not_covered(tmp_path: Path) -> None:
    plan = noised_plan(4.0, delta=1e-3, rounds=3, sampling=BufferedSampling(cohort=10), **SIZES)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        not_covered = " ".join(privacy_statement(ledger).not_covered)
    assert "when an answer arrives" in not_covered


def test_a_promise_against_the_server_says_that_it_rests_on_the_app_that_the_server_sends(
    tmp_path: Path,
) -> None:
    for name, plan in {"local": LOCAL, "central": EVERYBODY}.items():
        with PrivacyLedger.open(tmp_path / f"{name}.db", plan) as ledger:
            not_covered = " ".join(privacy_statement(ledger).to_dict()["not_covered"])
        assert ("--trusted-entities" in not_covered) is (name == "local")
