"""A client of a secure sum answers what it was sent, once, or not at all."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from encoded_shares import Encoded
from fl_dp.strategies.error_meanings import meaning_of
from flwr.app import Array, ConfigRecord, Context, Message, MetricRecord, RecordDict
from local_grid import FIRST_NODE
from numpy.typing import NDArray
from one_node import (
    INSTRUCTION,
    NODES,
    REQUIRED,
    RUN,
    SHARE,
    SIZE,
    Federation,
    code,
)
from owned_clock import OwnedClock, answer_at_once
from scipy.stats import chi2, chisquare
from worked_here import work_here

from fl_dp.clients.secure_node import IDENTITY_FILE, STORE_FILE
from fl_dp.clients.summed import summed_of
from fl_dp.clients.trained_unit import train_unit
from fl_dp.codec import encode_text
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms import GaussianBundle, NoiseShare
from fl_dp.mechanisms.noise_share import MOST_UNITS
from fl_dp.protocol.instruction import SumInstruction
from fl_dp.protocol.message_keys import (
    CONTRIBUTION_METRIC,
    INSTRUCTION_KEY,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
)
from fl_dp.protocol.secure_sum_messages import (
    DONE_ACTION,
    KEY_ACTION,
    OPEN_ACTION,
    SUM_KEY,
    VIEW_ACTION,
    masked_of,
    text_to_content,
    with_terms,
)
from fl_dp.secagg import Identity, Refused, SecureNode, SQLiteStore
from fl_dp.secagg.client import MaskedMessage, Participation
from fl_dp.statistics import Mean

pytestmark = pytest.mark.slow


def test_a_number_is_answered_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    assert code(federation.train(number=2)) == "answered"
    assert code(federation.train(number=2)) == "Refused stale"
    assert code(federation.train(number=1)) == "Refused stale"
    assert code(federation.train(number=3)) == "answered"
    assert federation.charges() == 2


def changed_content(change: Callable[[RecordDict], None]) -> Callable[[Federation], Message]:
    def send(federation: Federation) -> Message:
        told, sent = federation.content(), federation.content()
        change(sent)
        return federation.ask("train", with_terms(sent, federation.terms(told).to_json()))

    return send


def told_otherwise(**changed: Any) -> Callable[[Federation], Message]:
    """Send another instruction than the terms are for."""
    return lambda federation: federation.train(federation.content(replace(INSTRUCTION, **changed)))


def put(record: str, key: str, value: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[record][key] = value

    return change


@pytest.mark.parametrize(
    "send",
    [
        changed_content(put("config", "lr", 0.0)),
        changed_content(put("model", "w", Array(np.ones(SIZE)))),
        lambda federation: federation.train(purpose="evaluate"),
        lambda federation: federation.train(cohort=federation.others, least=3),
        lambda federation: federation.train(committee=federation.no_committee, threshold=3),
        lambda federation: federation.train(sampling_rate=0.5),
        lambda federation: federation.train(
            segments=(replace(SHARE.segments[0], clipping_norm=0.5),)
        ),
        lambda federation: federation.train(segments=(replace(SHARE.segments[0], size=2),)),
        told_otherwise(secure_sum=None),
        told_otherwise(units=(0,), sampling_rate=None),
        told_otherwise(sampling_rate=0.5),
        told_otherwise(utility="loss"),
        told_otherwise(max_units=2**23 + 1),  # its work would fail, charged
        told_otherwise(
            max_units=MOST_UNITS + 1,
            bundle=GaussianBundle(noise_multiplier=100.0, clipping_norms=(1.0,)),
        ),
    ],
)
def test_anything_else_is_refused_before_it_costs_anything(
    tmp_path: Path, send: Callable[[Federation], Message]
) -> None:
    federation = Federation(tmp_path)
    assert code(send(federation)) in ("Refused terms", "Refused policy")
    assert federation.charges() == 0


QUERY = Mean(lows=(0.0,), highs=(100.0,))


def question(price: SumInstruction) -> Message:
    told: dict[str, Any] = {
        STATISTIC_QUERY_KEY: encode_text(QUERY),
        SUM_KEY: json.dumps(asdict(price)),
    }
    content = RecordDict({"config": ConfigRecord(told)})
    return Message(content, dst_node_id=FIRST_NODE, message_type=f"query.{STATISTIC_ACTION}")


@pytest.mark.parametrize("units", [1, 2])
def test_a_unit_that_may_be_a_node_is_not_charged_for_being_removed(
    tmp_path: Path, units: int
) -> None:
    """Its share of the noise would go with it; how many a node has at most the server says."""
    relation = "add-or-remove-one"
    price = SumInstruction(rounds=3, epsilon=100.0, delta=1e-3, neighboring_relation=relation)
    federation = Federation(tmp_path)
    asked = replace(INSTRUCTION, secure_sum=price, max_units=units)
    assert code(federation.train(federation.content(asked))) == "Refused terms"
    assert federation.charges() == 0
    with pytest.raises(Refused, match="add-or-remove-one neighbours are charged too little"):
        summed_of(question(price))


def test_a_server_that_lowers_the_cap_gets_no_sum_in_which_the_next_record_moves_in(
    tmp_path: Path,
) -> None:
    """Of 50 records the first 5 are taken: one that leaves moves the sixth in, two norms in all."""
    relation = "add-or-remove-one"
    price = SumInstruction(
        rounds=3, epsilon=100.0, delta=1e-3, neighboring_relation=relation, unit="record"
    )
    federation = Federation(tmp_path, **REQUIRED | {"dp-require-privacy": "distributed-records"})
    asked = replace(INSTRUCTION, secure_sum=price, of_records=True, max_units=5)
    assert code(federation.train(federation.content(asked))) == "Refused terms"
    assert federation.charges() == 0


def test_an_unbounded_promise_is_refused_and_binds_nobody(tmp_path: Path) -> None:
    """The first word of a run is what later ones are compared with: NaN would allow them all."""
    federation = Federation(tmp_path)
    for word in ("NaN", "Infinity", "1e999", '"a lot"', "0", "-1.0", "[1.0]"):
        content = federation.content()
        config = content.config_records["config"]
        told = str(config[INSTRUCTION_KEY])
        assert '"epsilon": 100.0' in told
        config[INSTRUCTION_KEY] = told.replace('"epsilon": 100.0', f'"epsilon": {word}')
        assert federation.train(content).has_error()
    assert federation.charges() == 0
    # Nothing was kept of it: the first finite word counts, and holds.
    assert code(federation.train()) == "answered"
    assert INSTRUCTION.secure_sum is not None
    more = replace(INSTRUCTION, secure_sum=replace(INSTRUCTION.secure_sum, epsilon=100.5))
    assert code(federation.train(federation.content(more), number=2)) == "Refused policy"


def test_a_statistic_of_a_node_is_the_same_in_any_order_of_its_units() -> None:
    """Of rounded sums a unit's neighbour moves more than its own vector."""
    asked = question(SumInstruction(rounds=1, epsilon=100.0, delta=1e-3))
    vectors = np.random.default_rng(0).normal(size=(1000, QUERY.dimension)) / 3.0

    def total(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        sent = MetricRecord({CONTRIBUTION_METRIC: vectors.ravel().tolist()})
        reply = Message(RecordDict({"metrics": sent}), reply_to=asked)
        return summed_of(asked).values(reply)[0]

    np.testing.assert_array_equal(total(vectors), total(vectors[::-1]))
    np.testing.assert_allclose(total(vectors), vectors.sum(0), atol=1e-4)


def test_an_owner_s_least_sum_counts_without_those_who_may_collude(tmp_path: Path) -> None:
    for number, (owner, said) in enumerate(
        (
            ({"dp-secagg-min-sum": 3}, "answered"),
            ({"dp-secagg-min-sum": 4}, "Refused policy"),
            ({"dp-secagg-min-sum": 3, "dp-secagg-colluding": 2}, "Refused policy"),
        )
    ):
        assert code(Federation(tmp_path / str(number), **owner | REQUIRED).train()) == said


def test_a_node_that_supposes_more_colluders_is_charged_more(tmp_path: Path) -> None:
    multipliers = []
    for colluding in (1, 2):
        folder = tmp_path / str(colluding)
        owner = {"dp-secagg-colluding": colluding} | REQUIRED
        assert code(Federation(folder, **owner).train()) == "answered"
        with NodeLedger.read(folder / "node-0" / "ledger.db") as ledger:
            ((event, _),) = ledger.spendings[0].history
        multipliers.append(event.noise_multiplier)  # type: ignore[union-attr]  # a Gaussian
    # Three and two honest shares of variance 1, without that of the rounding channel.
    assert multipliers == pytest.approx([3**0.5, 2**0.5], rel=1e-3)


@pytest.mark.parametrize(
    ("owner", "shares"), [({}, 3), ({"dp-secagg-colluding": 0}, 4)], ids=["usual", "said"]
)
def test_a_server_that_lies_does_not_choose_how_many_collude(
    tmp_path: Path, owner: dict[str, int], shares: int
) -> None:
    """With 0 in its terms, its accomplice's share would be charged as if nobody knew it."""
    federation = Federation(tmp_path, pinned=True, **owner)
    assert code(federation.train(colluding=0)) == "answered"
    with NodeLedger.read(tmp_path / "node-0" / "ledger.db") as ledger:
        ((event, _),) = ledger.spendings[0].history
    assert event.noise_multiplier == pytest.approx(shares**0.5, rel=1e-3)  # type: ignore[union-attr]


def test_a_server_that_lies_does_not_make_its_accomplice_the_whole_committee(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path, pinned=True)
    alone = federation.directory.committee(1)
    asked = federation.train(colluding=0, committee=alone, threshold=1)
    assert code(asked) == "Refused policy"


def test_a_budget_that_is_spent_answers_with_noise_that_is_not_charged(tmp_path: Path) -> None:
    federation = Federation(tmp_path, **REQUIRED | {"dp-max-epsilon": 1e-2})
    reply = federation.train()
    assert len(masked_of(reply.content, longest=2 * SIZE).masked) == 2 * SIZE  # as any other
    assert federation.charges() == 0


@pytest.mark.parametrize(
    "owner", [{"dp-max-epsilon": 5.0}, {"dp-max-epsilon": 100.0, "dp-max-delta": 1e-6}], ids=str
)
def test_an_owner_who_allows_less_than_is_asked_is_told_that_the_node_will_fall_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, owner: dict[str, float]
) -> None:
    federation = Federation(tmp_path, **REQUIRED | owner)
    for number in (1, 2):  # and once is enough
        assert code(federation.train(number=number)) == "answered"
    assert caplog.text.count("once it is spent, the node adds noise alone") == 1


CAP = 2.0  # pays for one sum


@pytest.mark.parametrize("rounds", [1, 10**6])
def test_a_server_that_lies_about_how_many_sums_there_are_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    encoded = Encoded(monkeypatch)
    federation = Federation(tmp_path, **REQUIRED | {"dp-max-epsilon": CAP, "dp-max-delta": 1e-3})
    price = SumInstruction(rounds=rounds, epsilon=100.0, delta=1e-3)
    for number in (1, 2, 3):
        content = federation.content(replace(INSTRUCTION, secure_sum=price))
        assert code(federation.train(content, number=number)) == "answered"
    spent = PLDAccountant()
    for event, count in federation.events():
        spent.compose(SelfComposedDpEvent(GaussianDpEvent(event.noise_multiplier), count))
    assert spent.get_epsilon(1e-3) <= CAP
    assert [bool(values.any()) for values in encoded.values] == [True, False, False]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"epsilon": 100.5}, "Refused policy"),
        ({"epsilon": None}, "Refused policy"),
        ({"delta": 2e-3}, "Refused policy"),
        ({"neighboring_relation": "replace-one"}, "Refused policy"),
        ({"epsilon": 50.0, "delta": 1e-4, "rounds": 7}, "answered"),
    ],
    ids=str,
)
def test_a_policy_that_allows_itself_more_than_at_first_is_refused(
    tmp_path: Path, change: dict[str, Any], answer: str
) -> None:
    federation = Federation(tmp_path)
    price = SumInstruction(rounds=5, epsilon=100.0, delta=1e-3)
    for number, asked in ((1, price), (2, replace(price, **change)), (3, price)):
        content = federation.content(replace(INSTRUCTION, secure_sum=asked))
        expected = answer if number == 2 else "answered"
        assert code(federation.train(content, number=number)) == expected
    assert federation.charges() == (3 if answer == "answered" else 2)


def test_a_sum_after_one_that_found_no_room_for_a_ledger_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fl_dp.ledger import store as ledger_store

    connect = ledger_store._connect

    def full(path: Path, *, writable: bool) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, writable=writable)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    federation = Federation(tmp_path, **REQUIRED)
    with monkeypatch.context() as patch:
        patch.setattr(ledger_store, "_connect", full)
        refused = federation.train(number=1)
    assert code(refused) == "StorageUnavailable"  # not which of the node's disks it is
    meaning = meaning_of(refused.error)
    assert meaning is not None and meaning.text == "this node can't answer, its log says why"
    lines = [record for record in caplog.records if "is full" in record.getMessage()]
    assert lines and not any(record.exc_info for record in lines)  # one line each
    assert not any("Traceback" in (record.exc_text or "") for record in caplog.records)
    assert (tmp_path / "node-0" / "ledger.db").stat().st_size == 0  # it was never made
    assert code(federation.train(number=2)) == "answered"
    assert federation.charges() == 1


def test_a_price_outlives_a_run_that_was_called_done(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    price = SumInstruction(rounds=5, epsilon=100.0, delta=1e-3)
    answers = []
    for asked in (price, replace(price, epsilon=200.0), price):
        content = federation.content(replace(INSTRUCTION, secure_sum=asked))
        answers.append(code(federation.train(content)))
        for node in range(NODES):
            done = text_to_content(json.dumps({"run": RUN, "left_out": []}))
            assert not federation.ask(DONE_ACTION, done, node).has_error()
        federation.meet(RUN)
    assert answers == ["answered", "Refused policy", "answered"]


def test_a_node_without_a_ledger_refuses(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    context = federation.nodes.contexts[0]
    federation.nodes.contexts[0] = Context(
        1, FIRST_NODE, {"dp-unit-name": "x"}, RecordDict(), context.run_config
    )
    assert code(federation.train()) == "ValueError"


def test_keys_are_the_owner_s_alone(tmp_path: Path) -> None:
    Federation(tmp_path)
    for name in (IDENTITY_FILE, STORE_FILE):
        assert (tmp_path / "node-0" / name).stat().st_mode & 0o777 == 0o600


def test_a_store_that_was_lost_makes_old_messages_useless(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    assert code(federation.train()) == "answered"
    for file in (tmp_path / "node-0").glob(f"{STORE_FILE}*"):
        file.unlink()
    assert code(federation.train()) == "Refused directory"  # its key of the run went with it


COINS = replace(INSTRUCTION, sampling_rate=0.5)
NOBODY, EVERYBODY = 1e-12, 1.0 - 1e-12  # rates of secret coins, as good as 0 and 1 in these tests


def test_coins_without_a_time_to_answer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lying server would read the coins off the time, and the node would charge an amplified sum.

    The plan asks for both; a server need not have one.
    """
    work_here(monkeypatch)
    answer_at_once(monkeypatch)
    federation = Federation(tmp_path)
    asked = federation.content(COINS)
    assert code(federation.train(asked, sampling_rate=0.5)) == "Refused terms"
    assert federation.charges() == 0
    assert code(federation.train(asked, sampling_rate=0.5, reply_after=600.0)) == "answered"


def test_a_time_that_ends_within_the_work_is_refused(tmp_path: Path) -> None:
    """A lying server would see whose answers are late: theirs whose coins came up."""
    federation = Federation(tmp_path)
    asked = federation.content(COINS)
    assert code(federation.train(asked, sampling_rate=0.5, reply_after=3.9)) == "Refused terms"
    assert federation.charges() == 0


def test_values_that_no_noise_can_be_put_around_are_answered_with_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error reply would tell of the data, after everything was paid."""
    federation, encode = Federation(tmp_path), NoiseShare.encode

    def fails(share: NoiseShare, values: Any, rng: Any) -> Any:
        if any(np.any(each) for each in values):
            raise ValueError("an entry of one record")
        return encode(share, values, rng)

    monkeypatch.setattr(NoiseShare, "encode", fails)
    assert code(federation.train()) == "answered"


# Coins: nobody sees whether one came up, in no byte and at no time.

SUMS = 30
PRICE = SumInstruction(rounds=100, epsilon=1e9, delta=1e-3)


class Sent:
    """What left a node in some sums, and what was in it before it was masked."""

    def __init__(self, folder: Path, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
        federation, clock = Federation(folder), OwnedClock()
        self.steps: list[Any] = []
        self.left_at: list[float] = []
        self.messages: list[MaskedMessage] = []
        message, train = Participation.message, train_unit

        def kept(part: Participation, steps: Any) -> MaskedMessage:
            self.steps.append(steps)
            return message(part, steps)

        def slow(*told: Any) -> Any:
            clock.sleep(0.7)
            return train(*told)

        with monkeypatch.context() as patch:
            work_here(patch)
            patch.setattr(Participation, "message", kept)
            patch.setattr("fl_dp.clients.units.train_unit", slow)
            clock.put_in_place(patch)
            asked = federation.content(replace(INSTRUCTION, sampling_rate=rate, secure_sum=PRICE))
            for number in range(1, SUMS + 1):
                began = clock.now()
                reply = federation.train(asked, number=number, sampling_rate=rate, reply_after=5.0)
                assert code(reply) == "answered"
                self.left_at.append(round(clock.now() - began, 9))
                self.messages.append(masked_of(reply.content, longest=2 * SIZE))
                assert sorted(reply.content) == ["bundles", "masked"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Sent]:
    folder = tmp_path_factory.mktemp("coins")
    with pytest.MonkeyPatch.context() as patch:
        return {rate: Sent(folder / str(rate), rate, patch) for rate in (NOBODY, EVERYBODY)}


def test_answers_leave_at_the_same_time(both: dict[float, Sent]) -> None:
    assert both[NOBODY].left_at == both[EVERYBODY].left_at == [5.0] * SUMS


def test_answers_have_the_same_form(both: dict[float, Sent]) -> None:
    forms = {
        (len(m.masked), tuple(map(len, m.bundles)), len(m.commitments))
        for sent in both.values()
        for m in sent.messages
    }
    assert len(forms) == 1


@pytest.mark.parametrize("rate", [NOBODY, EVERYBODY])
def test_bytes_are_uniform(both: dict[float, Sent], rate: float) -> None:
    """Sixteen values of half a byte; a right mask fails once in a million runs."""
    sent = np.frombuffer(b"".join(m.masked for m in both[rate].messages), np.uint8)
    counts = np.bincount(np.concatenate([sent & 15, sent >> 4]), minlength=16)
    assert chisquare(counts).pvalue > 1e-6


def test_bytes_before_the_masks_would_fail_that_test(both: dict[float, Sent]) -> None:
    steps = np.concatenate(both[NOBODY].steps).astype("<u2").view(np.uint8)
    counts = np.bincount(np.concatenate([steps & 15, steps >> 4]), minlength=16)
    assert chisquare(counts).pvalue < 1e-6


@pytest.mark.parametrize(("rate", "centre"), [(NOBODY, 0.0), (EVERYBODY, 0.1 * 100.0)])
def test_the_share_of_noise_does_not_depend_on_coins(
    both: dict[float, Sent], rate: float, centre: float
) -> None:
    """Law of the squared length, to one false alarm in a million; half the noise would fail."""
    steps = np.concatenate(both[rate].steps)
    squared = float((((steps - centre) / SHARE.noise_scale) ** 2).sum())
    low, high = (float(chi2.ppf(at, SUMS * SIZE)) for at in (5e-7, 1 - 5e-7))
    assert low < squared < high
    assert chi2.cdf(low / 0.5**2, SUMS * SIZE) > 0.99  # power


def test_the_largest_sum_so_far_bounds_what_all_of_them_may_be_off(tmp_path: Path) -> None:
    """Sums of one size after larger ones do not make the error of those go away."""
    node = SecureNode(Identity.generate(), SQLiteStore(None), name="x")
    federation = Federation(tmp_path)
    terms = federation.terms(federation.content())
    assert node.largest(terms) == (SIZE, NODES)
    more = replace(terms, segments=(replace(SHARE.segments[0], size=1000),))
    assert node.largest(more) == (1000, NODES)
    assert node.largest(terms) == (1000, NODES)


def test_a_node_that_takes_no_part_gives_no_key(tmp_path: Path) -> None:
    """Else it would be counted on, and each round would be charged in vain."""
    # Any promise to itself would do, and without a roster no secure sum is one.
    federation = Federation(tmp_path)
    apart = federation.nodes.contexts[0]
    owner = dict(apart.node_config) | {"dp-max-epsilon": 4.0}
    federation.nodes.contexts[0] = Context(1, FIRST_NODE, owner, RecordDict(), {})
    asked = text_to_content(json.dumps({"run": 8, "epoch": 0}))
    assert code(federation.ask(KEY_ACTION, asked)) == "PolicyRefusal"


def pin(federation: Federation, *, without: int | None = None, by: str = "node_config") -> None:
    """Let the first node's owner pin a roster from now on, with everybody or without one node."""
    identities = [
        Identity.load_or_create(federation.folder / f"node-{node}" / IDENTITY_FILE).public.hex()
        for node in range(NODES)
    ]
    members = [
        {"name": f"site-{node:03d}", "identity": identity}
        for node, identity in enumerate(identities)
        if node != without
    ]
    file = federation.folder / "roster.json"
    file.write_text(json.dumps({"federation": "tests", "members": members}))
    context = federation.nodes.contexts[0]
    said = {"dp-secagg-roster": str(file)} | REQUIRED
    if by == "policy":
        policy = federation.folder / "policy.yaml"
        policy.write_text(json.dumps(said))  # JSON is YAML
        said = {"dp-policy-path": str(policy)}
    config = {key: v for key, v in context.node_config.items() if key not in REQUIRED} | said
    federation.nodes.contexts[0] = Context(1, FIRST_NODE, config, RecordDict(), context.run_config)


@pytest.mark.parametrize("change", ["by restart", "by policy file", "struck out"])
def test_a_roster_that_is_pinned_late_binds_every_role(tmp_path: Path, change: str) -> None:
    """A directory that was accepted before may hold strangers: it is not answered any more."""
    federation = Federation(tmp_path, pinned=change == "struck out")
    assert code(federation.train()) == "answered"
    assert code(federation.ask(VIEW_ACTION, federation.question(number=2))) == "answered"
    pin(
        federation,
        without=3 if change == "struck out" else None,
        by="policy" if change == "by policy file" else "node_config",
    )
    assert code(federation.train(number=3)) == "Refused directory"
    for action in (VIEW_ACTION, OPEN_ACTION):
        asked = federation.question(number=4)
        assert code(federation.ask(action, asked)) == "Refused directory"
    assert federation.charges() == 1


class TestOlderStore:
    """An owner, or whoever may write the node's folder, puts an older `secagg.db` back."""

    def copied(self, folder: Path) -> Path:
        copy = folder / "copy.db"
        shutil.copy(folder / "node-0" / STORE_FILE, copy)
        return copy

    def put_back(self, folder: Path, copy: Path) -> None:
        shutil.copy(copy, folder / "node-0" / STORE_FILE)

    @pytest.mark.parametrize("role", ["train", VIEW_ACTION])
    def test_alone_it_is_refused_by_the_ledger(
        self, tmp_path: Path, role: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        federation = Federation(tmp_path)

        def asked(number: int) -> str:
            if role == "train":
                return code(federation.train(number=number))
            return code(federation.ask(role, federation.question(number=number)))

        assert asked(1) == "answered"
        copy = self.copied(tmp_path)
        assert asked(2) == "answered"
        self.put_back(tmp_path, copy)
        for number in (2, 3, 4):  # nor do its marks ever catch up
            assert asked(number) == "Refused stale"
        assert "has 1 marks and the ledger knows of 2" in caplog.text
        federation.lose_keys()  # what the log tells the owner to do
        assert asked(5) == "answered"

    def test_with_the_ledger_it_is_refused_by_the_witness(self, tmp_path: Path) -> None:
        witness = tmp_path / "elsewhere" / "heads"
        witness.parent.mkdir()
        owner: dict[str, Any] = {"dp-witness-path": str(witness)}
        federation = Federation(tmp_path, **owner)
        assert code(federation.ask(VIEW_ACTION, federation.question())) == "answered"
        copy, ledger = self.copied(tmp_path), tmp_path / "node-0" / "ledger.db"
        older = ledger.read_bytes()
        assert code(federation.ask(VIEW_ACTION, federation.question(number=2))) == "answered"
        self.put_back(tmp_path, copy)
        ledger.write_bytes(older)
        answer = federation.ask(VIEW_ACTION, federation.question(number=2))
        assert code(answer) == "LedgerCorrupted"

    def test_a_copy_of_now_is_as_good(self, tmp_path: Path) -> None:
        federation = Federation(tmp_path)
        assert code(federation.train()) == "answered"
        self.put_back(tmp_path, self.copied(tmp_path))
        assert code(federation.train(number=2)) == "answered"


def test_a_run_that_can_not_be_leaves_no_key(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    asked = text_to_content(json.dumps({"run": 2**64, "epoch": 0}))
    assert code(federation.ask(KEY_ACTION, asked)) == "Refused directory"
    store = SQLiteStore(tmp_path / "node-0" / STORE_FILE)
    assert store._all("SELECT DISTINCT run FROM kept WHERE run != ''") == [(str(RUN),)]
