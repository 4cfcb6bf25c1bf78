"""Noise with memory under secure sums: positions take turns at the nodes, and nobody holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from local_grid import FIRST_NODE, LocalGrid
from numpy.typing import NDArray
from secure_nodes import SecureNodes, refusals
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from worked_here import work_here

from fl_dp.accounting import CyclicSampling, PoissonSampling
from fl_dp.clients import NodeRecords, numpy_client_app
from fl_dp.clients.noise_memory import MEMORY_FILE
from fl_dp.clients.secure_node import STORE_FILE
from fl_dp.ledger import NodeLedger, PrivacyLedger
from fl_dp.plan import Banded, PrivacyPlan, SecureSum
from fl_dp.protocol.secure_sum import terms_in, with_terms, without_terms
from fl_dp.secagg import Identity, Refused, SumTerms
from fl_dp.statement import privacy_statement
from fl_dp.strategies import DPFedAvg, RoundFailed

pytestmark = pytest.mark.slow

SIZES, GROUPS, FEATURES = (7, 3, 9, 4, 5), 4, 6
NORM = 0.8
Data = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(FEATURES, 2)


class Silos(SecureNodes):
    """Nodes whose units are their records."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, [[] for _ in SIZES], **options)
        generator = torch.Generator().manual_seed(5)
        self.silos: list[Data] = [
            (
                torch.randn(size, FEATURES, generator=generator),
                torch.randint(0, 2, (size,), generator=generator),
            )
            for size in SIZES
        ]
        self.terms: dict[int, SumTerms] = {}
        self.fails: set[tuple[int, int]] = set()  # index and node whose records can't be read

    def app(self) -> ClientApp:
        return numpy_client_app(
            records=NodeRecords(
                model_fn=lambda context, config: model_of(),
                loader_fn=lambda context, config: DataLoader(
                    TensorDataset(*self._records(context.node_id - FIRST_NODE))
                ),
            )
        )

    def _records(self, node: int) -> Data:
        if (max(self.terms, default=0), node) in self.fails:
            raise OSError("the disk is gone")
        return self.silos[node]

    def __call__(self, message: Message, node: int) -> Message | None:
        if message.metadata.message_type == "train" and (text := terms_in(message.content)):
            terms = SumTerms.from_json(text)
            assert terms.turn is not None
            self.terms[terms.turn.index] = terms
        return super().__call__(message, node)

    def memory(self, node: int) -> Path:
        return Path(str(self.contexts[node].node_config["ledger-path"])).parent / MEMORY_FILE

    def charges(self, node: int) -> int:
        with NodeLedger.read(str(self.contexts[node].node_config["ledger-path"])) as ledger:
            return sum(each.charges for each in ledger.spendings)


def plan_of(rounds: int = 10, **given: Any) -> PrivacyPlan:
    options: dict[str, Any] = {
        "rounds": rounds,
        "num_clients": sum(SIZES),
        "nodes": len(SIZES),
        "units_per_node": max(SIZES),
        "unit": "record",
        "coins_at_nodes": True,
        "sampling": CyclicSampling(groups=GROUPS, inside=PoissonSampling(sampling_rate=1.0)),
        "correlation": Banded.optimal(rounds=rounds, bands=GROUPS),
        "clipping_norm": NORM,
        "secure_sum": SecureSum(least=4),
        "contribution_check": False,
    }
    return PrivacyPlan.from_noise_multiplier(0.006, delta=1e-3, **options | given)


class Training:
    """The server of one training, whose steps are kept."""

    def __init__(self, folder: Path, nodes: Silos, plan: PrivacyPlan) -> None:
        self.folder, self.nodes, self.plan = folder, nodes, plan
        self.models: dict[int, NDArray[np.float64]] = {}
        self.kept: Any = None

    def run(self, rounds: int, *, resume: Any = None) -> DPFedAvg:
        state = model_of().state_dict()
        arrays = ArrayRecord({name: Array(each.double().numpy()) for name, each in state.items()})

        def keep(checkpoint: Any) -> None:
            self.kept = checkpoint
            parts = checkpoint.model.to_numpy_ndarrays()
            self.models[checkpoint.server_round] = np.concatenate([np.ravel(p) for p in parts])

        with PrivacyLedger.open(self.folder / "server.db", self.plan) as ledger:
            strategy = DPFedAvg(plan=self.plan, ledger=ledger, after_round=keep)
            if resume is not None:
                strategy.resume(resume)
            strategy.start(LocalGrid(self.nodes, len(SIZES)), arrays, rounds, timeout=5.0)
            self.statement = privacy_statement(ledger)
            self.spent = ledger.epsilon().best
        return strategy

    def step(self, server_round: int) -> NDArray[np.float64]:
        """What a round added to the model."""
        return self.models[server_round] - self.models[server_round - 1]

    def expected(self, index: int, server_round: int) -> NDArray[np.float64]:
        """The step that the records of an index's position make together."""
        total = np.zeros_like(self.models[0])
        for node, first in enumerate(positions(self.nodes)):
            features, labels = self.nodes.silos[node]
            for row in range(len(labels)):
                if (first + row) % GROUPS == index % GROUPS:
                    total += self._gradient(features[[row]], labels[[row]], server_round)
        return -total / self.plan.denominator

    def _gradient(self, x: Tensor, y: Tensor, server_round: int) -> NDArray[np.float64]:
        module = model_of().double()
        parameters = torch.from_numpy(self.models[server_round - 1])
        torch.nn.utils.vector_to_parameters(parameters, module.parameters())
        loss = nn.functional.cross_entropy(module(x.double()), y)
        each = torch.autograd.grad(loss, list(module.parameters()))
        gradient = np.concatenate([g.numpy().ravel() for g in each])
        return np.asarray(gradient * min(1.0, NORM / float(np.linalg.norm(gradient))))


def positions(nodes: Silos) -> list[int]:
    """Where each node's first record stands: spread over the positions by rank of identity."""
    keys = [
        Identity.load_or_create(nodes.memory(node).parent / "secagg-identity.pem").public.hex()
        for node in range(len(SIZES))
    ]
    ranks = [sorted(keys).index(key) for key in keys]
    return [rank * GROUPS // len(SIZES) for rank in ranks]


def steps_are_right(training: Training, rounds: Sequence[int], *, first_index: int = 0) -> None:
    # Six deviations of the widest sum of noise, in clipping norms over 7 records.
    allowed = 6.0 * training.plan.noise_multiplier * NORM * 3.0 / training.plan.denominator
    largest = 0.0
    for place, server_round in enumerate(rounds):
        expected = training.expected(first_index + place, server_round)
        assert np.abs(training.step(server_round) - expected).max() < allowed
        largest = max(largest, float(np.abs(expected).max()))
    assert largest > 2.0 * allowed  # no step of nothing would pass; identities decide who meets


def test_each_index_is_the_turn_of_one_position_and_visits_are_charged(tmp_path: Path) -> None:
    nodes = Silos(tmp_path)
    training = Training(tmp_path, nodes, plan_of())
    training.run(10)
    steps_are_right(training, range(1, 11))
    assert list(nodes.terms) == list(range(10))
    assert [nodes.charges(node) for node in range(len(SIZES))] == [3] * 5  # of 10 indices
    assert training.statement.rounds_committed == 10
    assert training.spent == pytest.approx(training.plan.epsilon().best, rel=1e-6)
    assert sum(count for _, count in training.plan.history) == 3
    assert "share of the noise" in training.statement.trusted


def test_who_joins_at_its_own_budget_is_there_in_all_of_its_turns(tmp_path: Path) -> None:
    own = {"require-privacy": "distributed-records", "max-epsilon": 2.0, "max-delta": 1e-3}
    nodes = Silos(tmp_path, owners={0: own | {"join-at-own-budget": True}, 1: own})
    Training(tmp_path, nodes, plan_of()).run(10)
    assert [nodes.charges(node) for node in (0, 1, 2)] == [3, 0, 3]
    with NodeLedger.read(str(nodes.contexts[0].node_config["ledger-path"])) as ledger:
        (spending,) = ledger.spendings
    assert 1.9 < spending.epsilon().best <= 2.0


def test_what_is_remembered_lies_in_one_file_and_is_gone_when_the_training_ends(
    tmp_path: Path,
) -> None:
    seen: Counter[str] = Counter()

    class Watched(Silos):
        def __call__(self, message: Message, node: int) -> Message | None:
            reply = super().__call__(message, node)
            file = self.memory(node)
            if message.metadata.message_type == "train" and file.is_file():
                seen["files"] += 1
                assert file.stat().st_mode & 0o777 == 0o600
                secret = file.read_bytes()
                rows = [secret[at : at + 64] for at in range(len(secret) - 256, len(secret), 64)]
                for other in file.parent.iterdir():
                    if other != file and other.is_file():
                        content = other.read_bytes()
                        assert not any(row in content for row in rows if any(row))
            return reply

    nodes = Watched(tmp_path)
    Training(tmp_path, nodes, plan_of(6)).run(6)
    assert seen["files"] == 30
    assert not any(nodes.memory(node).exists() for node in range(len(SIZES)))


def test_a_failed_index_is_over_and_the_next_round_has_the_next_position(tmp_path: Path) -> None:
    # Two of five answers of the third sum get lost: four are needed.
    lost = {(2, 0), (2, 1)}
    nodes = Silos(
        tmp_path, loses_reply=lambda kind, times, node: kind == "train" and (times, node) in lost
    )
    training = Training(tmp_path, nodes, plan_of())
    training.run(6)
    steps_are_right(training, [1, 2])
    assert 3 not in training.models
    training.models[3] = training.models[2]
    steps_are_right(training, [4, 5, 6], first_index=3)
    told = nodes.terms[3].turn
    assert told is not None and told.dropped == {2: nodes.terms[3].cohort}


def test_a_late_node_is_told_to_forget_what_was_in_no_sum(tmp_path: Path) -> None:
    nodes = Silos(
        tmp_path, loses_reply=lambda kind, times, node: (kind, times, node) == ("train", 1, 3)
    )
    training = Training(tmp_path, nodes, plan_of(6))
    training.run(6)
    told = nodes.terms[2].turn
    assert told is not None and list(told.dropped) == [1] and len(told.dropped[1]) == 1
    last = nodes.terms[5].turn  # three indices later it is out of reach
    assert last is not None and last.dropped == {}


def test_another_notice_to_one_node_makes_the_sum_unopenable(tmp_path: Path) -> None:
    class Told(Silos):
        def __call__(self, message: Message, node: int) -> Message | None:
            if message.metadata.message_type == "train" and node == 2:
                terms = SumTerms.from_json(terms_in(message.content) or "")
                assert terms.turn is not None
                if terms.turn.index == 1:
                    turn = replace(terms.turn, dropped={0: terms.cohort[:1]})
                    other = replace(terms, turn=turn).to_json()
                    message.content = with_terms(without_terms(message.content), other)
            return super().__call__(message, node)

    nodes = Told(tmp_path)
    training = Training(tmp_path, nodes, plan_of(3))
    training.run(3)
    assert 2 not in training.models and 3 in training.models


def test_a_restart_of_the_server_keeps_positions_and_what_is_charged(tmp_path: Path) -> None:
    nodes = Silos(tmp_path)
    training = Training(tmp_path, nodes, plan_of())

    class Killed(BaseException):
        pass

    def dies(kind: str, times: int, node: int) -> bool:
        if (kind, times) == ("train", 5):
            raise Killed
        return False

    nodes.loses = dies
    with pytest.raises(Killed):
        training.run(10)
    nodes.loses = lambda kind, times, node: False
    again = Training(tmp_path, nodes, training.plan)
    again.models = dict(training.models)
    again.run(9, resume=training.kept)  # index 5 is burnt
    steps_are_right(again, range(1, 6))
    steps_are_right(again, range(6, 10), first_index=6)
    assert max(nodes.charges(node) for node in range(len(SIZES))) == 3
    assert again.spent <= training.plan.epsilon().best * (1 + 1e-9)


def test_other_records_within_a_training_stay_away(tmp_path: Path) -> None:
    class Moves(Silos):
        def __call__(self, message: Message, node: int) -> Message | None:
            if message.metadata.message_type == "train" and node == 4 and len(self.terms) == 3:
                features, labels = self.silos[4]
                self.silos[4] = features.roll(1, 0), labels.roll(1, 0)
            return super().__call__(message, node)

    nodes = Moves(tmp_path)
    training = Training(tmp_path, nodes, plan_of(6))
    training.run(6)
    assert set(refusals(nodes)) == {"Refused policy"}
    assert 6 in training.models  # the other four open the sums


def test_a_node_whose_work_fails_stays_away_from_then_on(tmp_path: Path) -> None:
    nodes = Silos(tmp_path)
    nodes.fails = {(2, 1)}
    training = Training(tmp_path, nodes, plan_of(6))
    training.run(6)
    assert set(refusals(nodes)) == {"Refused late"}
    # It is charged, and no record of its batch was in the sum without it.
    assert nodes.charges(1) == 1
    told = nodes.terms[3].turn
    assert told is not None and [len(places) for places in told.dropped.values()] == [1]


def test_losing_keys_and_memory_ends_in_fewer_rows_and_never_in_an_old_index(
    tmp_path: Path,
) -> None:
    class Loses(Silos):
        def __call__(self, message: Message, node: int) -> Message | None:
            if message.metadata.message_type == "train" and node == 0:
                match len(self.terms):
                    case 2:
                        self.memory(0).unlink()
                    case 4:
                        file = self.memory(0)
                        file.write_bytes(file.read_bytes()[:-100])
                    case 6:
                        self.memory(0).write_bytes(b"something else")
            return super().__call__(message, node)

    nodes = Loses(tmp_path)
    training = Training(tmp_path, nodes, plan_of(8))
    training.run(8)
    steps_are_right(training, range(1, 9))
    assert refusals(nodes) == []
    assert (nodes.memory(0).parent / STORE_FILE).is_file()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sampling": CyclicSampling(groups=3, inside=PoissonSampling(sampling_rate=1.0))}, "4"),
        ({"sampling": CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=0.5))}, "turn"),
        ({"sampling": PoissonSampling(sampling_rate=0.25)}, "every round"),
        ({"correlation": None}, "whose turn"),
        ({"secure_sum": SecureSum(bits=8)}, "bits"),
    ],
)
def test_what_the_charge_does_not_hold_for_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        plan_of(**changed)


def test_a_disk_without_room_for_the_noise_shows_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, length: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr("fl_dp.clients.noise_memory._require_room", full)
    nodes = Silos(tmp_path)
    with pytest.raises(RoundFailed):
        Training(tmp_path, nodes, plan_of(3)).run(3)
    assert set(refusals(nodes)) == {"OSError"}
    assert not any(nodes.charges(node) for node in range(len(SIZES)))


def test_code_that_raises_what_nodes_refuse_with_is_late_like_any_other(tmp_path: Path) -> None:
    class Raises(Silos):
        def _records(self, node: int) -> Data:
            if node == 1 and max(self.terms, default=0) == 2:
                raise Refused("policy", "says the data")
            return super()._records(node)

    nodes = Raises(tmp_path)
    Training(tmp_path, nodes, plan_of(6)).run(6)
    assert set(refusals(nodes)) == {"Refused late"}
