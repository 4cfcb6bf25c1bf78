"""A client that trains by DP-SGD: what it charges, what it sends, and what it keeps to itself."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from laws import ALARM
from record_plans import record_plan
from scipy import stats
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_dp import PrivacyBudget
from fl_dp.accounting import NeighboringRelation, epsilon
from fl_dp.clients import (
    DPSGD,
    OpacusClient,
    check_training,
    exchanged_arrays,
    numpy_client_app,
    private_module,
)
from fl_dp.clients.per_record.clipped_gradients import ClippedGradients
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import SecureRandom
from fl_dp.model_arrays import get_arrays, trained_names

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),  # of a first layer
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]

MODES = ("records", "hooks", "ghost")
SECRET = "patient 4711 has condition X"
FEATURES, CLASSES, RECORDS = 4, 3, 300
WARD = Account(unit="record", source="ward")
PLAN = record_plan(epsilon=8.0, noise_multiplier=1.0, sampling_rate=0.1, steps=10, participations=3)
SMALL = replace(PLAN, budget=PrivacyBudget(epsilon=3.0, delta=1e-5))
"""A budget of one participation."""


class Net(nn.Module):
    """A model with a frozen layer, a buffer, and a counter that training changes."""

    seen: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(FEATURES, 5)
        self.last = nn.Linear(5, CLASSES)
        self.frozen = nn.Linear(FEATURES, FEATURES, bias=False).requires_grad_(False)
        self.register_buffer("seen", torch.tensor(7))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, features: Tensor) -> Tensor:
        with torch.no_grad():  # what no noise is added to
            self.seen += len(features)
        logits: Tensor = self.last(torch.tanh(self.first(features)))
        return logits


def how_in(mode: str, **options: Any) -> DPSGD:
    """Return a training in a mode; those that are Opacus' get made-up records."""
    if mode != "records":
        options = {"example": (torch.zeros(2, FEATURES), torch.zeros(2).long())} | options
    return DPSGD(grad_sample_mode=mode, **options)


NOT_TRAINED = {"frozen.weight", "seen", "scale"}


def data_of(records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(records, FEATURES, generator=generator)
    return TensorDataset(features, torch.randint(0, CLASSES, (records,), generator=generator))


class Records(Dataset[Any]):
    """As many records as in `data_of`, whatever they are."""

    def __len__(self) -> int:
        return RECORDS


class Client:
    """A client with its ledger in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.db"

    def __call__(
        self, model: nn.Module | None = None, data: Any = None, **changes: Any
    ) -> OpacusClient:
        fields: dict[str, Any] = dict(plan=PLAN, ledger=self.ledger, account=WARD)
        return OpacusClient(
            Net() if model is None else model,
            changes.pop("loader", None) or DataLoader(data_of() if data is None else data),
            **(fields | changes),
        )

    def spent(self) -> dict[Any, int]:
        with NodeLedger.open(self.ledger) as ledger:
            return dict(ledger.spending(WARD).history)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def arrays_of(model: nn.Module, **options: Any) -> list[np.ndarray]:
    return exchanged_arrays(model, **options).to_numpy_ndarrays()


def fit(client: NumPyClient, arrays: list[np.ndarray]) -> list[np.ndarray]:
    sent, records, metrics = client.fit(arrays, {"server-round": 1})
    assert (records, metrics) == (1, {})
    return sent


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([each.ravel() for each in arrays])


def assert_same(sent: list[np.ndarray], arrays: list[np.ndarray]) -> None:
    for one, other in zip(sent, arrays, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


# What is charged.


def test_each_participation_is_charged_as_opacus_would_count_it(client: Client) -> None:
    from opacus.accountants import RDPAccountant

    for rounds in (1, 2):
        fit(client(), arrays_of(Net()))
        assert client.spent() == {PLAN.event: rounds * PLAN.steps}
    accountant = RDPAccountant()
    accountant.history = [(PLAN.noise_multiplier, PLAN.sampling_rate, 2 * PLAN.steps)]
    with NodeLedger.read(client.ledger) as ledger:
        spent = ledger.spending(WARD).epsilon()
    orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64))
    theirs = accountant.get_epsilon(1e-5, alphas=orders)
    assert spent.rdp == pytest.approx(theirs, rel=5e-3)  # another set of orders
    assert spent == epsilon({PLAN.event: 20}, 1e-5)


def test_a_new_client_with_the_same_ledger_goes_on_spending(client: Client) -> None:
    arrays = arrays_of(Net())
    assert any((a != b).any() for a, b in zip(fit(client(plan=SMALL), arrays), arrays, strict=True))
    assert_same(fit(client(plan=SMALL), arrays), arrays)
    assert client.spent() == {PLAN.event: 10}


def test_the_owner_s_budget_wins_over_the_plan_s(client: Client) -> None:
    arrays = arrays_of(Net())
    capped = client(budget=PrivacyBudget(epsilon=1.0, delta=1e-5))
    assert_same(fit(capped, arrays), arrays)
    assert client.spent() == {}


# What is sent.


@pytest.mark.parametrize("mode", MODES)
def test_frozen_parameters_and_buffers_go_back_as_they_came(client: Client, mode: str) -> None:
    model = Net()
    state = get_arrays(model)
    arrays = list(state.values())
    sent = fit(client(model, dp_sgd=how_in(mode)), arrays)
    assert model.seen == 7  # a forward pass runs on copies
    for name, one, other in zip(state, sent, arrays, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (name in NOT_TRAINED) == np.array_equal(one, other)


def test_a_server_that_would_noise_what_is_not_trained_is_refused(client: Client) -> None:
    model = Net()
    made = client(model)
    made.require_sent(list(exchanged_arrays(model)), {})
    with pytest.raises(ValueError, match=r"start from fl_dp.clients.exchanged_arrays\(model\)"):
        made.require_sent(list(get_arrays(model)), {})


def exhausted(client: Client) -> OpacusClient:
    fit(client(plan=SMALL), arrays_of(Net()))
    return client(plan=SMALL)


class Raising(Records):
    """Raises at each record."""

    def __getitem__(self, row: int) -> Any:
        raise RuntimeError(SECRET)


class WithoutLength(Raising):
    """Can't even say how many records there are."""

    def __len__(self) -> int:
        raise OSError(SECRET)


def unreadable() -> DataLoader[Any]:
    raise OSError(SECRET)


def fails(_: Any) -> str:
    raise RuntimeError(SECRET)


def spent_elsewhere(client: Client) -> OpacusClient:
    """Have the same data, in the same ledger, under a name that has spent its budget."""
    data = Account(unit="record", source="other ward", fingerprint="f1")
    fit(client(plan=SMALL, account=data), arrays_of(Net()))
    return client(plan=SMALL, account=replace(WARD, fingerprint="f1"))


class FailsLater:
    """Breaks in the middle of the steps, and at no record."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, gradients: Any) -> None:
        self.steps += 1
        for total in gradients.totals:
            total.zero_()
        if self.steps == 6:
            raise RuntimeError(SECRET)


def without_ledger(client: Client) -> OpacusClient:
    return client(ledger=client.ledger.parent / "no folder" / "ledger.db")


def corrupted(client: Client) -> OpacusClient:
    client.ledger.write_bytes(b"no ledger" * 1000)
    return client()


Failing = Callable[[Client], OpacusClient]
BEFORE_THE_CHARGE: dict[str, Failing] = {
    "exhausted": exhausted,
    "no ledger": without_ledger,
    "corrupted ledger": corrupted,
    "no torch optimizer": lambda client: client(dp_sgd=DPSGD(optimizer=lambda _: None)),  # type: ignore[arg-type, return-value]  # on purpose
}
AFTER_THE_CHARGE: dict[str, Failing] = {
    "raising data": lambda client: client(data=Raising()),
    "data without a length": lambda client: client(data=WithoutLength()),
    "no data": lambda client: client(loader=unreadable),
    "no fingerprint": lambda client: client(fingerprint_of=fails),
    "exhausted elsewhere": spent_elsewhere,
    "records meet in a buffer": lambda client: client(RunningMean()),
    "loss that mixes": lambda client: client(dp_sgd=DPSGD(criterion=nn.MSELoss())),
    "keys that nobody knows": lambda client: client(dp_sgd=DPSGD(target_key="?"), data=Texts(60)),
}
FAILURES = BEFORE_THE_CHARGE | AFTER_THE_CHARGE


@pytest.mark.parametrize("failing", BEFORE_THE_CHARGE.values(), ids=BEFORE_THE_CHARGE)
def test_a_client_that_can_not_pay_sends_what_it_received(client: Client, failing: Failing) -> None:
    made = failing(client)
    arrays = [each + each.dtype.type(1) for each in arrays_of(Net())]
    before = [each.copy() for each in arrays]
    sent = fit(made, arrays)
    assert_same(sent, before)


LARGE = replace(PLAN, noise_multiplier=3.0, clipping_norm=2.0)


class Wide(nn.Module):
    """Has enough parameters to see a law."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 4000)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layer(features)
        return logits


class WideRunningMean(Wide):
    """And a buffer in which records meet."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, features: Tensor) -> Tensor:
        self.mean = self.mean + features.detach().mean(0)
        return super().forward(features)


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param(lambda c, m, **o: c(m, Raising(), **o), id="raising data"),
        pytest.param(lambda c, m, **o: c(m, WithoutLength(), **o), id="no length"),
        pytest.param(lambda c, m, **o: c(m, loader=unreadable, **o), id="no data"),
        pytest.param(lambda c, m, **o: c(m, **o), id="breaks half-way"),
        pytest.param(lambda c, m, **o: c(m, data_of(0), **o), id="no records"),
        pytest.param(lambda c, m, **o: c(WideRunningMean(), **o), id="buffer"),
        pytest.param(lambda c, m, **o: c(m, fingerprint_of=fails, **o), id="no fingerprint"),
    ],
)
def test_whatever_goes_wrong_after_the_charge_is_the_planned_noise_around_the_model(
    client: Client,
    scale_p: Any,
    failing: Any,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaks = FailsLater()
    if "half-way" in request.node.name:
        monkeypatch.setattr(ClippedGradients, "start_again", lambda self: breaks(self))
    # Rejects a right scale once in 1e6 runs; one that is 10 % off, or has a step less, it must.
    how = DPSGD(optimizer=lambda p: SGD(p, lr=0.1), expected_batch_size=20.0)
    made = failing(client, Wide(), plan=LARGE, dp_sgd=how)
    arrays = [np.full_like(each, 0.5) for each in arrays_of(made._model)]
    sent = fit(made, arrays)
    trained = [one - other for one, other in zip(sent, arrays, strict=True) if one.size > FEATURES]
    draws = flat(trained).astype(np.float64)
    draws /= 0.1 / 20.0 * LARGE.noise_multiplier * LARGE.clipping_norm * math.sqrt(LARGE.steps)
    law = (math.sqrt(2 / math.pi), 1 - 2 / math.pi)
    assert len(draws) == 4000 * (FEATURES + 1)
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    assert scale_p(draws, *law) > ALARM
    for wrong in (0.9, 1.1, math.sqrt(9 / 10)):
        assert scale_p(draws / wrong, *law) < ALARM
    assert client.spent() == {LARGE.event: LARGE.steps}
    assert breaks.steps == (6 if "half-way" in request.node.name else 0)


@pytest.mark.parametrize("spent", [False, True])
def test_what_is_refused_depends_on_no_record(client: Client, spent: bool) -> None:
    read = []

    def loader() -> DataLoader[Any]:
        read.append(client.spent())
        return DataLoader(data_of())

    if spent:
        fit(client(plan=SMALL), arrays_of(Net()))
    fit(client(plan=SMALL, loader=loader), arrays_of(Net()))
    assert read == ([] if spent else [{PLAN.event: 10}])


def test_data_that_are_spent_under_another_name_cost_nothing_more(client: Client) -> None:
    made = spent_elsewhere(client)
    for rounds in (1, 2):
        fit(made, arrays_of(Net()))
        with NodeLedger.read(client.ledger) as ledger:
            [joined] = ledger.spendings
        assert joined.sources == ({"other ward", "ward"})
        assert dict(joined.history) == {SMALL.event: 10}, rounds
    # Whether it is refused is decided by the name alone, and that one has paid twice.
    with NodeLedger.read(client.ledger) as ledger:
        assert ledger.spendings[0].charges == 2


@pytest.mark.parametrize("failing", [None, *FAILURES.values()], ids=["trains", *FAILURES])
def test_every_reply_has_the_same_names_shapes_and_metrics(
    client: Client, node: Any, failing: Failing | None
) -> None:
    made = client() if failing is None else failing(client)
    model = {str(name): each.numpy() for name, each in exchanged_arrays(made._model).items()}
    reply = node(numpy_client_app(lambda context: made)).train(model, None)
    assert not reply.has_error()
    [sent] = reply.content.array_records.values()
    assert {n: (a.numpy().dtype, a.numpy().shape) for n, a in sent.items()} == {
        n: (a.dtype, a.shape) for n, a in model.items()
    }
    [metrics] = reply.content.metric_records.values()
    assert dict(metrics) == {"num-examples": 1}
    assert b"4711" not in pickle.dumps(reply)


def returned(made: NumPyClient, context: Context) -> NumPyClient:
    return made


def test_nothing_in_the_reply_depends_on_how_many_records_there_are(
    client: Client, node: Any
) -> None:
    model = {str(name): array.numpy() for name, array in exchanged_arrays(Net()).items()}
    replies = []
    for records in (0, 1, 271):
        made = client(data=data_of(records), dp_sgd=DPSGD(expected_batch_size=30.0))
        reply = node(numpy_client_app(partial(returned, made))).train(model, None)
        replies.append(
            (
                [(key, sorted(record)) for key, record in reply.content.items()],
                [dict(each) for each in reply.content.metric_records.values()],
                len(pickle.dumps(reply.content.array_records)),
            )
        )
    assert replies[0] == replies[1] == replies[2]


def test_arrays_that_do_not_fit_the_model_cost_nothing(client: Client) -> None:
    arrays = [np.zeros(3, np.float32)]
    assert_same(fit(client(), arrays), arrays)
    assert client.spent() == {}


def test_evaluation_on_private_records_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="uncharged release"):
        client().evaluate(arrays_of(Net()), {})


# Batches as Flower's examples have them.


class Images(Records):
    """Records as a Hugging Face data set gives them."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.features, self.labels = data_of().tensors

    def __getitem__(self, row: int) -> Any:
        values = (self.features[row], self.labels[row], f"patient {row}")
        return dict(zip(self.names, values, strict=False))


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (Images("img", "label"), {}),
        (Images("x", "y", "name"), {"target_key": "y", "input_key": "x"}),
        (Images("features", "y"), {"target_key": "y", "input_key": ("features",)}),
        ([[row, label] for row, label in zip(*data_of().tensors, strict=True)], {}),
    ],
    ids=["image", "both named", "several inputs", "pairs"],
)
def test_batches_may_be_mappings_or_tuples(client: Client, data: Any, options: Any) -> None:
    plan = replace(PLAN, sampling_rate=1.0, steps=1)
    seeded = SecureRandom(insecure_seed=1), SecureRandom(insecure_seed=1)
    sent = [
        fit(client(data=each, plan=plan, dp_sgd=DPSGD(**how), rng=rng), arrays_of(Net()))
        for each, how, rng in zip((data_of(), data), ({}, options), seeded, strict=True)
    ]
    assert_same(*sent)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Images("x", "y"), {}, r"keys 'x', 'y': write DPSGD\(target_key="),
        (Images("x", "label"), {"input_key": "img"}, r"keys 'x', 'label': write DPSGD\(input_key="),
        ([torch.ones(FEATURES)] * 3, {}, r"a batch is a Tensor: let it be \(inputs, targets\)"),
    ],
)
def test_batches_that_nobody_understands_are_named_before_anything_is_spent(
    data: Any, options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_training(Net(), DataLoader(data), DPSGD(**options))
    check_training(Net(), DataLoader(Images("img", "label")))


# Where a ledger lies that nobody named.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("simulated", [False, True])
def test_a_simulated_client_has_a_ledger_of_its_run_and_a_real_one_needs_its_owner_s(
    home: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    monkeypatch.setattr("fl_dp.clients.owner.node_privacy.in_simulation", lambda: simulated)
    context = Context(7, 1, {"partition-id": 3}, RecordDict(), {})
    if not simulated:
        with pytest.raises(ValueError, match=r"--node-config 'dp-ledger-path="):
            OpacusClient.on_node(context, Net(), DataLoader(data_of()), plan=PLAN)
        return
    made = OpacusClient.on_node(context, Net(), DataLoader(data_of()), plan=PLAN)
    fit(made, arrays_of(Net()))
    with NodeLedger.read(home / ".fl-dp" / "simulations" / "run-7" / "node-3.db") as ledger:
        [spending] = ledger.spendings
    assert dict(spending.history) == {PLAN.event: PLAN.steps}


@pytest.mark.usefixtures("home")
def test_a_node_whose_owner_allows_less_trains_with_more_noise_for_all_rounds(
    tmp_path: Path,
) -> None:
    path, half = tmp_path / "strict.db", 0.5 * PLAN.budget.epsilon
    config: dict[str, Any] = {"dp-ledger-path": str(path), "dp-record-epsilon": half}
    context = Context(7, 1, config, RecordDict(), {})
    for _ in range(PLAN.participations + 2):
        made = OpacusClient.on_node(context, Net(), DataLoader(data_of()), plan=PLAN)
        fit(made, arrays_of(Net()))
    with NodeLedger.read(path) as ledger:
        [spending] = ledger.spendings
    [(event, count)] = spending.history
    assert count == PLAN.participations * PLAN.steps
    assert event.noise_multiplier > PLAN.noise_multiplier  # type: ignore[union-attr]
    assert spending.epsilon().best <= half


@pytest.mark.usefixtures("home")
def test_a_node_that_trains_with_more_noise_stops_where_earlier_runs_leave_too_little(
    tmp_path: Path, client: Client
) -> None:
    cap = 0.5 * PLAN.budget.epsilon
    config: dict[str, Any] = {
        "dp-ledger-path": str(client.ledger),
        "dp-dataset-name": WARD.source,
        "dp-require-privacy": "record",
        "dp-max-epsilon": cap,
        "dp-max-delta": PLAN.budget.delta,
        "dp-record-epsilon": cap,
    }
    context = Context(7, 1, config, RecordDict(), {})
    small = replace(PLAN, budget=PrivacyBudget(epsilon=1.0, delta=1e-5), noise_multiplier=4.0)
    for plan in (small, *[PLAN] * PLAN.participations):
        made = OpacusClient.on_node(context, Net(), DataLoader(data_of()), plan=plan)
        fit(made, arrays_of(Net()))
    spent = client.spent()
    assert PLAN.steps <= sum(spent.values()) < PLAN.steps * (1 + PLAN.participations)
    accountant = PLDAccountant()
    for event, count in spent.items():
        step = PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.noise_multiplier))
        accountant.compose(SelfComposedDpEvent(step, count))
    assert accountant.get_epsilon(PLAN.budget.delta) <= cap


# What can be trained.


class RunningMean(nn.Module):
    """Lets records meet in a buffer, without any parameter of its own."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        logits: Tensor = self.head(x - self.mean)
        return logits


def test_a_batch_norm_that_nothing_trains_mixes_records_all_the_same(client: Client) -> None:
    frozen = nn.BatchNorm1d(4, affine=False)
    model = nn.Sequential(nn.Linear(FEATURES, 4), frozen, nn.Linear(4, CLASSES))
    with pytest.raises(ValueError, match="statistics of a batch"):
        client(model)


def test_hiding_how_many_records_there_are_needs_a_public_denominator(client: Client) -> None:
    plan = replace(PLAN, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="public constant"):
        client(plan=plan)
    client(plan=plan, dp_sgd=DPSGD(expected_batch_size=6.0))


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        self.head = nn.Linear(4 * 2 * 2, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda client: client(WithBatchNorm()), r"private_module\(model\)"),
        (lambda client: client(nn.Linear(2, 2).requires_grad_(False)), "every parameter .* frozen"),
        (
            lambda client: client(account=Account(unit="client", source="ward")),
            "protects records, but the account is of a client",
        ),
    ],
)
def test_what_dp_sgd_can_not_protect_is_refused(client: Client, make: Failing, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(client)


def test_private_module_replaces_batch_norm_and_says_so(client: Client) -> None:
    original = WithBatchNorm()
    model, changes = private_module(original)
    [change] = changes
    assert change.startswith("body.1: BatchNorm2d(4, ")
    assert "became GroupNorm(4, 4, " in change
    assert isinstance(original.body[1], nn.BatchNorm2d)
    images = TensorDataset(torch.randn(50, 1, 4, 4), torch.zeros(50, dtype=torch.long))
    arrays = arrays_of(model)
    sent = fit(client(model, images), arrays)
    assert all((a != b).any() for a, b in zip(sent, arrays, strict=True))


@pytest.mark.parametrize("nested", [False, True])
def test_a_batch_norm_of_vectors_becomes_one_group_which_leaves_something(nested: bool) -> None:
    norm = nn.BatchNorm1d(16)
    model, _ = private_module(nn.Sequential(nn.Sequential(norm)) if nested else norm)
    vectors = torch.randn(5, 16)
    assert model(vectors).std() > 0.5
    torch.testing.assert_close(model(vectors[:1]), model(vectors)[:1])  # also alone


def test_private_module_takes_a_class_of_the_script_that_ray_s_workers_do_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray hands a notebook's class over as it is, and a worker's `__main__` has none."""
    kind = type("NetOfANotebook", (nn.Sequential,), {"__module__": "__main__"})
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, kind.__name__, None, raising=False)
    monkeypatch.delattr(main, kind.__name__)
    model, changes = private_module(kind(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)))
    assert type(model) is kind
    assert len(changes) == 1


def test_a_class_within_a_function_is_refused_with_what_to_write() -> None:
    class Local(nn.Sequential):
        pass

    with pytest.raises(ValueError, match="write its classes at the top of a module"):
        private_module(Local(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)))


class Named(nn.Module):
    """Takes what tokenizers give: names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 6)
        self.query = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        words = self.query(self.embedding(input_ids)) * attention_mask.unsqueeze(-1)
        logits: Tensor = self.head(words.sum(1) / attention_mask.sum(1, keepdim=True))
        return logits


class Texts(Dataset[Any]):
    """Token ids below 11, and one record with an id that the embedding does not have."""

    def __init__(self, records: int, *, unknown: int | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, 11, (records, 5), generator=generator)
        if unknown is not None:
            self.ids[unknown] = 99

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Any:
        return {"input_ids": self.ids[row], "attention_mask": torch.ones(5)}, row % CLASSES


@pytest.mark.parametrize("mode", MODES)
def test_only_adapters_of_a_lora_model_travel_and_change(client: Client, mode: str) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        Named(), peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    )
    base = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    arrays = arrays_of(model)
    names = trained_names(model)
    ids, labels = torch.arange(10).view(2, 5), torch.arange(2)
    assert len(arrays) == 2
    assert all("lora_" in name for name in names)
    sent = fit(
        client(
            model,
            Texts(60, unknown=7),
            plan=replace(PLAN, noise_multiplier=4.0, sampling_rate=0.5),
            dp_sgd=how_in(
                mode, example=({"input_ids": ids, "attention_mask": torch.ones(2, 5)}, labels)
            ),
        ),
        arrays,
    )
    assert [each.shape for each in sent] == [each.shape for each in arrays]
    assert all((a != b).any() for a, b in zip(sent, arrays, strict=True))
    now = dict(model.named_parameters())
    assert len(base) == 5
    for name, values in base.items():
        assert torch.equal(now[name], values)


@pytest.mark.parametrize("size", [1e-37, 1e30])
def test_no_denominator_of_a_server_s_decides_whether_a_client_answers(
    client: Client, size: float
) -> None:
    arrays = arrays_of(Net())
    how = DPSGD(expected_batch_size=size)
    model = Net()
    sent = fit(client(model, dp_sgd=how), arrays)
    # What the division makes of the private sum is nobody's secret: it may even overflow.
    moved = any((one != other).any() for one, other in zip(sent, arrays, strict=True))
    assert moved == (size < 1.0)
    assert client.spent() == {PLAN.event: 10}
