"""One app, named by its hash, trains by DP-SGD of its own: admitted, charged, and nothing else."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from gated_site import PROJECT, Gates, Server, Site, adding, replying
from local_grid import LocalGrid
from record_plans import record_plan
from trainings import record

from fl_dp.accounting import NeighboringRelation, PoissonSampling, PrivacyBudget
from fl_dp.codec import decode_text, encode_text
from fl_dp.gate.flower_wire import Parts, inflated, parts_of
from fl_dp.gate.link import LinkRefused
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Spending
from fl_dp.plan import RecordPlan
from fl_dp.plan.plan_base import ANOTHER_APP
from fl_dp.promise import Enforcement
from fl_dp.protocol.failures import kind_in
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.protocol.introduction import NodeIdentity, forms_to_json
from fl_dp.protocol.message_keys import IDENTITY_ACTION, INSTRUCTION_KEY, MODEL_KEY, RECORD_PLAN_KEY
from fl_dp.statement import RecordStatement, record_statement, statement_markdown
from fl_dp.statement.check import statement_differences
from fl_dp.strategies import LawSelection, UnprotectedFedAvg

MODEL: dict[str, Any] = {"w": np.zeros(4, np.float32), "steps": np.array([3])}
CONFIGURED = PROJECT + "local-epochs = 5\nseed = 1\n"


def fab_with_a_comment() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("pyproject.toml", CONFIGURED)
        file.comment = b"a"
    return made.getvalue()


FAB = fab_with_a_comment()
OVERRIDES: dict[str, Any] = {"local-epochs": 1, "seed": 7}
TERMS: dict[str, Any] = {
    "noise-multiplier": 1.1,
    "sampling-rate": 0.05,
    "steps": 20,
    "clipping-norm": 1.5,
}
RECORD: dict[str, Any] = {
    "dp-gate-promise": "record",
    "dp-gate-clipping-norm": None,
    "dp-gate-noise-multiplier": None,
    "dp-max-epsilon": 4.0,
    "dp-unit-name": "north",
    "dp-allowed-apps": f"hospital/heart@{hashlib.sha256(FAB).hexdigest()}",
    "dp-gate-dp-sgd": TERMS,
    "dp-gate-run-config": OVERRIDES,
    "dp-gate-message-config": {"lr": 0.1},
    "dp-gate-environment": "/srv/app/venv",
    "dp-shared-parameters": "w,steps",
}
PLAN = record_plan(
    epsilon=4.0,
    noise_multiplier=1.1,
    sampling_rate=0.05,
    steps=20,
    participations=3,
    clipping_norm=1.5,
)
PURE: dict[str, Any] = {"lr": 0.1, "server-round": 2}


@pytest.fixture
def named(site: Callable[..., Site]) -> Callable[..., Site]:
    """Make a site whose policy names the app that its server sends."""

    def make(app: Any, **policy: Any) -> Site:
        here = site(app, **RECORD | policy)
        here.server.fab, here.server.overrides = FAB, dict(OVERRIDES)
        return here

    return make


def asked(here: Site, config: dict[str, Any] | None = None) -> Any:
    """Have the site train once, and return the last answer."""
    here.server.train(MODEL, PURE if config is None else config)
    here.step()
    here.step()  # which ends what the app has left open
    return here.server.arrived[-1]


def spending(here: Site) -> Spending:
    with NodeLedger.read(here.ledger) as ledger:
        [only] = ledger.spendings
    return only


# What leaves.


def test_the_app_s_model_leaves_as_it_is_and_nothing_else_does(named: Any) -> None:
    values = np.array([0.1, -7.0, 1e20, 3e-30], np.float32)

    def trained(message: Message) -> dict[str, Any]:
        model = {"w": Array(values), "steps": Array(np.array([99]))}
        return {
            "arrays": ArrayRecord(model),
            "metrics": MetricRecord({"num-examples": 812, "loss": 0.3}),
            "texts": ConfigRecord({"secret": "patient 4711"}),
        }

    arrived = asked(named(replying(trained)))
    assert arrived.arrays["w"].tobytes() == values.tobytes()
    assert arrived.arrays["steps"].tolist() == [3]
    assert set(arrived.message.content) == {"arrays", "metrics"}
    assert dict(arrived.message.content["metrics"]) == {"num-examples": 1}


def test_the_app_is_told_the_owner_s_configuration_and_the_terms_alone(named: Any) -> None:
    here = named(adding(1.0))
    asked(here)
    [seen] = here.seen
    assert set(seen.content) == {"arrays", "config"}
    told = dict(seen.content["config"])
    plan = decode_text(RecordPlan, told.pop(RECORD_PLAN_KEY))
    assert told == PURE
    assert plan == replace(PLAN, participations=1)


# What is refused before it costs anything.


def refused(here: Site) -> None:
    """Check that the only answer is a refusal, of which the app knew nothing."""
    assert not here.seen
    assert here.charges() == 0
    [arrived] = here.server.arrived
    assert arrived.message.has_error(), "it was not refused"
    assert kind_in(arrived.message.error.reason) == "PolicyRefusal"


def test_an_app_of_which_one_byte_differs_is_refused(named: Any) -> None:
    here = named(adding(1.0))
    here.server.fab = FAB[:-1] + b"b"
    asked(here)
    refused(here)


@pytest.mark.parametrize(
    "overrides",
    [
        {},  # then the bundle's own values hold
        {"local-epochs": 1},
        {"local-epochs": 1, "seed": 8},
        {"local-epochs": 1.0, "seed": 7},
        {"local-epochs": True, "seed": 7},
        {"local-epochs": 1, "seed": 7, "lr": 0.2},
        {"local-epochs": 1, "seed": 7, "lr": 0.1},  # the bundle's own, and not the server's to say
    ],
)
def test_a_run_that_is_configured_otherwise_is_refused(
    named: Any, overrides: dict[str, Any]
) -> None:
    here = named(adding(1.0))
    here.server.overrides = overrides
    asked(here)
    refused(here)


@pytest.mark.parametrize(
    "config",
    [
        {"server-round": 2},
        {"lr": 0.2},
        {"lr": "0.1"},
        {"lr": 0.1, "local-epochs": 50},
        {"lr": 0.1, "server-round": "2"},
        {"lr": 0.1, "server-round": True},
        {"lr": 0.1, RECORD_PLAN_KEY: encode_text(replace(PLAN, noise_multiplier=1.0))},
        {"lr": 0.1, RECORD_PLAN_KEY: encode_text(replace(PLAN, steps=19))},
        {
            "lr": 0.1,
            RECORD_PLAN_KEY: encode_text(
                replace(PLAN, neighboring_relation=NeighboringRelation.REPLACE_ONE)
            ),
        },
        {"lr": 0.1, INSTRUCTION_KEY: encode_text(RoundInstruction(server_round=1))},
    ],
)
def test_a_message_that_is_configured_otherwise_is_refused(
    named: Any, config: dict[str, Any]
) -> None:
    here = named(adding(1.0))
    asked(here, config)
    refused(here)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("train", {"fitins.config": MetricRecord({"local-epochs": 50})}),
        ("train.more", {}),
        ("train.default", {}),
        ("evaluate", {}),
        ("query.records", {}),
    ],
)
def test_a_message_with_anything_else_is_refused(
    named: Any, kind: str, more: dict[str, Any]
) -> None:
    here = named(adding(1.0))
    here.server.ask(kind, {"arrays": record(**MODEL), "config": ConfigRecord(PURE)} | more)
    here.step()
    refused(here)


def test_a_message_with_two_configurations_is_not_answered_by_the_app(named: Any) -> None:
    here = named(adding(1.0))
    two = {"config": ConfigRecord(PURE), "other": ConfigRecord({"local-epochs": 50})}
    here.server.ask("train", {"arrays": record(**MODEL)} | two)
    here.step()
    assert not here.seen
    assert here.server.arrived[0].message.has_error()


def test_a_policy_that_pins_nothing_lets_a_server_say_nothing(named: Any) -> None:
    here = named(adding(1.0), **{"dp-gate-run-config": None, "dp-gate-message-config": None})
    here.server.overrides = {}
    here.server.ask("train", {"arrays": record(**MODEL)})
    here.step()
    [seen] = here.seen
    assert list(seen.content["config"]) == [RECORD_PLAN_KEY]
    asked(here, {"server-round": 3})
    assert len(here.seen) == 2
    asked(here, {"lr": 0.1})
    assert len(here.seen) == 2


# What it costs.


def test_a_training_is_charged_before_the_app_has_it(named: Any) -> None:
    charges: list[int] = []

    def app(message: Message) -> Iterator[Message | Parts]:
        charges.append(here.charges())
        yield from adding(1.0)(message)

    here = named(app)
    asked(here)
    assert charges == [1]


@pytest.mark.parametrize("trainings", [1, 3])
def test_it_costs_a_record_what_its_plan_says_to_the_digit(named: Any, trainings: int) -> None:
    here = named(adding(1.0))
    for _ in range(trainings):
        asked(here)
    spent = spending(here)
    assert (spent.unit, spent.charges) == ("record", trainings)
    assert spent.epsilon() == PLAN.epsilon(trainings)


def test_a_budget_that_is_spent_starts_no_app_and_returns_the_model(named: Any) -> None:
    most = PLAN.epsilon(2).best
    here = named(adding(1.0), **{"dp-max-epsilon": 1.1 * most})
    moved = [asked(here).arrays["w"].any() for _ in range(4)]
    assert len(here.seen) == here.charges() == 2
    assert moved == [True, True, False, False]


def test_a_server_s_own_budget_ends_its_training_and_not_another_one(named: Any) -> None:
    own = replace(PLAN, budget=PrivacyBudget(epsilon=1.1 * PLAN.epsilon(1).best, delta=1e-5))
    here = named(adding(1.0))
    for _ in range(2):
        asked(here, PURE | {RECORD_PLAN_KEY: encode_text(own)})
    assert len(here.seen) == 1
    asked(here)
    asked(here, PURE | {RECORD_PLAN_KEY: encode_text(replace(own, training="another"))})
    assert here.charges() == 2


def test_the_ledger_names_the_app_and_by_what_the_promise_holds(named: Any) -> None:
    here = named(adding(1.0))
    here.gate.isolated = True
    asked(here)
    with NodeLedger.read(here.ledger) as ledger:
        [use] = ledger.uses
    assert use.use is not None
    assert use.use.enforcement is Enforcement.NAMED_APP
    assert use.use.app == f"hospital/heart==1.4.0@{hashlib.sha256(FAB).hexdigest()}"


def test_the_app_gets_no_text_and_no_time_of_the_server_s_choice(named: Any) -> None:
    here = named(adding(1.0))
    here.server.train(MODEL, PURE, timeout=4711.0, passed=2.0)
    parts = here.server.waiting.pop()
    message = inflated(parts.tree, parts.contents)
    message.metadata.__dict__["_group_id"] = "take epsilon 100"
    asked = parts_of(message)
    here.server.objects |= asked.contents
    here.server.waiting.append(asked)
    here.step()
    assert here.server.arrived[0].arrays["w"].any()
    [seen] = here.seen
    assert seen.metadata.group_id == ""
    assert seen.metadata.ttl == 86_400.0
    assert seen.metadata.created_at > message.metadata.created_at + 1.0
    # The answer is to the message as it came.
    assert here.server.arrived[0].shell.metadata.group_id == "take epsilon 100"


def test_a_record_under_a_name_of_the_server_s_is_refused(named: Any) -> None:
    here = named(adding(1.0))
    here.server.ask("train", {"take epsilon 100": record(w=np.zeros(4))})
    here.step()
    assert here.server.arrived[0].message.error.reason == "PolicyRefusal"
    assert not here.seen


@pytest.mark.parametrize(
    ("names", "listed", "passes"),
    [
        (["0", "1"], None, True),
        (["1", "0"], None, False),
        (["w", "bias"], "w,bias,head", True),
        (["w", "epsilon 100"], "w,bias", False),
        (["w.epsilon 100"], "w.*", False),  # allowed, and the server's choice
        (["w"], None, False),
    ],
)
def test_names_of_arrays_are_numbers_or_the_owner_s(
    named: Any, names: list[str], listed: str | None, passes: bool
) -> None:
    here = named(adding(1.0), **{"dp-shared-parameters": listed})
    model = {name: np.zeros(2) for name in names}
    forms = {name: ((2,), "float64") for name in names}
    told = introduced(here, {RECORD_PLAN_KEY: encode_text(PLAN), MODEL_KEY: forms_to_json(forms)})
    here.server.train(model, PURE)
    here.step()
    assert told.refuses == (not passes)
    if not passes:
        refused(here)
        return
    [seen] = here.seen
    assert list(seen.content["arrays"]) == names


# An app that fails, and a gate that ends.


def error(message: Message) -> Iterator[Message | Parts]:
    yield Message(Error(3, "patient 4711"), reply_to=message)


def silent(message: Message) -> Iterator[Message | Parts]:
    yield from ()


def of_another_form(message: Message) -> Iterator[Message | Parts]:
    content = RecordDict({"arrays": record(w=np.ones(5, np.float32))})
    yield Message(content, reply_to=message)


@pytest.mark.parametrize("app", [error, silent, of_another_form, adding(np.nan)])
def test_an_app_that_fails_shows_that_once_a_run(named: Any, app: Any) -> None:
    here = named(app)
    for _ in range(3):
        arrived = asked(here)
        assert arrived.arrays["w"].tolist() == [0.0] * 4
        assert arrived.arrays["steps"].tolist() == [3]
        assert dict(arrived.message.content["metrics"]) == {"num-examples": 1}
    assert len(here.seen) == here.charges() == 1


def test_a_gate_that_is_killed_has_charged_and_takes_no_further_part_in_the_run(
    named: Any, tmp_path: Path
) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        shutil.copytree(here.ledger.parent, tmp_path / "killed")  # what lay on its disk
        yield from adding(1.0)(message)

    here = named(app)
    assert asked(here).arrays["w"].any()
    # The next gate answers that message first.
    after = Site(
        tmp_path / "killed",
        adding(1.0),
        server=Server(fab=FAB, overrides=dict(OVERRIDES)),
        **RECORD,
    )
    assert not after.server.arrived.pop().arrays["w"].any()
    assert after.charges() == 1
    assert not asked(after).arrays["w"].any()
    assert not after.seen
    assert after.charges() == 1


def test_an_answer_that_did_not_leave_ends_the_run_as_its_training_is_not_offered_again(
    named: Any,
) -> None:
    here = named(adding(1.0))

    def refuse(shell: Message) -> None:
        raise LinkRefused("the server takes nothing")

    here.server.before_taking = refuse
    here.server.train(MODEL, PURE)
    here.step()
    here.server.before_taking = lambda shell: None
    assert not asked(here).arrays["w"].any()
    assert len(here.seen) == here.charges() == 1


def another_supernode(here: Site, message: Message) -> Iterator[Message | Parts]:
    here.node.call("activate-node")  # the first one died
    yield from ()


def a_message_to_nothing(here: Site, message: Message) -> Iterator[Message | Parts]:
    spare = Message(message.content, reply_to=message)
    spare.metadata.__dict__["_reply_to_message_id"] = "f" * 64
    yield spare  # after which Flower's SuperNode asks for the next message


@pytest.mark.parametrize("ends", [another_supernode, a_message_to_nothing])
def test_a_training_that_was_taken_is_never_offered_again(named: Any, ends: Any) -> None:
    here: Site = named(lambda message: ends(here, message))
    assert not asked(here).arrays["w"].any()
    assert not asked(here).arrays["w"].any()
    assert len(here.seen) == here.charges() == 1


def test_where_the_charge_can_t_be_written_the_app_does_not_start(named: Any) -> None:
    here = named(adding(1.0))
    here.ledger.mkdir()
    here.server.train(MODEL, PURE)
    here.step()
    [arrived] = here.server.arrived
    assert not here.seen
    assert arrived.message.has_error() or not arrived.arrays["w"].any()


# What a server is told, and states.


def introduced(here: Site, config: dict[str, Any]) -> NodeIdentity:
    here.server.ask(f"query.{IDENTITY_ACTION}", {"config": ConfigRecord(config)})
    here.step()
    [said] = here.server.arrived.pop().message.content.config_records.values()
    return NodeIdentity.from_config(said)


def test_the_rehearsal_learns_by_what_the_promise_holds(named: Any) -> None:
    here = named(adding(1.0))
    told = introduced(here, {RECORD_PLAN_KEY: encode_text(PLAN)})
    assert told.enforcement is Enforcement.NAMED_APP
    assert not told.refuses


def test_the_rehearsal_learns_of_what_would_be_refused(named: Any) -> None:
    here = named(adding(1.0))
    noise = NoiseInstruction(scheme="gaussian", noise_multiplier=9.0, clipping_norm=0.1)
    for config in (
        {},
        {RECORD_PLAN_KEY: encode_text(replace(PLAN, noise_multiplier=9.0))},
        {
            RECORD_PLAN_KEY: encode_text(PLAN),
            INSTRUCTION_KEY: encode_text(RoundInstruction(server_round=1, client_noise=noise)),
        },
    ):
        assert introduced(here, config).refuses, config


def test_the_rehearsal_learns_that_the_run_is_configured_otherwise(named: Any) -> None:
    here = named(adding(1.0))
    here.server.overrides = {"local-epochs": 1, "seed": 8}
    assert introduced(here, {RECORD_PLAN_KEY: encode_text(PLAN)}).refuses


NODES = 3


class NamedApps(Gates):
    """Gates that admit one app, and a last one that clips and noises any."""

    def __init__(self, folder: Path, *, others: int = 0) -> None:
        named = RECORD | {"dp-gate-message-config": None}
        del named["dp-unit-name"]  # each has its own
        super().__init__(folder, NODES, **named)
        for here in self.sites:
            here.server.fab, here.server.overrides = FAB, dict(OVERRIDES)
        for here in self.sites[:others]:
            here.rewrite(
                **dict.fromkeys(key for key in RECORD if key.startswith("dp-gate-"))
                | {
                    "dp-gate-promise": "local",
                    "dp-gate-clipping-norm": 1.0,
                    "dp-gate-noise-multiplier": 2.0,
                }
            )


def stated(gates: Gates) -> RecordStatement:
    strategy = UnprotectedFedAvg(
        selection=LawSelection(PoissonSampling(sampling_rate=1.0)), record_plan=PLAN
    )
    strategy.start(LocalGrid(gates, NODES), record(w=np.zeros(4)), num_rounds=2)
    return record_statement(
        PLAN,
        participations=strategy.most_participations,
        num_clients=NODES,
        enforcement=strategy.enforcement,
    )


def test_the_statement_trusts_the_app_that_sites_name_and_no_other(tmp_path: Path) -> None:
    statement = stated(NamedApps(tmp_path))
    assert statement.enforcement is Enforcement.NAMED_APP
    assert statement.trusted.startswith("one app that each site's owner names")
    assert ANOTHER_APP not in statement.not_covered
    page = statement_markdown(statement)
    assert "| holds | by the app that the site names, which runs no other, as sites say |" in page
    assert statement.best_epsilon == PLAN.epsilon(3).best
    assert RecordStatement.from_dict(statement.to_dict()) == statement
    assert not statement_differences(None, statement.to_dict())


def test_where_one_site_names_none_the_statement_says_nothing_of_gates(tmp_path: Path) -> None:
    statement = stated(NamedApps(tmp_path, others=1))
    plain = record_statement(PLAN, participations=2, num_clients=NODES)
    assert statement == plain
    assert "enforcement" not in statement.to_dict()
    assert "| holds |" not in statement_markdown(statement)
