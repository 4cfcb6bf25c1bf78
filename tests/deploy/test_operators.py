"""What operators do to real SuperLinks and nodes, and what they are told when something is wrong.

In one process: tests/gate, tests/app/local.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import resource
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import keys
import pytest
import yaml
from backup import back_up
from deployment import Deployment, SecuredDeployment
from flwr.app import Message
from gated_site import App, PlayedSuperNode, adding
from keys import make_node, make_server
from waiting import until
from written_apps import write_app

from fl_dp import __version__
from fl_dp.gate.figures import FiguresOfNode, GateFigures
from fl_dp.gate.gate import Gate
from fl_dp.gate.kept import Keeper
from fl_dp.gate.link import Link, NodeKey, SignedPost
from fl_dp.gate.loop import GateLoop
from fl_dp.ledger import NodeLedger

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.simulation,
    pytest.mark.xdist_group("simulation"),
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).resolve().parents[2]
POLICY: dict[str, Any] = {
    "dp-max-epsilon": 1e6,
    "dp-gate-promise": "local",
    "dp-gate-clipping-norm": 1.0,
    "dp-gate-noise-multiplier": 2.0,
    "dp-gate-answer-after": 20.0,
}
AN_HOUR_AHEAD = "import time\nreal = time.time\ntime.time = lambda: real() + 3600.0\n"
CLIENT = """\
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""
SERVER = """\
import json, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.5)
    told = []
    for number in range(int(context.run_config["hydra-overrides"])):
        model = ArrayRecord({"w": Array(np.zeros(100, np.float32))})
        content = RecordDict({"arrays": model, "config": ConfigRecord({"number": number})})
        messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        replies = list(grid.send_and_receive(messages, timeout=120.0))
        told.append(["error" if reply.has_error() else "model" for reply in replies])
    Path(TOLD).write_text(json.dumps(told))
"""


class SecuredNodes(SecuredDeployment):
    """A SuperLink with TLS, and nodes with registered keys: gates, or plain ones.

    Attributes:
        told: What arrived at the server of the last run.
        path: Folder of the packages of nodes that are started now. None: those of this test.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root / "processes", root / "tls")
        (root / "witness").mkdir()
        self._root = root
        self._key: dict[str, Path] = {}
        self.told = root / "told.json"
        self.path: Path | None = None

    def ledger_of(self, name: str) -> Path:
        return self._root / name / "ledger.db"

    def witness_of(self, name: str) -> Path:
        return self._root / "witness" / f"{name}.heads"

    def enrol(self, name: str, key: str = "node.key") -> int:
        """Make a new key for a site, and register it; return its node's id."""
        self._key[name] = self._root / name / key
        return self.register(f"{name} {key}", make_node(self._key[name]))

    def use_key(self, name: str, key: str) -> None:
        """Have the next start of a site use another key."""
        self._key[name] = self._root / name / key

    def supervise(self, name: str) -> None:
        """Start a site until its node has joined, as systemd does: a killed one waits a minute."""
        word = "SuperNode ID" if name.endswith("plain") else "has joined"
        before = self.log(name).count(word) if (self._folder / f"{name}.log").exists() else 0
        for _ in range(20):
            self.join(name, {})
            node = self._nodes[name]
            until(lambda: self.log(name).count(word) > before or node.poll() is not None)  # noqa: B023  # ends here
            if self.log(name).count(word) > before:
                return
            time.sleep(5.0)
        raise AssertionError(self.log(name))

    def unregister(self, node: int) -> None:
        self._flwr("supernode", "unregister", str(node), "real")

    def exit_status(self, name: str) -> int:
        """Wait until a node has ended; return its status."""
        return self._nodes.pop(name).wait()

    def answers_of(self, app: Path, rounds: int) -> list[list[str]]:
        """Let all nodes train so often; return what arrived."""
        assert self._status(self._number(self.flwr(*self._run(app, [str(rounds)]), "--stream")), "")
        answers: list[list[str]] = json.loads(self.told.read_text())
        return answers

    def _health(self) -> tuple[str, ssl.SSLContext | None]:
        address, _ = super()._health()
        return address, ssl._create_unverified_context()  # it may have expired

    def _supernode(self, name: str) -> Sequence[str]:
        key = ("--auth-supernode-private-key", str(self._key[name]))
        trust = ("--root-certificates", str(self.authority), *key)
        python: tuple[str, ...] = (sys.executable, "-P", "-m")
        first = self.path
        if name.startswith("hurried"):
            first = self._root / "clock"
            first.mkdir(exist_ok=True)
            (first / "sitecustomize.py").write_text(AN_HOUR_AHEAD)
        if first is not None:
            path = f"{first}:{self._environment.get('PYTHONPATH', '')}"
            python = ("/usr/bin/env", f"PYTHONPATH={path}", *python)
        if name.endswith("plain"):
            return (*python, "fl_dp.app.local.local_supernode", *trust)
        file = self._root / f"{name}.yaml"
        own = {
            "dp-ledger-path": str(self.ledger_of(name)),
            "dp-witness-path": str(self.witness_of(name)),
            "dp-unit-name": name,
        }
        file.write_text(yaml.safe_dump(own | POLICY))
        gate = ("fl_dp", "supernode", "--policy", str(file), "--cooperative")
        return (*python, *gate, *trust)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[SecuredNodes]:
    with SecuredNodes(tmp_path) as nodes:
        yield nodes


def app_for(nodes: int, told: Path) -> Path:
    """An app that trains nothing, for so many nodes, whose server writes what arrived."""
    return write_app(
        told.parent / "rounds", client=CLIENT, server=SERVER, NODES=nodes, TOLD=str(told)
    )


def charges(ledger: Path) -> int:
    with NodeLedger.read(ledger) as entered:
        return sum(spending.charges for spending in entered.spendings)


def charged(ledger: Path, least: int) -> None:
    """Wait until a ledger has so many charges."""

    def has() -> bool:
        with suppress(FileNotFoundError):  # it is being made
            return charges(ledger) >= least
        return False

    until(has)


@contextmanager
def at_another_time(patch: pytest.MonkeyPatch, later: timedelta) -> Iterator[None]:
    """Make certificates at another time."""

    class Then(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + later

    with patch.context() as moved:
        moved.setattr(keys, "datetime", Then)
        yield


def test_a_node_s_key_is_replaced_to_the_end_and_who_keeps_the_old_one_is_told(
    running: SecuredNodes,
) -> None:
    app = app_for(1, running.told)
    old = running.enrol("north")
    running.supervise("north")
    new = running.enrol("north", "next.key")
    running.leave("north")
    running.supervise("north")
    running.unregister(old)
    assert running.answers_of(app, 1) == [["model"]]
    assert charges(running.ledger_of("north")) == 1
    running.unregister(new)  # while it runs
    assert running.exit_status("north") == 2
    assert "error: the SuperLink refuses this node" in running.log("north")
    running.use_key("north", "node.key")
    running.join("north", {})
    assert running.exit_status("north") == 2
    assert "error: the SuperLink does not let this node in" in running.log("north")
    assert running.log("north").count("register its key there") == 2
    assert "Traceback" not in running.log("north")


def test_an_expired_certificate_and_a_wrong_clock_end_nodes_with_a_word_and_a_renewed_one_serves(
    running: SecuredNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("north", "plain")
    for name in (*both, "hurried", "hurried-plain"):
        running.enrol(name)
    for name in ("hurried", "hurried-plain"):
        running.join(name, {})
        assert running.exit_status(name) == 2
        [line] = [line for line in running.log(name).splitlines() if line.startswith("error: ")]
        assert "clock is 3,6" in line or "clock is 3,5" in line
        assert "NTP" in line
    for name in both:
        running.supervise(name)
    tls = running.authority.parent
    with at_another_time(monkeypatch, timedelta(days=-3)):
        make_server(tls, ("localhost",), days=1, renew=True)
    running.kill_link()
    running.start_link()
    for name in both:
        assert running.exit_status(name) == 2
        assert "the SuperLink's certificate has expired: its operator" in running.log(name)
    make_server(tls, ("localhost",), days=20, renew=True)
    running.kill_link()
    running.start_link()
    for name in both:
        running.supervise(name)
        assert "in 20 days: no node reaches it then" in running.log(name)


def test_a_ledger_that_was_put_back_answers_nothing_until_the_complete_one_is_there(
    running: SecuredNodes, tmp_path: Path
) -> None:
    app, ledger = app_for(1, running.told), running.ledger_of("north")
    running.enrol("north")
    running.supervise("north")
    running.answers_of(app, 1)
    copy = back_up(ledger, tmp_path / "backup", witness=str(running.witness_of("north")))
    running.answers_of(app, 1)
    running.leave("north")
    complete = ledger.read_bytes()
    ledger.write_bytes(copy.read_bytes())
    running.join("north", {})
    assert running.exit_status("north") != 0
    last = running.log("north").splitlines()[-1]
    assert "older" in last, last
    ledger.write_bytes(complete)
    running.supervise("north")
    assert running.answers_of(app, 1) == [["model"]]
    assert charges(ledger) == 3


def test_gates_are_upgraded_one_by_one_in_the_middle_of_a_run(
    running: SecuredNodes, tmp_path: Path
) -> None:
    older, sites = tmp_path / "older", ("north", "south")
    for name in ("fl_dp", "strategies"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, older / name, ignore=ignored)
    package = older / "fl_dp" / "__init__.py"
    package.write_text(package.read_text().replace(__version__, "0.0.9"))
    running.path = older
    for name in sites:
        running.enrol(name)
        running.supervise(name)
        assert "gate of fl-dp 0.0.9" in running.log(name)
    running.path = None
    rounds = 5
    run = running.begin(app_for(2, running.told), [str(rounds)])
    for name in sites:
        charged(running.ledger_of(name), 1 if name == "north" else 2)
        running.leave(name)
        running.supervise(name)
        assert f"gate of fl-dp {__version__}" in running.log(name)
    assert running.status(run) == 0
    arrived = json.loads(running.told.read_text())
    assert len(arrived) == rounds
    assert arrived[-1] == ["model", "model"]
    models = [kind for replies in arrived for kind in replies].count("model")
    # A node that leaves costs its answers until it is back; none left without its charge.
    assert rounds <= models <= sum(charges(running.ledger_of(name)) for name in sites) <= 2 * rounds


# Thirty gates, each its own process, with a SuperNode and an app that are played in it.


def fails(message: Message) -> list[Message]:
    raise ValueError("record 4711")


def serve(folder: Path, address: str, app: App, policy: dict[str, Any], largest: int) -> None:
    """Be a site behind its gate until SIGTERM, which has files of so many bytes at most."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    log = logging.FileHandler(folder / "log")
    log.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("flwr").handlers = [log]
    file, ledger = folder / "policy.yaml", folder / "ledger" / "ledger.db"
    file.write_text(yaml.safe_dump(POLICY | {"dp-ledger-path": str(ledger)} | policy))
    key, figures = NodeKey(), GateFigures()
    link = Link(SignedPost(address, key, None, figures), key)
    link.join()
    keeper = Keeper(folder / "message")
    loop = GateLoop(link, PlayedSuperNode(app), Gate(file), keeper, figures)
    try:
        while True:
            loop.step()
            shown = {name: value for name, _, value in FiguresOfNode(figures, file)()}
            (folder / "figures.json").write_text(json.dumps(shown))
            link.beat()
    except KeyboardInterrupt:
        link.leave()


def test_thirty_gates_serve_at_once_and_each_owner_reads_what_was_wrong_at_his(
    tmp_path: Path,
) -> None:
    faults: dict[int, tuple[App, dict[str, Any], int, str]] = {
        3: (fails, {}, resource.RLIM_INFINITY, "the client failed, and counts as a zero update"),
        7: (
            adding(1.0),
            {"dp-max-epsilon": 2.0},
            resource.RLIM_INFINITY,
            "; it counts as a zero update",
        ),
        11: (adding(1.0), {}, 6000, "make room on the disk"),
    }
    told, started = tmp_path / "told.json", multiprocessing.get_context("fork")
    folders = [tmp_path / f"site-{number}" for number in range(30)]
    with Deployment(tmp_path / "processes") as running:
        sites = []
        for number, folder in enumerate(folders):
            (folder / "ledger").mkdir(parents=True)
            fault = faults.get(number, (adding(1.0), {}, resource.RLIM_INFINITY, ""))
            arguments = (folder, f"127.0.0.1:{running.port}", *fault[:3])
            sites.append(started.Process(target=serve, args=arguments))
            sites[-1].start()
        try:
            running.begin(app_for(len(folders), told), ["2"])
            until(lambda: told.exists() and told.read_text().endswith("]]"))
            until(lambda: all(answers(folder) == 2 for folder in folders))
        finally:
            for site in sites:
                site.terminate()
            for site in sites:
                site.join()
    assert json.loads(told.read_text()) == [["model"] * len(folders)] * 2
    for number, folder in enumerate(folders):
        log = (folder / "log").read_text()
        assert "the noise on this site's update has length" in log
        assert faults[number][3] in log if number in faults else "ERROR" not in log, log


def answers(folder: Path) -> int:
    with suppress(FileNotFoundError, ValueError):  # not yet, or half
        return int(json.loads((folder / "figures.json").read_text())["fl_dp_node_answers"])
    return 0
