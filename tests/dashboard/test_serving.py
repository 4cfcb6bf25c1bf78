"""Where the dashboard listens, what it warns of, and the budgets that it is pointed at."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from command_line import call, said_on_stderr
from dashboards import TOKEN, dashboard_of, reader
from written_runs import write_run

from fl_dp import PrivacyBudget, PrivacyLedger, PrivacyPlan
from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.dashboard import gauges as gauges_room
from fl_dp.dashboard.gauges import Gauges
from fl_dp.dashboard.serve import Address, listening_socket
from fl_dp.ledger import Account, NodeLedger


def test_it_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    assert Address().host == "127.0.0.1"
    assert Address().warnings() == []
    assert Address().hosts == ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "127.0.0.1:8765"]


def test_elsewhere_it_warns_and_twice_without_tls() -> None:
    address = Address(host="192.0.2.7")
    said = address.warnings()
    assert len(said) == 2
    assert "TLS" in said[1]
    assert address.hosts == ["192.0.2.7:8765"]
    secure = Address(host="192.0.2.7", certificate=Path("a"), key=Path("b"))
    assert len(secure.warnings()) == 1


@pytest.mark.parametrize(
    ("address", "match"),
    [
        (Address(port=0), "--port is 0"),
        (Address(host="0.0.0.0"), "write --name HOST"),
        (Address(host="::"), "write --name HOST"),
        (Address(key=Path("key.pem")), "TLS needs both files"),
    ],
)
def test_an_address_that_nobody_could_use_safely_is_refused(address: Address, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        address.check()


def test_names_are_those_that_the_operator_wrote() -> None:
    address = Address(host="0.0.0.0", names=("runs.example",))
    address.check()
    assert address.hosts == ["runs.example:8765"]
    assert address.url == "http://runs.example:8765/"


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).write_text("no certificate")
    address = Address(certificate=tmp_path / "c.pem", key=tmp_path / "k.pem")
    with pytest.raises(ValueError, match="no certificate with its key"):
        address.check()
    with pytest.raises(FileNotFoundError):
        Address(certificate=tmp_path / "c.pem", key=tmp_path / "gone.pem").check()


def test_a_port_that_is_taken_is_one_line() -> None:
    with (
        closing(listening_socket(Address(port=18765))) as taken,
        pytest.raises(OSError, match="choose another --port"),
    ):
        taken.listen()
        listening_socket(Address(port=18765))


def test_a_mistake_at_the_command_line_is_one_line(tmp_path: Path) -> None:
    result = call("dashboard", str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert "there is no folder" in said_on_stderr(result)
    (tmp_path / "token").write_text("short")
    result = call("dashboard", str(tmp_path), "--token-file", str(tmp_path / "token"))
    assert result.exit_code == 2
    assert "at least 16" in said_on_stderr(result)


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped_and_logs_no_token(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_dp", "dashboard", str(tmp_path), "--port", "18766"],
        env={**os.environ, "FL_DP_DASHBOARD_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:18766/?token={TOKEN}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        for _ in range(600):
            try:
                with urllib.request.urlopen(request, timeout=5.0) as answer:
                    assert b"/run/a" in answer.read()
                    assert "server" not in answer.headers
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30.0)
    assert "Dashboard: http://127.0.0.1:18766/" in said
    assert TOKEN not in said


# Budgets.


PLAN = PrivacyPlan.from_noise_multiplier(
    1.0, delta=1e-3, rounds=5, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)


def spend(location: Path, rounds: int) -> None:
    with PrivacyLedger.open(location, PLAN) as ledger:
        for number in range(1, rounds + 1):
            ledger.commit(ledger.reserve(round=number))


def test_the_gauge_of_a_server_s_ledger_is_what_the_ledger_computes(tmp_path: Path) -> None:
    spend(tmp_path / "ledger.db", 2)
    [gauge] = Gauges(locations=[str(tmp_path / "ledger.db")]).read()
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert gauge.spent == ledger.epsilon().best
    assert (gauge.kind, gauge.rounds, gauge.budget) == ("training", 2, PLAN.budget.epsilon)
    assert gauge.left == pytest.approx(PLAN.budget.epsilon - gauge.spent)


def test_the_gauges_of_a_node_s_ledger_name_no_site(tmp_path: Path) -> None:
    place = tmp_path / "node.db"
    budget = PrivacyBudget(epsilon=10.0, delta=1e-5)
    event = PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1)
    with NodeLedger.open(place) as ledger:
        account = Account(unit="record", source="ward-of-a-site")
        ledger.charge(account, event, count=10, budget=budget, what="round 1")
    page = reader(dashboard_of(tmp_path / "runs", ledgers=[str(place)]).site()).get("/budgets").text
    assert "ward-of-a-site" not in page
    assert "a node" in page
    assert "account 1" in page


def test_a_gauge_is_computed_anew_only_when_its_ledger_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "ledger.db"
    spend(place, 1)
    gauges = Gauges(locations=[str(place)])
    [before] = gauges.read()
    read = []
    original = gauges_room._gauges

    def noted(location: str) -> list[gauges_room.Gauge]:
        read.append(location)
        return original(location)

    monkeypatch.setattr(gauges_room, "_gauges", noted)
    assert gauges.read() == [before]
    assert read == []
    with PrivacyLedger.open(place, PLAN) as ledger:
        ledger.commit(ledger.reserve(round=2))
    [after] = gauges.read()
    assert len(read) == 1
    assert after.rounds == 2


def test_an_altered_ledger_is_said_instead_of_a_number(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    spend(place, 2)
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("UPDATE entries SET payload = replace(payload, '1.0', '9.0')")
        connection.commit()
    page = reader(dashboard_of(tmp_path / "runs", ledgers=[str(place)]).site()).get("/budgets").text
    assert "This ledger was altered." in page


@pytest.mark.parametrize(
    "location", ["/nowhere/ledger.db", "postgresql://somebody:hunter2@127.0.0.1:1/x"]
)
def test_a_ledger_that_can_t_be_read_is_said_without_a_password(
    tmp_path: Path, location: str
) -> None:
    page = reader(dashboard_of(tmp_path, ledgers=[location]).site()).get("/budgets").text
    assert "This ledger can&#39;t be shown." in page
    assert "hunter2" not in page


def test_a_look_at_a_ledger_changes_no_byte_of_it(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    spend(place, 1)
    before = place.read_bytes()
    Gauges(locations=[str(place)]).read()
    assert place.read_bytes() == before
