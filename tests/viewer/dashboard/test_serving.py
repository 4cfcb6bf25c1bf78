"""Where the dashboard listens, what it warns of, and the budgets that it is pointed at."""

from __future__ import annotations

import http.client
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.message import Message
from ipaddress import ip_address
from pathlib import Path

import pytest
from command_line import call, said_on_stderr
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from dashboards import TOKEN, dashboard_of, reader
from flat_plans import noised_plan
from written_runs import write_run

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.viewer.dashboard.gauges import Gauges
from fl_dp.viewer.dashboard.ledger_gauges import read_apart
from fl_dp.viewer.dashboard.serve import Address


def test_it_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    assert (Address().host, Address().warnings()) == ("127.0.0.1", [])
    assert set(Address().hosts) == {"127.0.0.1:8765", "localhost:8765", "[::1]:8765"}


def test_elsewhere_it_warns_and_twice_without_tls() -> None:
    address = Address(host="192.0.2.7")
    said = address.warnings()
    assert len(said) == 2
    assert "TLS" in said[1]
    assert address.hosts == ["192.0.2.7:8765"]
    secure = Address(host="192.0.2.7", certificate=Path("a"), key=Path("b"))
    assert len(secure.warnings()) == 1


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (Address(port=0), "--port"),
        (Address(host="0.0.0.0"), "--name"),
        (Address(host="::"), "--name"),
        (Address(key=Path("key.pem")), "--certificate"),
    ],
)
def test_an_address_that_nobody_could_use_safely_is_refused(address: Address, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        address.check()


def test_a_short_token_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("short")
    result = call("dashboard", ".", "--token-file", "token")
    assert result.exit_code == 2
    assert "at least 16" in said_on_stderr(result)


@contextmanager
def command(port: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `fl-dp dashboard` in a process of its own; it is stopped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_dp", "dashboard", *arguments, "--port", str(port)],
        env={**os.environ, "FL_DP_DASHBOARD_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def answer_to(
    request: urllib.request.Request,
    process: subprocess.Popen[str],
    context: ssl.SSLContext | None = None,
) -> tuple[bytes, Message]:
    """Ask until the process answers."""
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60.0, context=context) as answer:
                return answer.read(), answer.headers
        except OSError:
            assert process.poll() is None
            time.sleep(0.1)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1 that lasts a day, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    unsigned = unsigned.not_valid_before(now - timedelta(days=1)).add_extension(
        here, critical=False
    )
    certificate = unsigned.not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, kind, serialization.NoEncryption()))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    return folder / "certificate.pem", folder / "key.pem"


@pytest.mark.slow
def test_it_speaks_tls_with_the_operator_s_certificate_and_nothing_else(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    write_run(tmp_path / "runs" / "a")
    given = [str(tmp_path / "runs"), "--certificate", str(certificate), "--key", str(key)]
    url = "https://127.0.0.1:18767/"
    with command(18767, *given) as process:
        known = ssl.create_default_context(cafile=str(certificate))
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        page, _ = answer_to(asked, process, known)
        assert b"/run/a" in page
        # A session's cookie goes over TLS alone.
        form = urllib.parse.urlencode({"token": TOKEN}).encode()
        login = urllib.request.Request(
            f"{url}login", data=form, headers={"Origin": url.rstrip("/")}
        )
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=known), NotRedirected()
        )
        with pytest.raises(urllib.error.HTTPError) as answer:
            opener.open(login, timeout=5.0)
        cookie = answer.value.headers["set-cookie"]
        assert answer.value.code == 303
        assert cookie.startswith("__Host-fl-dp-session")
        assert "secure" in cookie.lower()
        # Who does not know the certificate does not talk, and neither does plain HTTP.
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(asked, timeout=5.0)
        plain = urllib.request.Request(url.replace("https", "http"))
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(plain, timeout=5.0)


class NotRedirected(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped_and_logs_no_token(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    with command(18766, str(tmp_path)) as process:
        request = urllib.request.Request(
            f"http://127.0.0.1:18766/?token={TOKEN}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        page, headers = answer_to(request, process)
        assert b"/run/a" in page
        assert "server" not in headers
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30.0)
    assert "Dashboard: http://127.0.0.1:18766/" in said
    assert TOKEN not in said


# Budgets.


PLAN = noised_plan(
    1.0, delta=1e-3, rounds=5, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)


def spend(location: Path, rounds: int) -> None:
    with PrivacyLedger.open(location, PLAN) as ledger:
        for number in range(1, rounds + 1):
            ledger.commit(ledger.reserve(round=number))


def test_the_gauge_of_a_server_s_ledger_is_what_the_ledger_computes(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    spend(place, 2)
    before = place.read_bytes()
    [gauge], _ = Gauges(locations=[str(place)]).read()
    assert place.read_bytes() == before  # a look changes no byte
    with PrivacyLedger.read(place) as ledger:
        assert gauge.promise == Guarantee.of(PLAN, spent=ledger.epsilon().best)
    assert (gauge.kind, gauge.rounds) == ("training", 2)


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


@pytest.mark.slow
def test_ledgers_among_the_runs_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("a", "b", "elsewhere", "beside"):
        (root / name).mkdir(parents=True)
    spend(root / "a" / "ledger.db", 2)
    spend(tmp_path / "ledger.db", 1)
    (root / "b" / "ledger.db").symlink_to(tmp_path / "ledger.db")
    (root / "far").symlink_to(tmp_path)
    (root / "elsewhere" / "ledger.db").mkdir()
    spend(root / "beside" / "ledger.db", 1)
    for end in ("-wal", "-shm"):
        (root / "beside" / f"ledger.db{end}").unlink(missing_ok=True)
        (root / "beside" / f"ledger.db{end}").symlink_to(tmp_path / "outside")
    [gauge], more = Gauges(locations=[], root=root).read()
    assert (gauge.ledger, gauge.rounds, more) == ("a/ledger.db", 2, 0)
    assert not (tmp_path / "outside").exists()
    # One that was named is shown once.
    [named], _ = Gauges(locations=[str(root / "a" / "ledger.db")], root=root).read()
    assert named.ledger == str(root / "a" / "ledger.db")
    page = reader(dashboard_of(root).site()).get("/budgets").text
    assert "a/ledger.db" in page
    assert str(tmp_path) not in page


@pytest.mark.slow
def test_a_found_ledger_that_never_answers_keeps_nobody(tmp_path: Path) -> None:
    """A database can define entries that never end; another ledger is shown all the same."""
    endless, good = tmp_path / "endless.db", tmp_path / "ledger.db"
    spend(good, 1)
    with closing(sqlite3.connect(good)) as source, closing(sqlite3.connect(endless)) as target:
        source.backup(target)
        [columns] = target.execute("SELECT group_concat(name) FROM pragma_table_info('entries')")
        target.execute("ALTER TABLE entries RENAME TO real_entries")
        target.execute(
            "CREATE VIEW entries AS WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n FROM "
            f"more) SELECT {columns[0]} FROM real_entries, more"
        )
        target.commit()
    found = read_apart([str(endless), str(good)], seconds=1)
    [hanging], [gauge] = found[str(endless)], found[str(good)]
    assert "of a processor" in hanging.problem
    assert hanging.promise is None
    assert gauge.promise is not None
    assert gauge.rounds == 1


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
