"""Every combination of options that is accepted runs, and charges no less than what really ran.

A plan is either refused where it is made, or three rounds of it are trained on a grid whose nodes
answer by the real handlers. What was drawn and added is then read off the rounds themselves, and
what that spends is worked out here.

By default each law meets every pair of options that it accepts; each night, all combinations.
"""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from fl_dp.strategies.modes import CentralMode, ClientNoiseMode, Mode, SecureSumMode
from fl_dp.strategies.selection import selection_of
from flat_plans import flat_plan
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from kind_trainings import PLANS, promised
from local_grid import Answer, LocalGrid, answer_with_app, introducing
from record_plans import record_plan
from scipy.optimize import brentq
from scipy.stats import binom, norm
from secure_nodes import SecureNodes
from trainings import FixedClient

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    NeighboringRelation,
    NoiseSchedule,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
    VisibleSampling,
    freeze,
)
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, PerLayerClipping, ScalarMetric
from fl_dp.mechanisms.banded_stream import BandedGaussianMechanism
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import Banded, BufferedPlan, SecureSum, SharedNoisePlan
from fl_dp.strategies import (
    DPFedAvg,
    DPFedBuff,
    ExponentialSelection,
    Selection,
)
from fl_dp.updates import Compression

N, ROUNDS, DELTA = 4, 3, 1e-3
MULTIPLIER = 12.0  # with much noise privacy-loss distributions are short
Options = dict[str, Any]

COINS = PoissonSampling(sampling_rate=0.5)
CUT = TruncatedPoissonSampling(sampling_rate=0.5, max_cohort=3)
LAWS: dict[str, Sampling | Callable[[], Selection]] = {
    "coins": COINS,
    "everybody": PoissonSampling(sampling_rate=1.0),
    "cut": CUT,
    "fixed": FixedSizeSampling(cohort=2),
    "seen": VisibleSampling(cohort=3),
    "apart": VisibleSampling(cohort=2, separation=2),
    "buffer": BufferedSampling(cohort=2),
    "turns": CyclicSampling(groups=2, inside=COINS),
    "whole turns": CyclicSampling(groups=2, inside=PoissonSampling(sampling_rate=1.0)),
    "cut turns": CyclicSampling(groups=2, inside=TruncatedPoissonSampling(
        sampling_rate=0.5, max_cohort=1)),
    "one group": CyclicSampling(groups=1, inside=COINS),
    "utility": lambda: ExponentialSelection(VisibleSampling(cohort=2), epsilon=0.02),
    "utility of records": lambda: ExponentialSelection(
        VisibleSampling(cohort=2), epsilon=0.02, records_per_client=10
    ),
    "norms": lambda: ExponentialSelection(
        VisibleSampling(cohort=2), epsilon=0.02, utility="update_norm", utility_high=1.0
    ),
}  # fmt: skip
TURNS = [name for name, law in LAWS.items() if isinstance(law, CyclicSampling)]
"""Laws for which noise has to be correlated, so that no budget in one line has them."""
NOISES: dict[str, Options] = {
    "central": {},
    "banded": {"correlation": Banded(coefficients=(4096, 2000))},
    "falling": {"schedule": NoiseSchedule(name="linear")},
    "gaussian": {"client_scheme": "gaussian"},
    "laplace": {"client_scheme": "laplace"},
    "exponential": {"client_scheme": "exponential"},
}
RELATIONS: dict[str, Options] = {
    str(one): {"neighboring_relation": one} for one in NeighboringRelation
}
HOSTS: dict[str, Options] = {
    "one": {},
    "two": {"units_per_node": 2},
    "coins": {"coins_at_nodes": True},
    "coins of two": {"coins_at_nodes": True, "units_per_node": 2},
}
RECORDS = record_plan(
    epsilon=4.0, noise_multiplier=1.0, sampling_rate=0.1, steps=5, participations=3
)
WEIGHED = {"weight_cap": 20.0, "total_weight": 3.0}
OTHERS: dict[str, Options] = {
    "a power of two": {"clipping": FixedClipping(norm=0.25)},
    "per layer": {"clipping": PerLayerClipping(norms=(0.5, 0.25))},
    "adaptive": {"clipping": AdaptiveClipping(norm=0.5)},
    "adaptive, odd": {"clipping": AdaptiveClipping(norm=0.3)},
    "cap of 1": {"participation_cap": 1},
    "cap of 2": {"participation_cap": 2},
    "cap of 9": {"participation_cap": 9},
    "metrics": {"metrics": (ScalarMetric(name="loss", low=0.0, high=4.0),)},
    "weight cap": {"weight_cap": 20.0},
    "weights": WEIGHED,
    "record": {"unit": "record"} | RELATIONS["replace-one"],
    "not counted": {"contribution_check": False},
    "narrow": {"compression": Compression(down="float16")},
    "quantized": {"compression": Compression(up="quantize")},
    "top k": {"compression": Compression(up="top_k", fraction=0.5)},
    "dp-sgd": {"record_plan": RECORDS},
    "growing": {"roster_may_grow": True},
    "statistic": {"other_releases": {GaussianEvent(noise_multiplier=9.0): 1}},
}
BASES = (
    ("central", "zero-out", "one"),
    ("central", "zero-out", "two"),
    ("banded", "zero-out", "one"),
    ("gaussian", "zero-out", "one"),
)
OF_STRATEGY = ("weight_cap", "record_plan", "compression", "roster_may_grow")


# --- What runs ------------------------------------------------------------------------------------


class Client(FixedClient):
    """Measures something as well, where it is asked for its utility."""

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.5, 10, {}


@dataclass
class Ran:
    """A training, as far as anybody could see of it.

    Attributes:
        modes: What each round was made by.
        asked: How often each node was asked to train.
        errors: Replies to a request to train that were errors.
    """

    plan: Plan
    modes: list[Mode] = field(default_factory=list)
    asked: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def watched(self, answer: Answer) -> Answer:
        def watch(message: Message, partition: int) -> Message | None:
            reply = answer(message, partition)
            if message.metadata.message_type == "train":
                self.asked[partition] += 1
                if reply is not None and reply.has_error():
                    self.errors.append(reply.error.reason or "")
            return reply

        return introducing(watch)


def nodes_of(plan: Plan, folder: Path) -> Answer:
    nodes, units = plan.hosting.nodes_of(N), plan.hosting.max_units
    if isinstance(plan, SharedNoisePlan):
        update = [np.full(3, 0.1), np.full((2, 2), 0.1)]
        return SecureNodes(folder, [[update] * units] * nodes)

    def made(context: Any, unit: int = 0) -> Client:
        return Client(0.1, metrics={"loss": 1.0})

    app = numpy_client_app(made, units=NodeUnits(client_fn=made, count=lambda *_: units))
    return answer_with_app(app, nodes)


def begun(law: Sampling | Callable[[], Selection], given: Options) -> tuple[Plan, Options]:
    """Return a plan and the strategy's options.

    Raises:
        ValueError: If the plan is refused.
    """
    options = dict(given)
    of_strategy = {name: options.pop(name) for name in OF_STRATEGY if name in options}
    if isinstance(law, Sampling):
        options["sampling"] = law
    else:
        of_strategy["selection"] = selection = law()
        options["sampling"] = selection.sampling
        others = options.get("other_releases", {})
        options["other_releases"] = freeze([*freeze(others), *freeze(selection.releases(ROUNDS))])
    options.setdefault("clipping", FixedClipping(norm=0.3))
    plan = flat_plan(
        PrivacyBudget(epsilon=90.0, delta=DELTA),
        noise_multiplier=MULTIPLIER,
        rounds=ROUNDS,
        num_clients=N,
        **options,
    )
    if "selection" in of_strategy:
        of_strategy["selection"].sampling = plan.sampling  # with its cap
    return plan, of_strategy


def run(plan: Plan, of_strategy: Options, folder: Path) -> tuple[Ran, PrivacyLedger] | None:
    """Train; None if the strategy is refused."""
    ran = Ran(plan)

    kind = DPFedBuff if isinstance(plan, BufferedPlan) else DPFedAvg

    class WatchedLoop(kind.loop_class):  # type: ignore[misc,name-defined]  # either
        def make_mode(self, *arguments: Any) -> Any:
            mode = super().make_mode(*arguments)
            ran.modes.append(mode)
            return mode

    class Watched(kind):  # type: ignore[misc,valid-type]  # either
        loop_class = WatchedLoop

    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        try:
            strategy = Watched(plan=plan, ledger=ledger, **of_strategy)
        except ValueError:
            return None
        grid = LocalGrid(ran.watched(nodes_of(plan, folder)), plan.hosting.nodes_of(N))
        model = ArrayRecord({"w": Array(np.zeros(3)), "v": Array(np.zeros((2, 2)))})
        strategy.start(
            grid,
            model,
            num_rounds=ROUNDS,
            timeout=20.0,
            evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5}),
        )
    return ran, ledger


# --- What it spends, worked out here --------------------------------------------------------------


def distance_of(mode: Mode) -> float:
    """What one unit moves in one round, over the noise: the inverse of a noise multiplier."""
    if isinstance(mode, ClientNoiseMode):
        noise = mode.instruction.client_noise
        assert noise is not None and noise.scheme == "gaussian"
        return float(1.0 / noise.noise_multiplier)
    if isinstance(mode, SecureSumMode):
        shared, plan = mode._shared, mode._plan
        assert isinstance(plan, SharedNoisePlan)
        moved: float = sum((each.scale * each.clipping_norm) ** 2 for each in shared.segments)
        return float(math.sqrt(moved / plan.noise.honest_shares) / shared.noise_scale)
    assert isinstance(mode, CentralMode)
    bundle = mode.sums.bundle
    updates = bundle.updates
    moved = updates.clipping_norm
    if isinstance(updates, BandedGaussianMechanism):
        column = np.array(updates.coefficients) / 4096.0
        moved = moved * float(np.linalg.norm(column)) + updates.grid * math.sqrt(
            (len(column) - 1) * updates.size
        )
    of_scalars = (each.clipping_norm / each.noise_std for each in bundle.scalar_mechanisms)
    return float(math.hypot(moved / updates.noise_std, *of_scalars))


def participations(plan: Plan) -> int:
    """In how many rounds one unit may be."""
    apart = getattr(plan.sampling, "groups", getattr(plan.sampling, "separation", 1))
    return min(-(-ROUNDS // apart), plan.sampling.cap or ROUNDS)


def chance(law: Sampling) -> float:
    """How likely a unit at least is to be in a round that it may be in."""
    match law:
        case PoissonSampling(sampling_rate=rate):
            return rate
        case CyclicSampling(inside=TruncatedPoissonSampling() as inside, groups=groups):
            return _kept(inside, N // groups)
        case CyclicSampling(inside=inside):
            return inside.sampling_rate
        case TruncatedPoissonSampling():
            return _kept(law, N)
        case VisibleSampling():
            return 1.0
        case _:
            return law.expected_cohort(N) / N


def _kept(law: TruncatedPoissonSampling, units: int) -> float:
    others = np.arange(units)
    kept = np.minimum(1.0, law.max_cohort / (others + 1))
    return law.sampling_rate * float(binom.pmf(others, units - 1, law.sampling_rate) @ kept)


def gaussian_epsilon_on_paper(mu: float) -> float:
    """Exactly what a Gaussian at distance `mu` spends (Balle and Wang 2018, theorem 5)."""

    def excess(epsilon: float) -> float:
        low = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu) - low - DELTA)

    return 0.0 if excess(0.0) <= 0.0 else float(brentq(excess, 0.0, 200.0))


@cache
def sampled_epsilon_at_least(multiplier: float, rate: float, rounds: int) -> float:
    """A lower bound: a unit that is in or not, while nobody else moves the sum."""
    once = pld.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, pessimistic_estimate=False,
        value_discretization_interval=1e-3,
    )  # fmt: skip
    return float(once.self_compose(rounds).get_epsilon_for_delta(DELTA))


def spent_at_least(ran: Ran) -> float:
    """What the rounds spend, worked out from what was made of them."""
    plan, rate = ran.plan, chance(ran.plan.sampling)
    if getattr(plan, "scheme", "gaussian") != "gaussian":
        return 0.0
    # One unit may have been in those with the least noise, if the schedule lets it.
    worst = sorted(map(distance_of, ran.modes), reverse=True)[: participations(plan)]
    if rate == 1.0:
        moved = 2.0 if plan.neighboring_relation is NeighboringRelation.REPLACE_ONE else 1.0
        return gaussian_epsilon_on_paper(moved * math.hypot(*worst))
    return sampled_epsilon_at_least(round(1.0 / min(worst), 6), round(rate, 9), len(worst))


def check(name: str, ran: Ran, ledger: PrivacyLedger) -> None:
    """Compare what was charged with what ran."""
    plan, spent = ran.plan, ledger.epsilon().best
    # Where the cap is below what all rounds take, a training ends when everybody has reached it.
    rounds = ROUNDS
    if (cap := plan.sampling.cap) is not None:
        rounds = min(ROUNDS, -(-cap * N // round(plan.expected_cohort)))
    assert not ran.errors, (name, ran.errors[0])
    assert (ledger.rounds_spent, ledger.rounds_committed) == (rounds, rounds), name
    assert len(ran.modes) == rounds, name
    assert spent_at_least(ran) <= spent * (1.0 + 1e-9), name
    assert spent <= plan.budget.epsilon, name
    charged = Counter(dict(ledger.history)) - Counter(dict(plan.other_releases))
    assert charged.total() == min(participations(plan), rounds), name
    if plan.hosting.distinct_units == 1:
        assert max(ran.asked.values(), default=0) <= charged.total(), name
    if isinstance(ran.modes[0], ClientNoiseMode | CentralMode) and plan.schedule.name == "constant":
        assert all(getattr(each, "noise_multiplier", MULTIPLIER) == MULTIPLIER for each in charged)


# --- All of it ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Combination:
    """A plan to be tried.

    Attributes:
        pairs: Which of its options meet in it.
    """

    name: str
    options: Options
    pairs: frozenset[tuple[str, ...]]


def combinations(first: int = 0) -> Iterator[Combination]:
    """Every noise, relation and host; and every other option with some of them.

    Args:
        first: Which of `BASES` the other options meet first.
    """
    for noise, relation, host in itertools.product(NOISES, RELATIONS, HOSTS):
        meeting = itertools.combinations((noise, f"relation {relation}", f"host {host}"), 2)
        options = NOISES[noise] | RELATIONS[relation] | HOSTS[host]
        yield Combination(f"{noise}, {relation}, {host}", options, frozenset(meeting))
    for place in range(len(BASES)):
        noise, relation, host = BASES[(first + place) % len(BASES)]
        options = NOISES[noise] | RELATIONS[relation] | HOSTS[host]
        for other, more in OTHERS.items():
            name = f"{noise}, {relation}, {host}, {other}"
            yield Combination(name, options | more, frozenset({(other,)}))


def attempt(law: str, name: str, options: Options, folder: Path) -> str:
    try:
        plan, of_strategy = begun(LAWS[law], options)
    except ValueError:
        return "refused"
    place = folder / f"{len(list(folder.iterdir()))}"
    place.mkdir()
    try:
        made = run(plan, of_strategy, place)
    except Exception as error:
        raise AssertionError(f"{name}: accepted, and then {error!r}") from error
    if made is None:
        return "refused"
    check(name, *made)
    return "ran"


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_what_is_accepted_runs_and_charges_no_less_than_what_ran(tmp_path: Path, law: str) -> None:
    """A combination is left out if all of its pairs, or its other option, have already run.

    From one law to the next, the other options change what they meet first.
    """
    became: Counter[str] = Counter()
    ran: set[tuple[str, ...]] = set()
    for each in combinations(first=list(LAWS).index(law)):
        if each.pairs <= ran:
            continue
        now = attempt(law, each.name, each.options, tmp_path)
        became[now] += 1
        if now == "ran":
            ran |= each.pairs
    assert became["refused"] > 0
    assert (became["ran"] > 0) == (law != "one group")  # which is refused whatever it is with


@pytest.mark.nightly
@pytest.mark.parametrize("law", LAWS)
def test_all_that_is_accepted_runs_and_charges_no_less_than_what_ran(
    tmp_path: Path, law: str
) -> None:
    tried = list(combinations())
    assert len(tried) == len(NOISES) * len(RELATIONS) * len(HOSTS) + len(BASES) * len(OTHERS)
    became = Counter(attempt(law, each.name, each.options, tmp_path) for each in tried)
    assert became["refused"] > 0
    assert (became["ran"] > 0) == (law != "one group")


SUMS: dict[str, tuple[str, Options]] = {
    "everybody": ("everybody", {}),
    "replace-one": ("everybody", RELATIONS["replace-one"]),
    "seen": ("seen", {}),
    "falling": ("everybody", NOISES["falling"]),
    "adaptive": ("everybody", OTHERS["adaptive"] | OTHERS["metrics"]),
    "a statistic": ("everybody", OTHERS["statistic"] | OTHERS["not counted"]),
}
NO_SUMS: dict[str, tuple[str, Options]] = {
    "coins at the server": ("coins", {}),
    "cut": ("cut", {}),
    "fixed": ("fixed", {}),
    "turns": ("turns", {}),
    "whole turns": ("whole turns", {}),
    "buffer": ("buffer", {}),
    "few": ("apart", {}),
    "coins that time tells": ("coins", HOSTS["coins"]),
    "weights": ("everybody", OTHERS["weights"]),
    "an encoding": ("everybody", OTHERS["quantized"]),
    "add-or-remove-one": ("everybody", RELATIONS["add-or-remove-one"]),
    "correlated": ("seen", NOISES["banded"]),
    "a cap": ("seen", OTHERS["cap of 2"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("law", "options"), SUMS.values(), ids=SUMS)
def test_secure_sums_run_with_what_is_accepted(tmp_path: Path, law: str, options: Options) -> None:
    assert attempt(law, law, options | {"secure_sum": SecureSum()}, tmp_path) == "ran"


@pytest.mark.parametrize(("law", "options"), NO_SUMS.values(), ids=NO_SUMS)
def test_secure_sums_refuse_the_rest_where_it_is_made(
    tmp_path: Path, law: str, options: Options
) -> None:
    assert attempt(law, law, options | {"secure_sum": SecureSum()}, tmp_path) == "refused"


def test_a_cohort_that_rests_is_refused_where_each_unit_would_need_a_price_of_its_own() -> None:
    law = VisibleSampling(cohort=10, separation=2)
    fields: Options = {"rounds": ROUNDS, "num_clients": 40, "sampling": law, "clipping_norm": 1.0}
    budget = PrivacyBudget(epsilon=90.0, delta=DELTA)
    assert flat_plan(budget, **fields).charged_rounds == 2
    # Some would be in the rounds with the least noise, and all would be charged for the first.
    with pytest.raises(ValueError, match="use a constant schedule, got linear"):
        flat_plan(budget, **fields, **NOISES["falling"])
    # No node would know that another round was too soon.
    with pytest.raises(ValueError, match="leave separation out, got 2"):
        flat_plan(budget, **fields, secure_sum=SecureSum())
    with pytest.raises(ValueError, match="a correlated plan has cohorts by"):
        flat_plan(budget, **fields | {"sampling": LAWS["buffer"]}, **NOISES["banded"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    [
        # Slow to calibrate by Renyi DP, where "cut" stands for laws that are no coin of a unit's.
        pytest.param(law, marks=[pytest.mark.nightly] if law == "fixed" else [])
        for law in LAWS
        if law not in TURNS
    ],
)
def test_a_budget_in_one_line_pays_for_all_rounds(tmp_path: Path, law: str) -> None:
    rule = LAWS[law]
    of_law: Options = {}
    if law == "utility of records":
        of_law = {"unit": "record"} | RELATIONS["replace-one"]
    strategy = (DPFedBuff if "buffer" in law else DPFedAvg).with_budget(
        epsilon=2.0,  # at 8 the distributions of cut cohorts take four times as long
        delta=DELTA,
        rounds=ROUNDS,
        num_clients=N,
        clipping_norm=0.5,
        ledger=tmp_path / "ledger.db",
        selection=selection_of(rule) if isinstance(rule, Sampling) else rule(),
        contribution_check=False,
        **of_law,
    )
    ran = Ran(strategy.plan)
    grid = LocalGrid(ran.watched(nodes_of(strategy.plan, tmp_path)), N)
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=ROUNDS, timeout=20.0)
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == ROUNDS
        assert 1.875 < ledger.epsilon().best <= 2.0


@pytest.mark.parametrize("kind", ["central", "correlated", "buffered", "local"])
def test_a_loop_with_nothing_around_it_charges_all_that_is_planned(
    kind: str, tmp_path: Path
) -> None:
    promised(PLANS[kind](), tmp_path)
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == ledger.plan.rounds == 2
        assert ledger.history == ledger.plan.history
