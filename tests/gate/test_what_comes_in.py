"""What comes in: refused or paid for before an app starts, and nothing behind the gate's back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from gated_site import PROJECT, Site, adding, bundle

from fl_dp.codec import encode_text
from fl_dp.gate.flower_wire import Parts
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Use
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.promise import Enforcement
from fl_dp.protocol.failures import kind_in
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.protocol.introduction import Ability, NodeIdentity
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, NOISED_KEY, STATISTIC_ACTION
from fl_dp.protocol.secure_sum_messages import KEY_ACTION, OPEN_ACTION

MODEL = {"w": np.zeros(3, np.float32)}
RECORD = ArrayRecord({"w": Array(np.zeros(3, np.float32))})


def refusal(here: Site) -> str:
    """Return how the only answer refuses, of which the app knew nothing and the ledger neither."""
    assert not here.seen
    assert here.charges() == 0
    [arrived] = here.server.arrived
    assert arrived.message.has_error(), "it was not refused"
    assert len(here.server.confirmed) == 1
    return kind_in(arrived.message.error.reason)


@pytest.mark.parametrize(
    "kind",
    [
        "evaluate",
        "evaluate.more",
        "query",
        "query.records",
        f"query.{STATISTIC_ACTION}",
        f"query.{KEY_ACTION}",
        f"query.{OPEN_ACTION}",
    ],
)
def test_what_no_mod_makes_anew_is_closed_and_told_in_one_line(
    site: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = site(adding(0.0))
    here.server.ask(kind, {"arrays": RECORD, "config": ConfigRecord({})})
    here.step()
    assert refusal(here) == "PolicyRefusal"
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "PolicyRefusal" not in line.getMessage() and "what it returns" in line.getMessage()
    assert line.exc_info is None


def noise(
    multiplier: float = 2.0,
    norm: float = 1.0,
    scheme: str = "gaussian",
    relation: str = "zero-out",
) -> RoundInstruction:
    asked = NoiseInstruction(
        scheme=scheme,
        noise_multiplier=multiplier,
        clipping_norm=norm,
        neighboring_relation=relation,
    )
    return RoundInstruction(server_round=3, client_noise=asked)


@pytest.mark.parametrize(
    "instruction",
    [
        noise(multiplier=1.9),
        noise(norm=1.1),
        noise(scheme="laplace"),
        noise(relation="replace-one"),
        noise(relation="add-or-remove-one"),
        RoundInstruction(server_round=3),
        RoundInstruction(server_round=3, units=(0, 1)),
        RoundInstruction(server_round=3, utility="loss"),
    ],
)
def test_a_round_that_asks_for_less_than_the_owner_is_refused(
    site: Any, instruction: RoundInstruction
) -> None:
    here = site(adding(0.0))
    here.server.train(MODEL, {INSTRUCTION_KEY: encode_text(instruction)})
    here.step()
    assert refusal(here) == "PolicyRefusal"


def test_more_noise_than_the_owner_s_is_added_once_and_told(site: Any) -> None:
    here = site(adding(0.0))
    size = 20_000
    here.server.train(
        {"w": np.zeros(size)}, {"lr": 0.1, INSTRUCTION_KEY: encode_text(noise(multiplier=8.0))}
    )
    here.step()
    # Not told to the app, which would add noise, too.
    assert dict(here.seen[0].content["config"]) == {"lr": 0.1}
    [arrived] = here.server.arrived
    assert arrived.message.content.config_records[NOISED_KEY]["noise-multiplier"] == 8.0
    deviation = arrived.arrays["w"].std()
    # Six standard deviations of the estimate.
    assert deviation == pytest.approx(8.0, rel=6 / np.sqrt(2 * size))


def test_more_noise_is_charged_as_the_owner_s_so_that_the_cap_keeps_its_room(site: Any) -> None:
    here = site(adding(0.0))
    for multiplier in (1e6, 2.5, 2.0):
        instruction = noise(multiplier=multiplier, norm=0.5)
        here.server.train(MODEL, {INSTRUCTION_KEY: encode_text(instruction)})
        here.step()
        here.step()
    with NodeLedger.read(here.ledger) as ledger:
        [spending] = ledger.spendings
    assert spending.releases == {GaussianEvent(noise_multiplier=2.0): 3}


def introduced(here: Site, **config: Any) -> NodeIdentity:
    here.server.ask("query.fl_dp_identity", {"config": ConfigRecord(config)})
    here.step()
    assert not here.seen
    (told,) = here.server.arrived[-1].message.content.config_records.values()
    return NodeIdentity.from_config(told)


def test_the_gate_introduces_itself_in_place_of_the_app(site: Any) -> None:
    here = site(adding(0.0), **{"dp-unit-name": "north"})
    told = introduced(here, **{INSTRUCTION_KEY: encode_text(noise())})
    assert (told.name, told.app, told.refuses) == ("north", "gate of fl-dp", False)
    assert told.abilities == {Ability.NOISE}
    for less in (noise(multiplier=1.0), noise(norm=9.0), RoundInstruction(server_round=0)):
        assert introduced(here, **{INSTRUCTION_KEY: encode_text(less)}).refuses
    assert here.charges() == 0


@pytest.mark.parametrize("isolated", [False, True])
def test_a_gate_says_that_it_enforces_only_where_root_has_tried_it(
    site: Any, isolated: bool
) -> None:
    here = site(adding(0.0))
    here.gate.isolated = isolated
    expected = Enforcement.SITE if isolated else Enforcement.COOPERATIVE
    assert introduced(here).enforcement is expected


# The charge.


def test_the_charge_is_on_disk_before_the_app_has_the_message(site: Any) -> None:
    charged = []

    def app(message: Message) -> Iterator[Message | Parts]:
        charged.append(here.charges())
        yield from adding(1.0)(message)

    here = site(app)
    here.answers(MODEL, rounds=3)
    assert charged == [1, 2, 3]
    with NodeLedger.read(here.ledger) as ledger:
        [use] = ledger.uses
    fab_hash = hashlib.sha256(here.server.fab).hexdigest()
    app_of_all_digits = f"hospital/heart==1.4.0@{fab_hash}"
    assert use.use == Use(
        run=5, purpose="train", app=app_of_all_digits, enforcement=Enforcement.COOPERATIVE
    )


def test_where_the_cap_is_spent_the_app_does_not_start_and_nobody_can_tell(site: Any) -> None:
    size = 20_000
    probe = site(adding(1e3), "one round")
    probe.answers({"w": np.zeros(2)}, rounds=2)
    with NodeLedger.read(probe.ledger) as ledger:
        [spending] = ledger.spendings
    # Enough for two rounds and not for three.
    cap = spending.epsilon().best * 1.02
    here = site(adding(1e3), **{"dp-max-epsilon": cap})
    arrived = here.answers({"w": np.zeros(size)}, rounds=4)
    assert len(here.seen) == here.charges() == 2
    assert len(arrived) == 4
    for answer in arrived:
        assert set(answer.message.content) == {"arrays", "metrics"}
        assert answer.sizes == arrived[0].sizes
        values = answer.arrays["w"]
        assert values.std() == pytest.approx(2.0, rel=6 / np.sqrt(2 * size))


def test_where_nothing_can_be_charged_the_app_does_not_start(site: Any) -> None:
    here = site(adding(1e3))
    here.ledger.mkdir()
    [arrived] = here.answers(MODEL)
    assert not here.seen
    assert not arrived.message.has_error()
    assert np.abs(arrived.arrays["w"]).max() < 20


def test_objects_that_are_still_on_their_way_to_the_superlink_are_waited_for(site: Any) -> None:
    here = site(adding(0.0))
    here.server.train(MODEL)
    here.server.on_their_way = set(here.server.waiting[0].contents)
    here.step()
    assert not here.server.arrived[0].message.has_error()
    assert here.charges() == 1


# A server that lies.


def test_an_object_that_is_not_what_its_id_says_is_refused(site: Any) -> None:
    here = site(adding(0.0))
    here.server.train(MODEL)
    parts = here.server.waiting[0]
    child = parts.tree.children[0].object_id
    here.server.lies[child] = parts.contents[child] + b" "
    here.step()
    assert refusal(here) == "unreadable"


@pytest.mark.parametrize(
    ("name", "value"), [("message_type", "train"), ("run_id", 6), ("dst_node_id", 78)]
)
def test_a_message_that_says_two_things_is_refused(site: Any, name: str, value: Any) -> None:
    """The SuperNode acts on the one, and the app on the other."""
    here = site(adding(0.0))
    here.server.ask("evaluate", {"arrays": RECORD, "config": ConfigRecord({})})
    here.server.waiting[0].shell.metadata.__dict__[f"_{name}"] = value
    here.step()
    assert refusal(here) == "unreadable"


def test_bytes_that_are_no_message_are_refused(site: Any) -> None:
    here = site(adding(0.0))
    here.server.train(MODEL)
    parts = here.server.waiting[0]
    here.server.waiting[0] = parts._replace(tree=parts.tree.children[0])
    here.step()
    assert refusal(here) == "unreadable"


@pytest.mark.parametrize(
    "rule", ["hospital/liver", "hospital/heart>=2", "hospital/heart@" + "0" * 64]
)
def test_an_app_that_the_owner_does_not_name_is_refused(site: Any, rule: str) -> None:
    here = site(adding(0.0), **{"dp-allowed-apps": rule})
    here.server.train(MODEL)
    here.step()
    assert refusal(here) == "PolicyRefusal"


def test_the_app_is_what_its_bundle_says_and_not_what_the_server_says(site: Any) -> None:
    here = site(adding(0.0), **{"dp-allowed-apps": "hospital/heart"})
    here.server.fab = bundle(PROJECT.replace("hospital", "clinic"))
    here.server.train(MODEL)
    here.step()
    assert refusal(here) == "PolicyRefusal"


def test_the_supernode_looks_for_the_app_by_the_names_of_its_bundle(site: Any) -> None:
    """From a run's names Flower makes the path of the code that it loads."""
    here = site(adding(0.0))
    here.server.fab_id, here.server.fab_version = "stranger/../heart", "1.3.0"
    here.answers(MODEL)
    run = here.node.call("get-run", run_id=5).run
    assert (run.fab_id, run.fab_version) == ("hospital/heart", "1.4.0")


def test_a_bundle_that_changes_after_it_was_judged_does_not_reach_the_supernode(site: Any) -> None:
    here = site(adding(0.0), **{"dp-allowed-apps": "hospital/heart"})
    judged = here.server.fab
    here.answers(MODEL)
    here.server.fab = bundle(PROJECT.replace("hospital", "clinic"))
    here.answers(MODEL)
    assert len(here.seen) == 2
    assert here.node.call("get-fab", run_id=5).fab.content == judged


def test_the_app_gets_no_object_but_those_of_its_message(site: Any) -> None:
    got = []

    def app(message: Message) -> Iterator[Message | Parts]:
        got.append(here.node.call("pull-object", object_id=others.tree.object_id))
        yield from adding(1.0)(message)

    here = site(app)
    here.server.train({"w": np.ones(5)})
    others = here.server.waiting.pop()
    here.answers(MODEL)
    assert got == [None]


# The owner changes the mind.


def test_the_policy_is_read_at_every_message(site: Any) -> None:
    here = site(adding(0.0))
    here.answers(MODEL)
    text = here.file.read_text()
    for wrong, reason in (
        (text + "dp-policy-expires: 2026-01-01\n", "PolicyRefusal"),
        (text + "dp-no-such-key: 1\n", "NodeConfigError"),
        ("", "NodeConfigError"),
    ):
        here.file.write_text(wrong)
        [*_, arrived] = here.answers(MODEL)
        assert arrived.message.error.reason == reason
    assert len(here.seen) == here.charges() == 1
    written = yaml.safe_load(text) | {"dp-gate-noise-multiplier": 50.0}
    here.file.write_text(yaml.safe_dump(written))
    here.answers(MODEL)
    with NodeLedger.read(here.ledger) as ledger:
        [spending] = ledger.spendings
    assert "50.0" in json.dumps([str(event) for event in spending.releases])


def test_what_the_owner_does_not_share_is_not_trained(site: Any) -> None:
    here = site(adding(0.0), **{"dp-shared-parameters": "body.*"})
    here.server.train(MODEL)
    here.step()
    assert refusal(here) == "PolicyRefusal"
