"""Records across silos: masked sums of clipped gradients are DP-SGD on the union of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fl_dp.strategies.node_answers import RehearsalFailed
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvgM, Strategy
from laws import ALARM
from local_grid import FIRST_NODE, LocalGrid
from numpy.typing import NDArray
from owned_clock import answer_at_once
from scipy import stats
from secure_nodes import Adds, SecureNodes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from worked_here import work_here

from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.clients import NodeRecords, numpy_client_app, record_sums
from fl_dp.ledger import NodeLedger, PrivacyLedger
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.plan import DistributedRecordsPlan, Plan, SecureSum
from fl_dp.statement import privacy_statement, statement_markdown
from fl_dp.strategies import DPFedAvg

SIZES = (7, 0, 12, 1, 5)  # of silos: none, and a single record, are among them
FEATURES, HIDDEN, CLASSES = 4, 200, 3
NORM, RATE = 0.8, 0.5

Data = tuple[Tensor, Tensor]


def silos_of(sizes: Sequence[int], *, seed: int = 0) -> list[Data]:
    """Records of each silo; the union is the same however it is divided."""
    generator = torch.Generator().manual_seed(seed)
    features = 2.0 * torch.randn(sum(sizes), FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (sum(sizes),), generator=generator)
    ends = np.cumsum(sizes).tolist()
    starts = [0, *ends[:-1]]
    return [(features[a:b], labels[a:b]) for a, b in zip(starts, ends, strict=True)]


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


class Silos(SecureNodes):
    """Nodes whose units are their records."""

    def __init__(self, folder: Path, silos: Sequence[Data], **options: Any) -> None:
        super().__init__(folder, [[] for _ in silos], **options)
        self.silos = silos

    def app(self) -> ClientApp:
        return numpy_client_app(
            records=NodeRecords(
                model_fn=lambda context, config: model_of(),
                loader_fn=lambda context, config: DataLoader(
                    TensorDataset(*self.silos[context.node_id - FIRST_NODE])
                ),
            )
        )


def plan_of(silos: Sequence[Data], *, rounds: int = 1, **given: Any) -> DistributedRecordsPlan:
    options: dict[str, Any] = {
        "rounds": rounds,
        "num_clients": sum(len(labels) for _, labels in silos),
        "nodes": len(silos),
        "units_per_node": sum(len(labels) for _, labels in silos),
        "unit": "record",
        "coins_at_nodes": True,
        "sampling_rate": RATE,
        "clipping_norm": NORM,
        "secure_sum": SecureSum(reply_after=600.0),
        "contribution_check": False,
    }
    multiplier = given.pop("noise_multiplier", 2.0)
    plan = noised_plan(multiplier, delta=1e-3, **options | given)
    assert isinstance(plan, DistributedRecordsPlan)
    return plan


def trained(
    folder: Path,
    silos: Sequence[Data],
    plan: Plan,
    *,
    rounds: int = 1,
    strategy: Strategy | None = None,
    nodes: Silos | None = None,
    **options: Any,
) -> tuple[NDArray[np.float64], DPFedAvg]:
    """The model after some steps, flattened, and the strategy."""
    folder.mkdir(parents=True, exist_ok=True)
    state = model_of().state_dict()
    arrays = ArrayRecord({name: Array(each.double().numpy()) for name, each in state.items()})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        made = DPFedAvg(strategy, plan=plan, ledger=ledger, **options)
        grid = LocalGrid(nodes or Silos(folder, silos), len(silos))
        result = made.start(grid, arrays, num_rounds=rounds, timeout=5.0)
        return flat(result.arrays.to_numpy_ndarrays()), made


def flat(arrays: Sequence[Any]) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(each) for each in arrays]).astype(np.float64)


def central_step(parameters: NDArray[np.float64], data: Data, chosen: Any) -> NDArray[np.float64]:
    """The clipped gradients of the chosen records, one by one, added up."""
    module = model_of().double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters), module.parameters())
    total = np.zeros_like(parameters)
    for row in np.flatnonzero(chosen):
        module.zero_grad()
        outputs = module(data[0][[row]].double())
        loss = nn.functional.cross_entropy(outputs, data[1][[row]])
        of_arrays = torch.autograd.grad(loss, list(module.parameters()))
        gradient = flat([each.numpy() for each in of_arrays])
        total += gradient * min(1.0, NORM / float(np.linalg.norm(gradient)))
    return total


def union(silos: Sequence[Data]) -> Data:
    return torch.cat([each for each, _ in silos]), torch.cat([each for _, each in silos])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes answer when they are ready, of this process: that they do not is another test."""
    work_here(monkeypatch)
    answer_at_once(monkeypatch)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each share of noise only rounds to the grid."""
    monkeypatch.setattr(
        DiscreteGaussian, "sample_around", lambda law, centres, rng: np.rint(centres).astype(int)
    )


@pytest.fixture
def coins(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.bool_]]:
    """All coins in the order in which they are flipped: silo by silo, step by step."""
    flipped: list[NDArray[np.bool_]] = []
    rng = np.random.default_rng(3)

    class Coins:
        def bernoulli(self, rate: float, count: int) -> NDArray[np.bool_]:
            flipped.append(rng.random(count) < rate)
            return flipped[-1]

    monkeypatch.setattr(record_sums, "SecureRandom", Coins)
    return flipped


# With 32 bits a grid step is below float32's error, and the margin of clipping is 1e-5.
FINE = SecureSum(reply_after=600.0, bits=32)
GRID = 2e-5


@pytest.mark.usefixtures("no_noise")
def test_one_sum_is_one_step_of_central_dp_sgd_on_the_union(
    tmp_path: Path, coins: list[NDArray[np.bool_]]
) -> None:
    silos = silos_of(SIZES)
    plan = plan_of(silos, secure_sum=FINE)
    released, _ = trained(tmp_path, silos, plan)
    start = flat([each.detach().double().numpy() for each in model_of().parameters()])
    step = central_step(start, union(silos), np.concatenate(coins))
    assert sum(each.sum() for each in coins) > 3
    assert np.allclose(released, start - step / (RATE * 25), atol=GRID)
    assert np.abs(step / (RATE * 25)).max() > 50 * GRID  # the tolerance would show a wrong step


@pytest.mark.usefixtures("no_noise")
def test_momentum_acts_at_the_server(tmp_path: Path, coins: list[NDArray[np.bool_]]) -> None:
    silos = silos_of(SIZES)
    plan = plan_of(silos, rounds=4, secure_sum=FINE)
    strategy = FedAvgM(server_learning_rate=0.5, server_momentum=0.9)
    released, _ = trained(tmp_path, silos, plan, rounds=4, strategy=strategy)
    weights = flat([each.detach().double().numpy() for each in model_of().parameters()])
    velocity = np.zeros_like(weights)
    for step in range(4):
        chosen = np.concatenate(coins[5 * step : 5 * step + 5])
        velocity = 0.9 * velocity + central_step(weights, union(silos), chosen) / (RATE * 25)
        weights = weights - 0.5 * velocity
    assert np.allclose(released, weights, atol=10 * GRID)


@pytest.mark.usefixtures("no_noise", "coins")
@pytest.mark.parametrize("make", [FedAdam, FedAvgM])
def test_where_records_lie_makes_no_difference(
    tmp_path: Path, make: Callable[[], Strategy]
) -> None:
    models = []
    for name, sizes in (("spread", SIZES), ("together", (0, 0, 25, 0, 0))):
        silos = silos_of(sizes)
        plan = plan_of(silos, rounds=2, sampling_rate=1.0, secure_sum=FINE)
        models.append(trained(tmp_path / name, silos, plan, rounds=2, strategy=make())[0])
    # Adam divides by its second moments: a rounding error of the grid grows with them.
    assert np.allclose(models[0], models[1], atol=1e-3)


def test_messages_say_nothing_of_how_many_records_there_are(tmp_path: Path) -> None:
    silos = silos_of((0, 1, 24, 0, 0))
    nodes = Silos(tmp_path, silos)
    plan = plan_of(silos, rounds=2, contribution_check=True)
    trained(tmp_path, silos, plan, rounds=2, nodes=nodes)
    replies = [each for each in nodes.replies if each.metadata.message_type == "train"]
    assert len(replies) == 10
    assert len({form_of(reply) for reply in replies}) == 1


def form_of(reply: Message) -> tuple[Any, ...]:
    """All of a reply but its bytes: names, types, dtypes and lengths."""
    (masked,) = reply.content.array_records["masked"].values()
    config: dict[str, Any] = dict(reply.content.config_records["bundles"])
    lengths = [
        (key, type(each), [len(one) for one in each] if isinstance(each, list) else len(each))
        for key, each in config.items()
    ]
    return tuple(reply.content), masked.dtype, tuple(masked.shape), str(lengths)


def test_the_sum_has_the_noise_of_all_shares_and_no_other(tmp_path: Path) -> None:
    """Kolmogorov-Smirnov: false alarm at most 1e-6, and two thirds of the scale are noticed."""
    silos = silos_of((0,) * 5)
    plan = plan_of(silos, rounds=3, num_clients=50, units_per_node=50)
    released, _ = trained(tmp_path, silos, plan, rounds=3)
    start = flat([each.detach().double().numpy() for each in model_of().parameters()])
    share = plan.shared_bundle(plan.noise_multiplier, size=start.size).share
    # Three steps of five shares each, added up.
    std = np.sqrt(15) * share.noise_scale / share.segments[0].scale / plan.denominator
    drawn = (released - start) / std
    assert stats.kstest(drawn, "norm").pvalue > ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(drawn * wrong, "norm").pvalue < ALARM
    h = plan.noise.honest_shares
    one = plan.noise_multiplier * NORM / plan.denominator
    assert std == pytest.approx(np.sqrt(3) * one * np.sqrt(5 / h), rel=1e-3)


def test_each_silo_is_charged_for_its_records_what_the_plan_says(tmp_path: Path) -> None:
    silos = silos_of(SIZES)
    plan = plan_of(silos, rounds=2)
    trained(tmp_path, silos, plan, rounds=2)
    for node in range(5):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as ledger:
            (spending,) = ledger.spendings
            ((event, count),) = spending.history
        assert spending.unit == "record"
        assert count == 2
        assert isinstance(event, PoissonGaussianEvent)
        assert event.sampling_rate == RATE
        assert event.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-9)


@pytest.mark.usefixtures("no_noise", "coins")
def test_a_silo_whose_budget_is_spent_goes_on_answering_with_noise(tmp_path: Path) -> None:
    silos, owner = (
        silos_of(SIZES),
        {"dp-max-epsilon": 1e-3, "dp-require-privacy": "distributed-records"},
    )
    nodes = Silos(tmp_path, silos, owners={2: owner})
    plan = plan_of(silos, sampling_rate=1.0, secure_sum=FINE)
    released, _ = trained(tmp_path, silos, plan, nodes=nodes)
    start = flat([each.detach().double().numpy() for each in model_of().parameters()])
    left = union([silos[node] for node in (0, 1, 3, 4)])
    step = central_step(start, left, np.ones(13, dtype=bool))
    assert np.allclose(released, start - step / 25, atol=GRID)
    assert len({form_of(r) for r in nodes.replies if r.metadata.message_type == "train"}) == 1


def test_a_gradient_leaves_in_a_secure_sum_or_not_at_all(tmp_path: Path) -> None:
    silos = silos_of(SIZES)
    nodes = Silos(tmp_path, silos)
    plan = plan_of(silos)
    grid = LocalGrid(nodes, 5)
    state = model_of().state_dict()
    arrays = ArrayRecord({name: Array(each.double().numpy()) for name, each in state.items()})
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        DPFedAvg(plan=plan, ledger=ledger).start(grid, arrays, num_rounds=1, timeout=5.0)
    (sent, *_) = [each for each in grid.sent if each.metadata.message_type == "train"]
    del sent.content["fl-dp-secure-sum"]
    reply = nodes.app()(sent, nodes.contexts[0])
    assert reply.has_error()
    assert reply.error.reason == "Refused terms"


def app_of(unit: str, model: Callable[[], nn.Module]) -> ClientApp:
    """An app whose records or persons are never read here."""
    return numpy_client_app(
        records=NodeRecords(
            model_fn=lambda context, config: model(),
            loader_fn=lambda context, config: DataLoader(TensorDataset()),
            unit=unit,
        )
    )


@pytest.mark.parametrize(
    ("app", "unit", "said"),
    [
        (
            numpy_client_app(lambda context: Adds(None)),
            "record",
            r"numpy_client_app\(records=NodeRecords",
        ),
        (
            app_of("record", lambda: nn.Linear(2, 2)),
            "record",
            "with array '0.weight' as float32 of shape",
        ),
        (
            app_of("record", model_of),
            "person",
            r"are persons, .*NodeRecords\(\.\.\., unit='person'\)",
        ),
        (app_of("person", model_of), "record", "are records, and its app adds up none"),
    ],
)
def test_an_app_that_sums_other_gradients_is_found_before_anything_is_charged(
    tmp_path: Path, app: ClientApp, unit: str, said: str
) -> None:
    class Others(Silos):
        def app(self) -> ClientApp:
            return app

    silos = silos_of(SIZES)
    with pytest.raises(RehearsalFailed, match=said):
        trained(tmp_path, silos, plan_of(silos, unit=unit), nodes=Others(tmp_path, silos))
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        assert ledger.rounds_spent == 0


def test_the_statement_is_about_records(tmp_path: Path) -> None:
    silos = silos_of(SIZES)
    plan = plan_of(silos)
    trained(tmp_path, silos, plan)
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        page = statement_markdown(privacy_statement(ledger))
    assert "one record of one client" in page
    assert "a record contributes, or contributes zero throughout" in page
    assert "secret coin for each record" in page
    assert "with its records and their coins" in page
