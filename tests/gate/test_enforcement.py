"""What a server states of a training whose nodes are behind gates, and of one whose are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.node_answers import RehearsalFailed
from fl_dp.strategies.open_round import Answered
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from gated_site import Gates, Site, adding
from local_grid import FIRST_NODE, LocalGrid

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.clients import noised_client_app
from fl_dp.gate.flower_wire import parts_of
from fl_dp.mechanisms import FixedClipping
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import DistributedPlan, LocalPlan, Plan, SecureSum
from fl_dp.plan.plan_base import ANOTHER_APP, AROUND_A_GATE
from fl_dp.promise import Enforcement
from fl_dp.protocol.flower_compat import give_id
from fl_dp.protocol.introduction import NodeIdentity
from fl_dp.protocol.message_keys import GATE_KEY
from fl_dp.statement import PrivacyStatement, privacy_statement, statement_markdown
from fl_dp.statement.check import statement_differences
from fl_dp.strategies import DPFedAvg

NODES = 3
SUMS = {
    "dp-gate-promise": "distributed",
    "dp-gate-noise-multiplier": None,
    "dp-max-epsilon": 1e9,
}


@pytest.mark.parametrize(("timeout", "in_time"), [(30.0, False), (63.0, False), (240.0, True)])
def test_gates_that_would_answer_too_late_are_told_at_the_rehearsal(
    tmp_path: Path, timeout: float, in_time: bool
) -> None:
    gates = Gates(tmp_path, NODES, **{"dp-gate-clipping-norm": 0.5})
    initial = ArrayRecord({"w": Array(np.zeros(100))})
    with PrivacyLedger.open(tmp_path / "server.db", local_plan()) as ledger:
        strategy = DPFedAvg(plan=ledger.plan, ledger=ledger)
        late = pytest.raises(RehearsalFailed, match=r"gate answers after 63 s.*longer timeout")
        with nullcontext() if in_time else late:
            strategy.start(LocalGrid(gates, NODES), initial, num_rounds=1, timeout=timeout)
        assert ledger.rounds_spent == in_time
    assert [here.charges() for here in gates.sites] == [in_time] * NODES


def local_plan() -> LocalPlan:
    return LocalPlan(
        budget=PrivacyBudget(epsilon=2.0, delta=1e-5),
        rounds=2,
        num_clients=NODES,
        clipping=FixedClipping(norm=0.5),
    ).calibrated()


def distributed_plan() -> Plan:
    plan = noised_plan(
        2.0,
        delta=1e-3,
        rounds=2,
        num_clients=NODES,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=SecureSum(),
        contribution_check=False,
    )
    assert isinstance(plan, DistributedPlan)
    return plan


class SomeGates(Gates):
    """Gates, and nodes without one, whose app is fl-dp's."""

    def __init__(self, folder: Path, without: frozenset[int] = frozenset(), **policy: Any) -> None:
        super().__init__(folder, NODES, **policy)
        self.without = without

    def __call__(self, message: Message, node: int) -> Message:
        if node not in self.without:
            return super().__call__(message, node)
        app = noised_client_app()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            [reply] = adding(0.01)(message)
            assert isinstance(reply, Message)
            return reply

        return app(message, Context(1, FIRST_NODE + node, {}, RecordDict(), {}))


def stated(folder: Path, plan: Plan, gates: Gates) -> PrivacyStatement:
    initial = ArrayRecord({"w": Array(np.zeros(100))})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        DPFedAvg(plan=plan, ledger=ledger).start(LocalGrid(gates, NODES), initial, num_rounds=1)
    with PrivacyLedger.read(folder / "server.db") as read:
        statement = privacy_statement(read)
        assert not statement_differences(read, statement.to_dict())
    return statement


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "local": (local_plan, {}),
    "distributed": (distributed_plan, SUMS),
}


@pytest.mark.parametrize(("plan_of", "policy"), KINDS.values(), ids=KINDS)
def test_where_all_sites_keep_apps_apart_no_app_is_trusted(
    tmp_path: Path, plan_of: Any, policy: dict[str, Any]
) -> None:
    gates = SomeGates(tmp_path, **policy)
    for here in gates.sites:
        here.gate.isolated = True
    statement = stated(tmp_path, plan_of(), gates)
    assert statement.enforcement is Enforcement.SITE
    assert statement.trusted.startswith("each site's own gate")
    assert "software" not in statement.trusted
    assert not {ANOTHER_APP, AROUND_A_GATE} & set(statement.not_covered)
    assert "| holds | enforced by the site, whatever app" in statement_markdown(statement)
    assert PrivacyStatement.from_dict(statement.to_dict()) == statement


@pytest.mark.parametrize(("plan_of", "policy"), KINDS.values(), ids=KINDS)
def test_where_one_site_does_not_the_promise_is_cooperative(
    tmp_path: Path, plan_of: Any, policy: dict[str, Any]
) -> None:
    gates = SomeGates(tmp_path, **policy)
    for here in gates.sites[:2]:
        here.gate.isolated = True
    statement = stated(tmp_path, plan_of(), gates)
    assert statement.enforcement is Enforcement.COOPERATIVE
    assert AROUND_A_GATE in statement.not_covered
    assert ANOTHER_APP not in statement.not_covered
    assert "| holds | cooperative, whatever app" in statement_markdown(statement)


def test_where_one_node_has_no_gate_every_app_is_trusted(tmp_path: Path) -> None:
    gates = SomeGates(tmp_path, frozenset({1}))
    for here in gates.sites:
        here.gate.isolated = True
    statement = stated(tmp_path, local_plan(), gates)
    assert statement.enforcement is None
    assert ANOTHER_APP in statement.not_covered
    assert statement.trusted.startswith("each client's own software")
    assert "enforcement" not in statement.to_dict()
    assert "| holds |" not in statement_markdown(statement)


def test_a_round_whose_answers_nobody_saw_counts_for_all_of_the_training(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "server.db", local_plan()) as ledger:
        stages = [ledger.enforcement]
        for number in (1, 2):
            reserved = ledger.reserve(round=number)
            stages.append(ledger.enforcement)  # as the server may be killed here
            ledger.note_enforcement(reserved, Enforcement.SITE)
            stages.append(ledger.enforcement)
            ledger.commit(reserved)
    app, site = Enforcement.APP, Enforcement.SITE
    assert stages == [app, app, site, app, site]


def test_what_a_round_showed_is_written_once_and_of_rounds_alone(tmp_path: Path) -> None:
    other = GaussianEvent(noise_multiplier=40.0)
    plan = replace(distributed_plan(), other_releases=((other, 1),))
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        reserved = ledger.reserve(round=1)
        ledger.note_enforcement(reserved, Enforcement.COOPERATIVE)
        with pytest.raises(ValueError, match="no round that waits"):
            ledger.note_enforcement(reserved, Enforcement.SITE)
        statistic = ledger.reserve_release("ages", other)
        with pytest.raises(ValueError, match="no round that waits"):
            ledger.note_enforcement(statistic, Enforcement.SITE)
        assert ledger.enforcement is Enforcement.APP


# What a round's answers show, after all nodes have said at the rehearsal that they have gates.


class LaterGates(SomeGates):
    """Gates that keep apps apart, of which the last one changes after its first training."""

    def __init__(
        self, folder: Path, change: Callable[[Site, Message], Message | None], **policy: Any
    ) -> None:
        super().__init__(folder, **policy)
        for here in self.sites:
            here.gate.isolated = True
        self._change, self._trainings = change, 0

    def __call__(self, message: Message, node: int) -> Any:
        if node != NODES - 1 or message.metadata.message_type != "train":
            return super().__call__(message, node)
        self._trainings += 1
        if self._trainings == 1:
            return super().__call__(message, node)
        changed = self._change(self.sites[node], message)
        return super().__call__(message, node) if changed is None else changed


def of_two_rounds(folder: Path, plan: Plan, gates: Gates) -> Enforcement | None:
    initial = ArrayRecord({"w": Array(np.zeros(100))})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        DPFedAvg(plan=plan, ledger=ledger).start(LocalGrid(gates, NODES), initial, num_rounds=2)
    with PrivacyLedger.read(folder / "server.db") as read:
        assert read.rounds_spent == 2
        statement = privacy_statement(read)
        assert not statement_differences(read, statement.to_dict())
    return statement.enforcement


def without_its_mark(here: Site, message: Message) -> Message:
    """Answer as the gate does, in the place of an app that makes such an answer itself."""
    asked = message.metadata.message_id
    parts = parts_of(message)
    here.server.objects |= parts.contents
    here.server.waiting.append(parts)
    here.step()
    here.step()
    answer = here.server.arrived[-1].message
    give_id(message, asked)
    return Message(RecordDict(dict(answer.content) | {GATE_KEY: ConfigRecord()}), reply_to=message)


def with_an_error(here: Site, message: Message) -> Message:
    return Message(Error(2, "patient 4711"), reply_to=message)


def with_an_error_that_says_enough(here: Site, message: Message) -> Message:
    return Message(Error(2, "patient 4711: enforced by the site"), reply_to=message)


def no_longer_apart(here: Site, message: Message) -> None:
    here.gate.isolated = False


def whose_owner_refuses(here: Site, message: Message) -> None:
    here.rewrite(**{"dp-policy-expires": "2026-01-01"})


def as_ever(here: Site, message: Message) -> None:
    return None


SHOWN: dict[str, tuple[Any, Enforcement | None]] = {
    "as ever": (as_ever, Enforcement.SITE),
    "no longer apart": (no_longer_apart, Enforcement.COOPERATIVE),
    "without its mark": (without_its_mark, None),
    "an error of another's": (with_an_error, None),
    "an error that says enough": (with_an_error_that_says_enough, None),
    # Its error has the mark: no app has made it.
    "a refusal of the gate's": (whose_owner_refuses, Enforcement.SITE),
}


@pytest.mark.parametrize(("plan_of", "policy"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("change", "enforcement"), SHOWN.values(), ids=SHOWN)
def test_a_statement_claims_no_more_than_the_answers_of_each_round_showed(
    tmp_path: Path, plan_of: Any, policy: Any, change: Any, enforcement: Enforcement | None
) -> None:
    gates = LaterGates(tmp_path, change, **policy)
    assert of_two_rounds(tmp_path, plan_of(), gates) is enforcement


def test_a_node_that_comes_back_without_its_gate_makes_the_training_the_app_s_word(
    tmp_path: Path,
) -> None:
    class Unplugged(SomeGates):
        def __call__(self, message: Message, node: int) -> Message:
            reply = super().__call__(message, node)
            if message.metadata.message_type == "train" and node == 1:
                self.without = frozenset({1})  # from the second round on, under the same id
            return reply

    gates = Unplugged(tmp_path)
    for here in gates.sites:
        here.gate.isolated = True
    assert of_two_rounds(tmp_path, local_plan(), gates) is None


def test_a_node_that_gives_no_answer_counts_as_it_said() -> None:
    assert Answered().enforcement is Enforcement.SITE


def test_a_promise_that_trusts_the_server_says_nothing_of_gates(tmp_path: Path) -> None:
    plan = noised_plan(
        2.0, delta=1e-3, rounds=2, num_clients=NODES, sampling_rate=1.0, clipping_norm=1.0
    )
    clip: dict[str, Any] = {
        "dp-gate-promise": "clip",
        "dp-gate-noise-multiplier": None,
        "dp-max-epsilon": None,
    }
    gates = SomeGates(tmp_path, **clip)
    for here in gates.sites:
        here.gate.isolated = True
    statement = stated(tmp_path, plan, gates)
    assert statement.enforcement is None
    assert statement.trusted == plan.trusted


@pytest.mark.parametrize("said", ["root", None, 7, ["enforced by the site"], "by the app"])
def test_what_can_t_be_meant_is_the_weakest(said: Any) -> None:
    known = NodeIdentity(enforcement=Enforcement.SITE).to_config()
    assert NodeIdentity.from_config(known).enforcement is Enforcement.SITE
    text = str(known["fl-dp-about"]).replace('"enforced by the site"', json.dumps(said))
    hostile = ConfigRecord({**known, "fl-dp-about": text})
    assert NodeIdentity.from_config(hostile).enforcement is Enforcement.APP


@pytest.mark.parametrize(
    ("plan", "policy", "noise", "norm", "sites"),
    [
        # 2.0 x 0.5 x sqrt(400) = 20; (20 / 0.5)^2 = 1,600 sites.
        (None, {"dp-gate-clipping-norm": 0.5}, "20", "0.5", "1,600"),
        # The sum's own: 2 x 1.0 x sqrt(400) = 40, and with 40 sites as much update.
        (distributed_plan, SUMS, "40", "1", "40"),
    ],
)
def test_a_gate_says_how_many_sites_it_takes_before_the_app_trains(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    plan: Any,
    policy: dict[str, Any],
    noise: str,
    norm: str,
    sites: str,
) -> None:
    caplog.set_level("INFO")
    said: list[list[str]] = []
    gates = SomeGates(tmp_path, **policy)
    trains = adding(0.0)

    def app(message: Message) -> Any:
        said.append([line for line in caplog.messages if "more noise than updates" in line])
        return trains(message)

    for here in gates.sites:
        here.app = app
    grid, initial = LocalGrid(gates, NODES), ArrayRecord({"w": Array(np.zeros(400))})
    if plan is None:
        FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES).start(grid, initial, num_rounds=2)
    else:
        with PrivacyLedger.open(tmp_path / "server.db", plan()) as ledger:
            DPFedAvg(plan=plan(), ledger=ledger).start(grid, initial, num_rounds=2)
    [line] = said[0]
    assert f"has length {noise} over 400 parameters, and an update {norm} at most" in line
    assert f"fewer than {sites} sites" in line
    assert said[-1] == [line]  # once a run
