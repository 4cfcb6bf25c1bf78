"""What Flower's own differential privacy does in cases that happen, beside fl-dp.

Both run in this process, on the same updates. Flower's wrappers are used as documented; nothing is
patched. The numbers are measured, none is asserted here: each row names the test that holds our
side.

    python benchmarks/stock_flower.py  # prints a Markdown table
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from importlib.metadata import version
from operator import or_, xor
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import LocalDpMod
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)

# What its secure aggregation calls for the keys of a pair.
from flwr.supercore.primitives.asymmetric import generate_key_pairs

# An internal of Flower's: outside of a run, messages have nobody to come from.
from flwr.supercore.task_identity import TaskIdentity

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.accounting.calibration import calibrate_client_scheme
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, SecureRandom
from fl_dp.plan import CentralPlan
from fl_dp.secagg.client import pair_seed
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.strategies import DPFedAvg

Arrays = dict[str, np.ndarray]
Reply = Callable[[Message, int], Message | None]
LITTLE = 1e-3  # a noise multiplier that leaves the sums readable
SIZE = 20_000  # coordinates where noise is measured: its deviation to 0.5 %
MANY = 2_000_000  # to 0.05 %
PATIENCE = 2.0  # seconds for those who never reply


class LocalGrid(Grid):
    """Nodes 0, 1, ... in this process; `answer` returns None for a node that never replies.

    Queries get plain Flower clients' answer, who know none, unless the nodes run an app.
    """

    def __init__(self, answer: Reply, num_nodes: int, *, runs_an_app: bool = False) -> None:
        """Connect `num_nodes` nodes."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.answer = answer
        self.num_nodes = num_nodes
        self.runs_an_app = runs_an_app
        self._ids = itertools.count()
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Do nothing."""

    @property
    def run(self) -> Any:
        """There is none."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not used."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return 1, 2, ...: one more than the numbers that `answer` gets."""
        return range(1, self.num_nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer at once."""
        pushed = []
        for message in messages:
            name = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            if message.metadata.message_type == MessageType.TRAIN or self.runs_an_app:
                reply = self.answer(message, message.metadata.dst_node_id - 1)
            else:
                reason = "No query function registered"
                unknown = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
                reply = Message(unknown, reply_to=message)
            if reply is not None:
                self._replies[name] = reply
            pushed.append(name)
        return pushed

    def pull_messages(  # type: ignore[override]  # as in Flower 1.43, and before
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        """Hand over what was answered; Flower before 1.43 says `message_ids`."""
        wanted = reply_to_message_ids or message_ids or ()
        return [self._replies.pop(name) for name in wanted if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Do both."""
        return self.pull_messages(self.push_messages(messages))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row.

    Attributes:
        name: What happens, and what should come of it.
        stock: Measures Flower's own.
        ours: Measures fl-dp.
        test: Our test that holds it.
    """

    name: str
    stock: Callable[[], str]
    ours: Callable[[], str]
    test: str


def arrays(**values: Any) -> ArrayRecord:
    """Return a model."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def numbers(record: ArrayRecord) -> Arrays:
    """Return a model's arrays."""
    return {name: array.numpy() for name, array in record.items()}


def replied(message: Message, model: Arrays, **metrics: float) -> Message:
    """Reply as a Flower client does."""
    metric_record = MetricRecord({"num-examples": 1, **metrics})
    return Message(
        RecordDict({"arrays": arrays(**model), "metrics": metric_record}), reply_to=message
    )


def sending(update: Callable[[int], Arrays | None], **metrics: Callable[[int], float]) -> Reply:
    """Nodes that add their own update to the model; None never replies."""

    def answer(message: Message, node: int) -> Message | None:
        change = update(node)
        if change is None:
            return None
        (model,) = message.content.array_records.values()
        moved = {
            name: np.asarray(value + change.get(name, 0), value.dtype)
            for name, value in numbers(model).items()
        }
        return replied(message, moved, **{name: of(node) for name, of in metrics.items()})

    return answer


def first(value: float, size: int = 4) -> Arrays:
    """An update along the first coordinate."""
    change = np.zeros(size)
    change[0] = value
    return {"w": change}


def fedavg(num_nodes: int, **changes: Any) -> FedAvg:
    """FedAvg over all nodes, without evaluation."""
    fields: dict[str, Any] = dict(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=num_nodes,
        min_available_nodes=num_nodes,
    )
    return FedAvg(**(fields | changes))


def fixed(num_nodes: int, *, noise: float = LITTLE, norm: float = 1.0, **more: Any) -> Strategy:
    """Flower's server-side fixed clipping."""
    inner = more.pop("inner", None) or fedavg(num_nodes)
    return DifferentialPrivacyServerSideFixedClipping(inner, noise, norm, num_nodes, **more)


def adaptive(num_nodes: int, *, noise: float, norm: float) -> Any:
    """Flower's server-side adaptive clipping at its default quantile and learning rate."""
    return DifferentialPrivacyServerSideAdaptiveClipping(
        fedavg(num_nodes), noise, num_nodes, initial_clipping_norm=norm
    )


def stock(
    strategy: Strategy, answer: Reply, num_nodes: int, model: ArrayRecord, rounds: int = 1
) -> Result:
    """Train with a strategy of Flower's."""
    return strategy.start(LocalGrid(answer, num_nodes), model, num_rounds=rounds)


def plan_for(num_nodes: int, **changes: Any) -> CentralPlan:
    """A plan of everybody in every round, with little noise."""
    fields: dict[str, Any] = dict(
        budget=PrivacyBudget(epsilon=1e9, delta=1e-6),
        rounds=1,
        sampling=PoissonSampling(sampling_rate=1.0),
        noise_multiplier=LITTLE,
        clipping=FixedClipping(norm=1.0),
        num_clients=num_nodes,
    )
    return CentralPlan(**(fields | changes))


def spent_plan(num_nodes: int, **changes: Any) -> CentralPlan:
    """A plan at noise multiplier 1 whose budget is what it spends."""
    budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    return plan_for(num_nodes, budget=budget, noise_multiplier=1.0, **changes).with_spent_budget()


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training of ours; `spent` is the number of rounds that the ledger has on disk."""

    result: Result
    strategy: DPFedAvg
    spent: int


def ours(
    answer: Reply,
    num_nodes: int,
    model: ArrayRecord,
    *,
    plan: CentralPlan | None = None,
    rounds: int = 1,
    grid: LocalGrid | None = None,
    timeout: float = 60.0,
    **options: Any,
) -> Trained:
    """Train with ours, with a ledger in a folder of its own."""
    plan = plan if plan is not None else plan_for(num_nodes, rounds=rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        PrivacyLedger.open(Path(folder) / "ledger.db", plan) as ledger,
    ):
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        grid = grid if grid is not None else LocalGrid(answer, num_nodes)
        result = strategy.start(grid, model, num_rounds=rounds, timeout=timeout, **options)
        return Trained(result=result, strategy=strategy, spent=ledger.rounds_spent)


def moved(result: Result, name: str = "w") -> float:
    """The first number of an array."""
    return float(numbers(result.arrays)[name].reshape(-1)[0])


def raised(run: Callable[[], object]) -> str:
    """What is raised, as a short text."""
    try:
        run()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def weights4() -> ArrayRecord:
    """A model of four zeros."""
    return arrays(w=np.zeros(4))


# --- Clipping that follows a quantile -------------------------------------------------------------

NORMS = (0.1, 0.2, 0.4, 0.7, 0.98, 1.02, 1.4, 2.5, 5.0, 10.0)  # their median is 1
STARTS = (0.5, 2.0)


def stock_norm() -> str:
    """Where the norm is after 60 rounds."""
    ends = []
    for start in STARTS:
        strategy = adaptive(10, noise=0.0, norm=start)
        stock(strategy, sending(lambda node: first(NORMS[node])), 10, weights4(), rounds=60)
        ends.append(f"from {start:g}: {strategy.clipping_norm:.2g}")
    return ", ".join(ends)


def our_norm() -> str:
    """Where ours is, with noise on the bits."""
    ends = []
    for start in STARTS:
        clipping = AdaptiveClipping(norm=start)
        plan = plan_for(10, rounds=60, clipping=clipping, scalar_noise_std=0.5)
        done = ours(sending(lambda node: first(NORMS[node])), 10, weights4(), plan=plan, rounds=60)
        assert done.strategy.clipping_norms is not None
        ends.append(f"from {start:g}: {done.strategy.clipping_norms[0]:.2g}")
    return ", ".join(ends)


def long_updates(node: int) -> Arrays:
    """An update that every norm clips; all but its first coordinate is noise afterwards."""
    return first(100.0, SIZE)


def stock_adaptive_noise() -> str:
    """The noise over what the norm that clients were clipped with needs."""
    strategy = adaptive(100, noise=1.0, norm=1.0)
    result = stock(strategy, sending(long_updates), 100, arrays(w=np.zeros(SIZE)))
    std = float(np.std(numbers(result.arrays)["w"][1:])) * 100
    return f"{std / strategy.noise_multiplier:.2f} times"


def our_adaptive_noise() -> str:
    """Ours, in the first round of clients that know no rehearsal, and in the second."""
    clipping = AdaptiveClipping(norm=1.0)
    # Little noise: the norm of a round is read off its model, to a thousandth.
    plan = plan_for(100, rounds=2, noise_multiplier=0.1, clipping=clipping)
    models: list[np.ndarray] = []

    def keep(_: int, model: ArrayRecord) -> None:
        models.append(numbers(model)["w"])

    model = arrays(w=np.zeros(SIZE))
    ours(sending(long_updates), 100, model, plan=plan, rounds=2, evaluate_fn=keep)
    needed = plan.bundle(0.1).updates.noise_multiplier
    ratios = []
    for moves in np.diff(models, axis=0):
        # All updates lie along the first coordinate, so that their mean is as long as the norm.
        std = float(np.std(moves[1:])) * plan.denominator
        ratios.append(std / float(moves[0]) / needed)
    return f"{ratios[0]:.2f} times in the first round, {ratios[1]:.2f} in the second"


# --- What one client can move ---------------------------------------------------------------------


def effective(move: float, num_nodes: int) -> str:
    """The multiplier that noise of C / num_nodes amounts to."""
    return f"one client moves the mean by {move:.3f} C: multiplier {1.0 / num_nodes / move:.2f}"


def one_of(num_nodes: int) -> Callable[[int], Arrays]:
    """Updates of which only the first node's is of any size."""
    return lambda node: first(1.0 if node == 0 else 1e-9)


def heavy() -> Reply:
    """Ten nodes of which the first claims 1000 records."""
    inner = sending(one_of(10))

    def answer(message: Message, node: int) -> Message | None:
        reply = inner(message, node)
        assert reply is not None
        reply.content["metrics"] = MetricRecord({"num-examples": 1000 if node == 0 else 1})
        return reply

    return answer


def few() -> Reply:
    """Ten nodes of which two reply."""
    return sending(lambda node: one_of(10)(node) if node < 2 else None)


def config_for(
    num_nodes: int,
    sampling: SamplingMethod = SamplingMethod.NO_AMPLIFICATION,
    max_epsilon: float = 1e9,
) -> PrivacyConfig:
    """An accountant's settings."""
    return PrivacyConfig(
        target_delta=1e-5,
        population_size=num_nodes,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=sampling,
        max_epsilon=max_epsilon,
    )


def stock_missing() -> str:
    """What two of ten replies do, without and with an accountant."""
    plain = effective(moved(stock(fixed(10), few(), 10, weights4())), 10)
    accounted = fixed(10, accountant=RdpAccountant(config_for(10)))
    return (
        f"{plain}. With an accountant: {outcome(lambda: stock(accounted, few(), 10, weights4()))}"
    )


def our_missing() -> str:
    """What they do in ours."""
    return effective(moved(ours(few(), 10, weights4(), timeout=PATIENCE).result), 10)


# --- Odd updates ----------------------------------------------------------------------------------


def honest_but(change: Arrays) -> Reply:
    """Ten nodes that move 0.25, the first of which sends something else."""
    return sending(lambda node: change if node == 0 else first(0.25))


def outcome(run: Callable[[], Result]) -> str:
    """How a round ended."""
    try:
        result = run()
    except Exception as error:
        return f"{type(error).__name__}: the training is lost"
    if not result.arrays:
        return "the round is dropped"
    return f"the model moves by {moved(result):.3f}"


def both(updates: Sequence[Arrays], run: Callable[[Reply], Result]) -> str:
    """Outcomes of several odd updates."""
    return "; ".join(outcome(partial(run, honest_but(change))) for change in updates)


NOT_FINITE = (first(math.nan), first(math.inf))


def scalar_model() -> ArrayRecord:
    """A model with a 0-d parameter."""
    return arrays(w=np.zeros(3), scale=np.float64(0.0))


def scalar_update(_: int) -> Arrays:
    """An update that moves the 0-d parameter by three norms."""
    return {"scale": np.array(3.0)}


def scalar_move(result: Result) -> str:
    """How far the 0-d parameter went."""
    return f"moves by {moved(result, 'scale'):.2f}"


def counting_model(count: Any) -> ArrayRecord:
    """A model with an integer buffer, as BatchNorm has."""
    return arrays(w=np.zeros(4, np.float32), batches=count)


COUNTERS = (np.int64(7), np.array([7]))


def counting_update(_: int) -> Arrays:
    """An update of twice the norm that counts on."""
    return first(2.0) | {"batches": np.array(10)}


def counting(run: Callable[[Reply, ArrayRecord], Result]) -> str:
    """Outcomes for a counter of no dimension, as in torch, and of one."""
    answer = sending(counting_update)
    outcomes = [outcome(partial(run, answer, counting_model(count))) for count in COUNTERS]
    return "; ".join(outcomes)


def turned() -> Reply:
    """Ten nodes whose replies have their arrays in another order."""

    def answer(message: Message, node: int) -> Message:
        (model,) = message.content.array_records.values()
        got = numbers(model)
        return replied(message, {"b": got["b"] - 0.5, "a": got["a"] + 0.25})

    return answer


def two_layers() -> ArrayRecord:
    """A model of two layers of one shape."""
    return arrays(a=np.zeros(2), b=np.full(2, 5.0))


def layers(result: Result) -> str:
    """Where they are."""
    return f"a = {moved(result, 'a'):.2f}, b = {moved(result, 'b'):.2f}"


def one_fails() -> Reply:
    """Ten nodes of which the first reports an error."""
    inner = sending(lambda _: first(0.25))

    def answer(message: Message, node: int) -> Message | None:
        if node == 0:
            return Message(Error(code=2, reason="out of memory"), reply_to=message)
        return inner(message, node)

    return answer


# --- Rosters, metrics, budgets --------------------------------------------------------------------


def stock_roster() -> str:
    """What an accounted training does when a node leaves after the first round."""
    grid = LocalGrid(sending(lambda _: first(0.25)), 10)
    strategy = fixed(
        10,
        noise=1.0,
        accountant=RdpAccountant(config_for(10)),
        inner=fedavg(10, min_train_nodes=1, min_available_nodes=1),
    )

    def leave(server_round: int, _: ArrayRecord) -> None:
        grid.num_nodes = 10 - server_round

    what = raised(lambda: strategy.start(grid, weights4(), num_rounds=3, evaluate_fn=leave))
    return f"{what} in round 2: the training is lost"


def our_roster() -> str:
    """What ours does."""
    grid = LocalGrid(sending(lambda _: first(0.25)), 10)

    def leave(server_round: int, _: ArrayRecord) -> None:
        grid.num_nodes = 10 - server_round

    done = ours(grid.answer, 10, weights4(), rounds=3, grid=grid, evaluate_fn=leave)
    return f"{done.strategy.rounds_completed} of 3 rounds, {done.spent} charged"


def telling() -> Reply:
    """Ten nodes, one of which has a loss that stands out."""
    return sending(lambda _: first(0.25), loss=lambda node: 100.0 if node == 0 else 0.0)


def told(result: Result) -> str:
    """Which metrics came out."""
    metrics = result.train_metrics_clientapp.get(1)
    return "none" if not metrics else f"loss {metrics['loss']:g}, without noise"


def stock_exhausted() -> str:
    """What a training does whose third round would not fit."""
    accountant = RdpAccountant(config_for(10, max_epsilon=9.0))
    strategy = fixed(10, noise=1.0, accountant=accountant)
    what = raised(lambda: stock(strategy, sending(lambda _: first(0.25)), 10, weights4(), rounds=5))
    return f"{what} leaves start() after {accountant.num_releases} rounds: no result"


def our_exhausted() -> str:
    """What ours does when two of five rounds were lost in a crash."""
    plan = spent_plan(10, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with PrivacyLedger.open(path, plan) as ledger:
            for number in (1, 2):
                ledger.reserve(round=number)
        with PrivacyLedger.open(path, plan) as ledger:
            strategy = DPFedAvg(plan=plan, ledger=ledger)
            grid = LocalGrid(sending(lambda _: first(0.25)), 10)
            result = strategy.start(grid, weights4(), num_rounds=5)
    held = "the last private model" if moved(result) != 0.0 else "no model"
    return f"start() returns {held} after {strategy.rounds_completed} rounds"


def stock_question() -> str:
    """How long the accountant takes to say whether round 101 fits."""
    accountant = RdpAccountant(config_for(1000, SamplingMethod.POISSON))
    for _ in range(100):
        accountant.compose(GaussianPrivacyEvent(1.0, 100, 1000))
    start = time.process_time()
    accountant.would_exceed(GaussianPrivacyEvent(1.0, 100, 1000))
    return f"{time.process_time() - start:.1f} s of a processor"


def our_question() -> str:
    """How long ours takes."""
    plan = spent_plan(1000, rounds=200, sampling=PoissonSampling(sampling_rate=0.1))
    with (
        tempfile.TemporaryDirectory() as folder,
        PrivacyLedger.open(Path(folder) / "ledger.db", plan) as ledger,
    ):
        for number in range(1, 101):
            ledger.reserve(round=number)
        start = time.process_time()
        ledger.would_exceed(plan.event_of(101))
        return f"{1e3 * (time.process_time() - start):.2f} ms"


def stock_restart() -> str:
    """What is spent after a restart."""
    before = RdpAccountant(config_for(10))
    stock(fixed(10, noise=1.0, accountant=before), honest_but(first(0.25)), 10, weights4(), 5)
    after = RdpAccountant(config_for(10))
    return (
        f"epsilon {before.get_epsilon(1e-5):.2f} before, {after.get_epsilon(1e-5):.2f} after, "
        "unless the user has saved and loaded its state"
    )


def our_restart() -> str:
    """Ours, which was stopped in the middle of round 5."""
    plan = spent_plan(10, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with PrivacyLedger.open(path, plan) as ledger:
            for number in range(1, 6):
                ledger.reserve(round=number)
            before = ledger.epsilon().best
        with PrivacyLedger.open(path, plan) as ledger:
            after = ledger.epsilon().best
    return f"epsilon {before:.2f} before, {after:.2f} after"


# --- Noise ----------------------------------------------------------------------------------------


def true_epsilons(noise_multiplier: float, claimed: float) -> str:
    """What noise over the clipping norm really gives, once and ten times."""
    once = gaussian_epsilon(noise_multiplier, 1e-5)
    replaced = gaussian_epsilon(noise_multiplier / 2.0, 1e-5)
    ten = gaussian_epsilon(noise_multiplier / math.sqrt(10.0), 1e-5)
    return (
        f"claimed {claimed:g}, true {once:.2f} (zero-out) or {replaced:.2f} (replace-one) "
        f"for one message, {ten:.1f} after ten"
    )


def stock_local() -> str:
    """What LocalDpMod adds for a claim of 10, with the clipping norm as its sensitivity."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    content = RecordDict({"arrays": arrays(w=np.zeros(MANY))})
    message = Message(content, dst_node_id=1, message_type="train")
    context = Context(1, 1, {}, RecordDict(), {})
    client = sending(lambda _: first(1.0, MANY))
    reply = mod(message, context, lambda asked, _: answer(client, asked))
    (sent,) = reply.content.array_records.values()
    return true_epsilons(float(np.std(numbers(sent)["w"][1:])), 10.0)


def answer(client: Reply, asked: Message) -> Message:
    """The first node's reply, which always comes."""
    reply = client(asked, 0)
    assert reply is not None
    return reply


def our_local() -> str:
    """What our scheme adds for the same claim over ten messages."""
    scheme = calibrate_client_scheme("gaussian", 10.0, 1e-5, participations=10, clipping_norm=1.0)
    sent = scheme.privatize(first(1.0, MANY)["w"], SecureRandom())
    std = float(np.std(sent[1:]))
    ten = gaussian_epsilon(std / math.sqrt(10.0), 1e-5)
    return f"claimed 10 for ten messages, true {ten:.2f} by what was measured"


def equal_coordinates(train: Callable[[], Result]) -> str:
    """In how many coordinates two trainings agree, each after seeding numpy."""
    models = []
    for _ in range(2):
        np.random.seed(42)  # as a script does for a result that repeats
        models.append(numbers(train().arrays)["w"])
    return f"{int(np.sum(models[0] == models[1]))} of {SIZE} coordinates are equal"


def stock_seeded() -> str:
    """How far Flower's noise repeats."""
    model = arrays(w=np.zeros(SIZE))
    return equal_coordinates(lambda: stock(fixed(10, noise=1.0), sending(idle), 10, model))


def our_seeded() -> str:
    """How far ours does."""
    model = arrays(w=np.zeros(SIZE))
    plan = plan_for(10, noise_multiplier=1.0)
    return equal_coordinates(lambda: ours(sending(idle), 10, model, plan=plan).result)


def idle(_: int) -> Arrays:
    """An update that is not quite zero, which Flower's clipping does not survive."""
    return first(1e-9, SIZE)


def constant(change: np.ndarray, _: int) -> Arrays:
    """The same update for every node."""
    return {"w": change}


def telling_share(values: np.ndarray, grid: float) -> float:
    """The share of values near 0 that lie off a grid."""
    near = values[np.abs(values) < 0.5].astype(np.float64) / grid
    return float(np.mean(near != np.round(near)))


def stock_float() -> str:
    """How many outputs tell that they hide a 0 and not a 1."""
    shares = []
    for hidden in (0.0, 1.0):
        change = np.full(SIZE, hidden, np.float32)
        change[0] = 1e-9
        result = stock(
            fixed(1, noise=1e-3, norm=1e3),
            sending(partial(constant, change)),
            1,
            arrays(w=np.zeros(SIZE, np.float32)),
        )
        shares.append(telling_share(numbers(result.arrays)["w"][1:], 2.0**-24))
    assert shares[1] == 0.0  # what hides a 1 never lies there
    return f"{100 * shares[0]:.0f} % of the values below 1/2 that hide a 0 can't hide a 1"


def our_float() -> str:
    """Ours: the grid is the same whatever it hides."""
    shares = []
    plan = plan_for(1, noise_multiplier=1e-3, clipping=FixedClipping(norm=1e3))
    for hidden in (0.0, 1.0):
        change = np.full(SIZE, hidden)
        done = ours(
            sending(partial(constant, change)),
            1,
            arrays(w=np.zeros(SIZE)),
            plan=plan,
        )
        shares.append(
            telling_share(numbers(done.result.arrays)["w"], plan.bundle(1e-3).updates.grid)
        )
    return f"{100 * max(shares):.0f} %: all values lie on one public grid"


# --- Secure aggregation ---------------------------------------------------------------------------


def varying_bits(seeds: Sequence[int]) -> int:
    """How many bits are not the same in all seeds."""
    zeros = ones = 0
    for seed in seeds:
        zeros |= seeds[0] & ~seed
        ones |= ~seeds[0] & seed
    return (zeros | ones).bit_count()


def folded(secret: bytes) -> int:
    """The seed that Flower's generator makes of a secret: the XOR of its 32-bit words."""
    words = (secret[at : at + 4] for at in range(0, len(secret), 4))
    return reduce(xor, (int.from_bytes(word, "little") for word in words))


def stock_seeds() -> str:
    """The bits of Flower's pair seeds, and whether a curious server reads an update.

    All keys are made here. Of two clients the server has a masked vector, less the client's own
    mask, which it learns in every round. It tries seeds until the values look like an update. To
    be quick, it is given 12 of their bits.
    """
    pairs = [(generate_key_pairs(), generate_key_pairs()) for _ in range(1000)]
    secrets = [generate_shared_key(mine, theirs) for (mine, _), (_, theirs) in pairs]
    seeds = [folded(secret) for secret in secrets]
    varying = varying_bits(seeds)
    every = reduce(or_, (seed ^ seeds[0] for seed in seeds))
    places = [bit for bit in range(32) if every >> bit & 1]
    update = np.arange(8) * 500_000  # quantized, below 2^22
    (mask,) = pseudo_rand_gen(secrets[0], 1 << 32, [(8,)])
    masked = (update + mask) % (1 << 32)
    given = seeds[0] & ~sum(1 << bit for bit in places[12:])
    for guess in range(1 << (len(places) - 12)):
        seed = given
        for at, bit in enumerate(places[12:]):
            seed |= (guess >> at & 1) << bit
        (tried,) = pseudo_rand_gen(seed.to_bytes(4, "little"), 1 << 32, [(8,)])
        values = (masked - tried) % (1 << 32)
        if (values < 1 << 22).all():
            outcome = "the update is read" if (values == update).all() else "another is read"
            return f"{varying} bits vary: {outcome} after {guess + 1} tries"
    return f"{varying} bits vary: nothing is read"


def our_seeds() -> str:
    """The bits of ours."""
    seeds = [
        pair_seed(RunKey.generate().root(RunKey.generate().public, 0, 1), bytes(32), 0, 1)
        for _ in range(1000)
    ]
    return f"{varying_bits([int.from_bytes(seed) for seed in seeds])} bits vary"


STRATEGY = "tests/strategies/test_dp_fedavg.py"
CASES = (
    Case(
        name="Adaptive clipping, median norm 1, 60 rounds: the norm should go to 1",
        stock=stock_norm,
        ours=our_norm,
        test="tests/strategies/test_adaptive_clipping.py::"
        "test_the_clipping_norm_finds_the_quantile_from_either_side",
    ),
    Case(
        name="Noise of a round whose clipping norm then changes, over what the norm that clients "
        "used needs",
        stock=stock_adaptive_noise,
        ours=our_adaptive_noise,
        test="tests/strategies/test_adaptive_clipping.py::"
        "test_the_noise_of_a_round_is_for_the_norm_that_its_clients_were_clipped_with",
    ),
    Case(
        name="Multiplier 1; one of ten clients claims 1000 records",
        stock=lambda: effective(moved(stock(fixed(10), heavy(), 10, weights4())), 10),
        ours=lambda: effective(moved(ours(heavy(), 10, weights4()).result), 10),
        test=f"{STRATEGY}::test_a_client_that_claims_many_records_counts_once",
    ),
    Case(
        name="Multiplier 1; two of ten clients reply",
        stock=stock_missing,
        ours=our_missing,
        test=f"{STRATEGY}::test_missing_replies_change_neither_denominator_nor_noise",
    ),
    Case(
        name="One of ten updates is zero (nine move 0.25)",
        stock=lambda: both([first(0.0)], lambda a: stock(fixed(10), a, 10, weights4())),
        ours=lambda: both([first(0.0)], lambda a: ours(a, 10, weights4()).result),
        test=f"{STRATEGY}::test_a_zero_or_non_finite_update_contributes_zero",
    ),
    Case(
        name="One of ten updates has a NaN; an infinity",
        stock=lambda: both(NOT_FINITE, lambda a: stock(fixed(10), a, 10, weights4())),
        ours=lambda: both(NOT_FINITE, lambda a: ours(a, 10, weights4()).result),
        test=f"{STRATEGY}::test_a_zero_or_non_finite_update_contributes_zero",
    ),
    Case(
        name="A 0-d parameter that all clients move by 3 at clipping norm 1",
        stock=lambda: scalar_move(stock(fixed(10), sending(scalar_update), 10, scalar_model())),
        ours=lambda: scalar_move(ours(sending(scalar_update), 10, scalar_model()).result),
        test=f"{STRATEGY}::test_zero_dimensional_parameters_are_clipped_and_noised_like_any_other",
    ),
    Case(
        name="Updates of twice the clipping norm 1, beside an integer counter that goes up by 10: "
        "0-d; 1-d",
        stock=lambda: counting(lambda answer, model: stock(fixed(10), answer, 10, model)),
        ours=lambda: counting(lambda answer, model: ours(answer, 10, model).result),
        test=f"{STRATEGY}::test_integer_buffers_stay_with_the_server",
    ),
    Case(
        name="Replies with their arrays in another order; a = 0 + 0.25, b = 5 - 0.5",
        stock=lambda: layers(stock(fixed(10), turned(), 10, two_layers())),
        ours=lambda: layers(ours(turned(), 10, two_layers()).result),
        test=f"{STRATEGY}::test_arrays_are_matched_by_name_not_by_place",
    ),
    Case(
        name="One of ten clients reports an error (nine move 0.25)",
        stock=lambda: outcome(lambda: stock(fixed(10), one_fails(), 10, weights4())),
        ours=lambda: outcome(lambda: ours(one_fails(), 10, weights4()).result),
        test=f"{STRATEGY}::"
        "test_one_malformed_or_failed_reply_contributes_zero_and_is_logged_once_without_data",
    ),
    Case(
        name="A node leaves after the first of three rounds, with an accountant",
        stock=stock_roster,
        ours=our_roster,
        test="tests/strategies/test_selection.py::"
        "test_poisson_rounds_go_on_when_nodes_join_or_leave",
    ),
    Case(
        name="Training metrics: one client's loss is 100, nine have 0",
        stock=lambda: told(stock(fixed(10), telling(), 10, weights4())),
        ours=lambda: told(ours(telling(), 10, weights4()).result),
        test=f"{STRATEGY}::test_no_cohort_size_and_no_client_metric_leaves_the_strategy",
    ),
    Case(
        name="The budget ends before the rounds do",
        stock=stock_exhausted,
        ours=our_exhausted,
        test=f"{STRATEGY}::test_the_budget_ends_training_normally_with_the_last_private_model",
    ),
    Case(
        name="Does round 101 still fit? Poisson sample, rate 0.1",
        stock=stock_question,
        ours=our_question,
        test="tests/ledger/test_ledger_features.py::"
        "test_no_distribution_is_computed_at_round_two_thousand",
    ),
    Case(
        name="A restart after five rounds of multiplier 1, delta 1e-5",
        stock=stock_restart,
        ours=our_restart,
        test="tests/ledger/test_ledger.py::test_what_was_reserved_stays_spent_after_a_restart",
    ),
    Case(
        name="Noise at the client for epsilon 10, delta 1e-5",
        stock=stock_local,
        ours=our_local,
        test="tests/accounting/test_client_schemes.py::"
        "test_a_scheme_spends_the_target_and_nearly_all_of_it",
    ),
    Case(
        name="Two trainings, `np.random.seed(42)` before each",
        stock=stock_seeded,
        ours=our_seeded,
        test=f"{STRATEGY}::test_seeds_of_the_process_repeat_no_noise",
    ),
    Case(
        name="A coordinate that is 0 or 1, under noise of deviation 1",
        stock=stock_float,
        ours=our_float,
        test="tests/mechanisms/test_gaussian.py::"
        "test_no_released_value_is_off_the_grid_whatever_it_hides",
    ),
    Case(
        name="Secure aggregation: seeds of the mask of a pair, 1000 pairs; 12 of their bits given, "
        "the rest searched",
        stock=stock_seeds,
        ours=our_seeds,
        test="tests/secagg/test_masks.py::test_every_bit_of_a_pair_seed_varies",
    ),
)


# What is measured, in Flower's package.
FILES = (
    "clientapp/mod/*dp*.py",
    "common/secure_aggregation/**/*.py",
    "serverapp/strategy/dp_*.py",
    "serverapp/strategy/fedavg.py",
    "supercore/differential_privacy*.py",
    "supercore/privacy_accounting/*.py",
)


def digest_of_flower() -> str:
    """The first 16 digits of a SHA-256 over those files: versions that share it are one."""
    package = Path(flwr.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(file for pattern in FILES for file in package.glob(pattern)):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def link(case: Case) -> str:
    """The cell that links a case's test."""
    return f"[test](../{case.test.replace('::', '#')})"


def main() -> None:
    """Print the table."""
    logging.disable(logging.CRITICAL)
    np.seterr(all="ignore")
    print(f"| case | flwr {flwr.__version__} | fl-dp {version('fl-dp')} | held by |")
    print("|---|---|---|---|")
    for case in CASES:
        print(f"| {case.name} | {case.stock()} | {case.ours()} | {link(case)} |", flush=True)
    print(f"\nMeasured on {datetime.now(UTC).date()}; Flower's files: {digest_of_flower()}.")


if __name__ == "__main__":
    main()
