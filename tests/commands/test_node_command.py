"""`fl-dp node`: what a node will do, in plain words, and how its owner ends it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import ANY

import pytest
from flat_plans import noised_plan
from node_charges import charge
from record_plans import record_plan
from typer.testing import CliRunner

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.commands.app import app
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account, RunLimit, Use
from fl_dp.ledger.witness import FileWitness
from fl_dp.mechanisms.mechanism_events import GaussianEvent


def call(*arguments: object, answer: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["node", *map(str, arguments)], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    charge(tmp_path / "ledger.db")
    return tmp_path / "ledger.db"


@pytest.fixture
def witness(ledger: Path, tmp_path: Path) -> FileWitness:
    """A second place that knows of the ledger."""
    (tmp_path / "there").mkdir()
    witness = FileWitness(tmp_path / "there" / "ward.heads")
    with NodeLedger.read(ledger) as opened:
        opened.begin_witness(witness)
    return witness


def test_what_a_node_will_do_is_said(ledger: Path) -> None:
    status, said = call(
        "check", f'dp-ledger-path="{ledger}" dp-max-epsilon=2.5 dp-require-privacy="record+local"'
    )
    assert status == 0
    assert "DP-SGD inside the node, which protects each record and" not in said
    assert "noise that the node adds to its own answer and DP-SGD" in said
    cap = "epsilon 2.5 at delta 1e-05, one record (neighbours as each run's), against whom each"
    assert f"All runs together spend at most {cap} run's promise names; and as much for" in said
    assert "it holds 1 charges so far" in said
    assert "no witness" in said
    assert "--trusted-entities" in said


def test_what_still_fits_under_the_cap_is_said_and_is_true(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    config = f'dp-ledger-path="{place}" dp-max-epsilon=40.0 dp-require-privacy="record"'
    assert "Nothing was spent: all of the cap is there, epsilon 40" in call("check", config)[1]
    charge(place, epsilon=40.0, noise=8.0, count=30)
    charge(place, epsilon=40.0, noise=5.0, count=10)
    status, said = call("check", config)
    assert status == 0
    told = re.search(
        r"Of epsilon 40, 'ward' has spent epsilon ([0-9.]+) for each record \(at delta "
        r"[^)]*one record \(zero-out\), against [^)]*\); what still fits is a "
        r"run of Gaussian noise of up to epsilon ([0-9.]+) by itself, or ([0-9,]+) more times .*"
        r"noise multiplier 8.*, or ([0-9,]+) more times .*noise multiplier 5",
        said,
    )
    assert told is not None, said
    spent, room = float(told[1]), float(told[2])
    quieter, louder = (int(told[number].replace(",", "")) for number in (3, 4))
    assert 4.0 < spent < 10.0 and 20.0 < room < 40.0
    # As many fit as it says, and no more.
    for noise, most in ((8.0, quieter), (5.0, louder)):
        with pytest.raises(PrivacyBudgetExhausted):
            charge(place, epsilon=40.0, noise=noise, count=most + 1)
    charge(place, epsilon=40.0, noise=8.0, count=quieter)
    assert "more times" not in call("check", config)[1]


def test_accounts_of_runs_without_a_cap_are_shown_as_such(tmp_path: Path) -> None:
    place, budget = tmp_path / "ledger.db", PrivacyBudget(epsilon=4.0, delta=1e-5)
    with NodeLedger.open(place) as opened:
        for run in ("run 1", "run 2"):
            opened.charge(
                Account(unit="record", source="ward"),
                GaussianEvent(noise_multiplier=5.0),
                budget=None,
                limit=RunLimit(run=run, budget=budget),
                what=run,
            )
    assert "no cap" in call("ledger", place)[1]
    for options in ((), ("--json",)):
        result = CliRunner().invoke(app, ["ledger", str(place), *options])
        assert result.exit_code == 0
        said = " ".join(result.stdout.split())
        assert ("no cap" in said) if "--json" not in options else ('"budget": null' in said)


def test_a_node_that_requires_nothing_is_said_so() -> None:
    status, said = call("check", 'dp-dataset-name="ward"')
    assert status == 0
    assert "every message, private or not" in said
    assert "no cap" in said
    assert "the server's word" in said


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        ('dp-ledgr-path="/l.db"', 2, "did you mean dp-ledger-path"),
        ("dp-max-epsilon 4.0 =", 2, "Flower reads only nothing"),
        ("/there/is/none.yaml", 2, "can't be read, so nothing is answered"),
        ('dp-ledger-path="/there/is/none/l.db" dp-max-epsilon=4.0', 1, "does not exist: make it"),
        ('dp-data-path="/there/is/none"', 1, "dp-data-path names /there/is/none"),
        ('dp-policy-expires="2020-01-31"', 1, "its permission has ended"),
    ],
)
def test_what_is_wrong_is_said_before_the_node_starts(config: str, status: int, said: str) -> None:
    assert call("check", config)[0] == status
    assert said in call("check", config)[1]


def test_no_password_of_a_database_is_said() -> None:
    # Nobody listens there.
    place = "postgresql+psycopg://ward:swordfish@127.0.0.1:1/ledgers?sslpassword=tuna"
    status, said = call(
        "check", f'dp-ledger-path="{place}" dp-max-epsilon=4.0 dp-witness-path="{place}"'
    )
    assert status == 1
    assert "ward:***@127.0.0.1" in said
    assert "swordfish" not in said and "tuna" not in said


def test_each_part_of_a_policy_is_said_in_words(ledger: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("columns: [age, pressure]\ntypes: [integer, number]\nclasses: [well, ill]\n")
    status, said = call(
        "check",
        f'dp-ledger-path="{ledger}" dp-max-epsilon=2.5 dp-require-privacy="distributed" '
        'dp-secagg-min-sum=20 dp-allowed-apps="hospital/heart>=1.2,<2" dp-min-round-interval=900 '
        f'dp-data-schema="{schema}" dp-policy-expires="2999-01-31" dp-unit-name="ward" '
        'pets=3 site="a"',
    )
    assert status == 0
    for words in (
        "It answers hospital/heart>=1.2,<2 alone",
        "kept out by signatures, not by this",
        "fewer than 20 honest clients; without dp-secagg-roster",
        "Between two rounds lie at least 900 s",
        "It answers nothing from 2999-01-31 on",
        "It does not read pets, site, which others may",
        "It trains on age (integer), pressure (number) and on nothing else",
        "Its labels are well, ill of column label",
    ):
        assert words in said, words


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('dp-require-privacy="record" dp-ledger-path="/l.db"', "needs a cap and a ledger"),
        ("dp-min-round-interval=900", "needs a file beside the ledger"),
        ('dp-allowed-apps="heart"', "an app is publisher/name"),
        ("dp-secagg-min-sum=20", "which this node does not require"),
        ('dp-min-rounds-interval="none"', "did you mean dp-min-round-interval"),
    ],
)
def test_a_policy_that_can_not_be_meant_is_an_error(config: str, said: str) -> None:
    status, told = call("check", config)
    assert status == 2
    assert said in told


def test_a_schema_that_can_not_be_meant_is_said(ledger: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    for text, wrong in (
        ("columns: [age]\ntypes: [whole]\n", "types must be number, integer, truth"),
        ("columns: [age]\ncolumns: [weight]\n", "'columns' is given twice"),
        ("- age\n", "must hold keys and values"),
    ):
        schema.write_text(text)
        status, said = call("check", f'dp-ledger-path="{ledger}" dp-data-schema="{schema}"')
        assert status == 1
        assert wrong in said


def test_an_owner_sees_by_whom_when_and_for_what_the_data_were_used(ledger: Path) -> None:
    for run, purpose in ((7, "train"), (7, "train"), (8, "evaluate")):
        charge(ledger, use=Use(run=run, purpose=purpose, app="hospital/heart==1.4.0@3f2a9c01"))
    config = f'dp-ledger-path="{ledger}" dp-max-epsilon=2.5'
    result = CliRunner().invoke(app, ["node", "ledger", "--node-config", config, "--json"])
    shown = json.loads(result.output)
    seen = [(use["run"], use["purpose"], use["answers"]) for use in shown["uses"]]
    assert seen == [(None, None, 1), (7, "train", 2), (8, "evaluate", 1)]
    today = datetime.now(UTC).date().isoformat()
    assert {use["first_day"] for use in shown["uses"]} <= {today, shown["uses"][0]["first_day"]}
    [account] = shown["accounts"]
    spent = min(account["epsilon"].values())
    assert account["left"] == pytest.approx(2.5 - spent)
    # Nothing in it is finer than a day.
    assert not re.search(r"\d\d:\d\d", result.output)
    status, said = call("ledger", ledger)
    assert status == 0
    assert "Chain verified" in said and "training" in said


def test_a_cap_that_is_written_down_later_makes_what_was_spent_no_smaller(
    tmp_path: Path,
) -> None:
    """The budget grew before there was a cap: only a bound that holds whenever one stops is so."""
    path = tmp_path / "grown.db"
    for epsilon, count in ((2.0, 1), (30.0, 40)):
        charge(path, epsilon=epsilon, noise=3.0, count=count)
    config = f'dp-ledger-path="{path}" dp-max-epsilon=40'
    [before] = json.loads(call("ledger", path, "--json")[1])["accounts"]
    [after] = json.loads(call("ledger", "--node-config", config, "--json")[1])["accounts"]
    assert after["quoted"] == "filter"
    assert after["epsilon"] == before["epsilon"]
    assert after["left"] == pytest.approx(40.0 - after["epsilon"]["filter"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a node's ledger, or its --node-config"),
        (("/l.db", "--node-config", 'dp-ledger-path="/l.db"'), "and not both"),
        (("--node-config", 'dp-unit-name="ward"'), "keeps no ledger"),
        (("/there/is/none.db",), "none.db"),
    ],
)
def test_what_is_no_node_s_ledger_is_said(arguments: tuple[str, ...], said: str) -> None:
    status, told = call("ledger", *arguments)
    assert status == 2
    assert said in told


GATE = """\
dp-ledger-path: {ledger}
dp-gate-promise: {promise}
dp-gate-clipping-norm: 0.5
dp-gate-answer-after: 90
"""


def test_a_gate_is_checked_by_its_file(ledger: Path, tmp_path: Path) -> None:
    policy = tmp_path / "gate.yaml"
    local = "dp-gate-noise-multiplier: 4.0\ndp-max-epsilon: 2.5\ndp-unit-name: ward\n"
    policy.write_text(GATE.format(ledger=ledger, promise="local") + local)
    status, said = call("check", policy)
    assert status == 0
    assert "to the L2 norm 0.5, and adds Gaussian noise of 4 times that norm at least" in said
    assert "answered 90 s after it came" in said
    assert "the whole cap has room for " in said
    assert "at most epsilon 2.5" in said and "it holds 1 charges so far" in said
    assert "trusted-entities" not in said and "dp-data-schema" not in said
    status, said = call("ledger", "--node-config", policy)
    assert (status, "ward" in said, "2.5" in said) == (0, True, True)


def test_a_gate_whose_cap_has_no_room_for_one_answer_is_told(ledger: Path, tmp_path: Path) -> None:
    policy = tmp_path / "gate.yaml"
    local = "dp-gate-noise-multiplier: 0.5\ndp-max-epsilon: 1.0\n"
    policy.write_text(GATE.format(ledger=ledger, promise="local") + local)
    status, said = call("check", policy)
    assert status == 1
    assert "no room for one answer: raise dp-gate-noise-multiplier" in said


def test_a_gate_that_adds_no_noise_says_so(ledger: Path, tmp_path: Path) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text(GATE.format(ledger=ledger, promise="clip"))
    status, said = call("check", policy)
    assert status == 0
    assert "relies upon the server's, and promises no epsilon" in said
    assert "cap" not in said


def test_a_gate_that_admits_one_app_says_what_it_trusts_and_what_that_costs(
    ledger: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text(
        GATE.format(ledger=ledger, promise="record").replace("dp-gate-clipping-norm: 0.5\n", "")
        + f"dp-max-epsilon: 2.5\ndp-allowed-apps: hospital/heart@{'0f' * 32}\n"
        "dp-gate-dp-sgd: {noise-multiplier: 1.1, sampling-rate: 0.01, steps: 20, "
        "clipping-norm: 1.0}\ndp-gate-run-config: {local-epochs: 1}\n"
        "dp-gate-environment: /srv/app/venv\n"
    )
    status, said = call("check", policy)
    plan = record_plan(epsilon=2.5, noise_multiplier=1.1, sampling_rate=0.01, steps=20)
    assert status == 0
    assert "nothing to the site as a whole, by the DP-SGD of one app, whose code the owner" in said
    assert f"hospital/heart@{'0f' * 32} alone" in said
    assert "lets a run set local-epochs=1, and a training message nothing" in said
    assert "trusts the app's packages as they are: /srv/app/venv" in said
    assert "20 steps of noise multiplier 1.1 on samples of rate 0.01" in said
    assert f"one alone costs {Guarantee.of(plan, plan.epsilon().best)}" in said


def test_a_gate_s_policy_that_can_t_be_meant_is_an_error(tmp_path: Path) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text("dp-gate-clipping-norm: 0.5\n")
    assert call("check", policy) == (2, ANY)
    assert "dp-gate-promise is missing" in call("check", policy)[1]


def test_an_owner_revokes_once_and_is_asked(ledger: Path) -> None:
    assert call("revoke", ledger, answer="n\n")[0] == 1
    assert NodeLedger.day_of_revocation(ledger) is None
    assert call("revoke", ledger, answer="y\n")[0] == 0
    assert NodeLedger.day_of_revocation(ledger) is not None
    status, said = call("check", f'dp-ledger-path="{ledger}" dp-max-epsilon=2.5')
    assert status == 1
    assert "every use was revoked on" in said
    status, said = call("revoke", ledger, "--yes")
    assert status == 2
    assert "revoked already" in said


def test_a_ledger_that_is_gone_is_seen_by_its_witness(
    ledger: Path, witness: FileWitness, tmp_path: Path
) -> None:
    ledger.unlink()
    config = f'dp-ledger-path="{ledger}" dp-witness-path="{witness.location}" dp-max-epsilon=2.5'
    status, said = call("check", config)
    assert status == 1
    assert "is gone, and its witness" in said
    status, said = call("check", config.replace(witness.location, str(tmp_path / "ward.heads")))
    assert status == 1
    assert "the ledger's own folder" in said


def test_a_revoked_ledger_says_so_wherever_it_is_shown(ledger: Path) -> None:
    call("revoke", ledger, "--yes")
    shown = CliRunner().invoke(app, ["ledger", str(ledger)]).output
    assert "Every use was revoked on" in " ".join(shown.split())


def test_a_trainings_ledger_is_not_revoked(tmp_path: Path) -> None:
    plan = noised_plan(
        1.0, delta=1e-3, rounds=2, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
    )
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as opened:
        before = opened.anchor
    status, said = call("revoke", tmp_path / "ledger.db", "--yes")
    assert status == 2
    assert "is no node's ledger" in said
    with PrivacyLedger.read(tmp_path / "ledger.db") as opened:
        assert opened.anchor == before


def test_a_revocation_is_witnessed(ledger: Path, witness: FileWitness) -> None:
    assert call("revoke", ledger, "--yes", "--witness", witness.location)[0] == 0
    with NodeLedger.read(ledger, witness=witness) as opened:
        assert witness.anchors()[-1] == opened.anchor


def test_no_ledger_is_made_to_be_revoked(tmp_path: Path) -> None:
    status, said = call("revoke", tmp_path / "ledger.db", "--yes")
    assert status == 2
    assert "no ledger at" in said
    assert not (tmp_path / "ledger.db").exists()
