"""A federation on this machine, all protections on: one SuperLink, three SuperNodes, a training.

    make federation
    make federation PRIVACY=distributed
    make federation APP=path/to/your/flower/app
    python deploy/federation.py --privacy local --keep /tmp/wards

Three hospital wards train one model. The SuperLink has TLS, a database and its SuperNodes' keys;
other users and machines reach only its SuperNodes' interface. Each ward has a table, a policy, a
ledger with a witness elsewhere, runs signed apps only, and stands behind a gate. What each
spent is printed, and then what the server gets from a signed app that sends the wards' tables.
An app of yours is signed and run instead, as its own configuration says; its nodes get a
`partition-id` of three, and its packages have to be installed here.
Everything lies in a folder of its own and listens on free ports of loopback. At the end, also
after Ctrl-C and after a failure, what was started is taken down, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import yaml
from apps import shelf, sign
from deployment import SecuredDeployment
from keys import load_signer, make_node, make_signer, trusted_line
from numpy.typing import NDArray
from wards import ROOT, SETTINGS, write_tables

from fl_dp.app.local.processes import descendants, kill_all
from fl_dp.app.run_folder import RunFolder
from fl_dp.clients.secure_node import IDENTITY_FILE
from fl_dp.gate.gate_site import LATE
from fl_dp.ledger import NodeLedger, PrivacyLedger, witness_at
from fl_dp.promise import brief_epsilon, delta_rounded_up
from fl_dp.secagg import Identity
from fl_dp.secagg.roster import Member

WARDS = ("north", "south", "east")
ROUNDS = 2
CURIOUS = ROOT / "deploy" / "curious"
"""An app that sends the table of its ward."""
_BIN = Path(sys.executable).parent
_OPTIONS = dict[str, str | int | float]
_LAST_LINES = 15  # of each log, where something went wrong


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Who protects whom, as the server asks for it and the wards' owners require it.

    Attributes:
        overrides: Settings of the training.
        description: What the gates do, in words.
        policy: Keys of each ward's policy, besides names and files.
        gate: What each ward's gate does; empty: it has none, and the app keeps the policy.
        has_roster: Whether the wards' owners have compared their identities.
        server_counts: Whether the server keeps a ledger, too, which then has a witness.
    """

    overrides: tuple[str, ...]
    description: str
    policy: Mapping[str, str | int | float] = field(default_factory=_OPTIONS)
    gate: Mapping[str, str | int | float] = field(default_factory=_OPTIONS)
    has_roster: bool = False
    server_counts: bool = True


_CAP = {"dp-max-epsilon": 100.0, "dp-max-delta": 0.1}
_GATE = {"dp-gate-clipping-norm": 0.5, "dp-gate-answer-after": 30.0}

MODES = {
    "central": Mode(
        overrides=("privacy=central", "privacy.epsilon=40"),
        description="gates clip each update, and trust the server to add the noise and to count",
        gate=_GATE | {"dp-gate-promise": "clip"},
    ),
    "dp_sgd": Mode(
        overrides=("privacy=dp_sgd", "dp_sgd.steps=5", f"dp_sgd.participations={ROUNDS}"),
        description="no gates, which hide a whole ward: the signed app's DP-SGD hides records",
        policy=_CAP | {"dp-require-privacy": "record"},
        server_counts=False,  # records alone: each ward counts its own
    ),
    "local": Mode(
        overrides=("privacy=local", "privacy.epsilon=10"),
        description="gates clip each update and add noise to it",
        policy=_CAP,
        gate=_GATE | {"dp-gate-promise": "local", "dp-gate-noise-multiplier": 0.4},
    ),
    "distributed": Mode(
        overrides=(
            "privacy=distributed",
            "privacy.epsilon=40",
            # Nobody colludes: else all three would have to answer each time.
            "privacy.secure_sum.least=2",
            "privacy.secure_sum.colluding=0",
            "privacy.secure_sum.threshold=2",
        ),
        description="gates clip updates, add shares of noise and mask: sums alone are opened",
        policy=_CAP | {"dp-secagg-colluding": 0},
        gate=_GATE | {"dp-gate-promise": "distributed"},
        has_roster=True,
    ),
}
"""How `--privacy` trains; the app is the same, and so is its bundle."""


class Federation(SecuredDeployment):
    """A deployment of three wards in a folder, as their owners would set it up.

    Attributes:
        app: The signed app's name and version, for `flwr run`.
        curious: The same of an app that sends tables; a reviewer has signed it.
        own: The same of an app from elsewhere; None: there is none.
    """

    def __init__(self, root: Path, mode: Mode, own: Path | None = None) -> None:
        """Write tables, keys, policies and signed bundles into a new or empty folder."""
        super().__init__(root / "processes", root / "tls")
        self._root, self._mode = root, mode
        write_tables(root, WARDS)
        make_signer(root / "reviewer" / "key")
        for ward in WARDS:
            self._write_ward(ward)
        if mode.has_roster:
            self._write_roster()
        (root / "apps").mkdir()
        self.own = None if own is None else self._signed_app(own)
        self.app, self.curious = self._signed_app(ROOT), self._signed_app(CURIOUS)
        self._shelf = shelf(root / "apps", 0)
        port = self._shelf.server_address[1]
        # Where Flower's SuperLink looks for bundles with signatures.
        self._environment["FLWR_SUPERGRID_API_URL"] = f"http://127.0.0.1:{port}/v1"

    def __enter__(self) -> Self:
        """Start the SuperLink, register the wards' keys and start their SuperNodes."""
        threading.Thread(target=self._shelf.serve_forever, daemon=True).start()
        try:
            super().__enter__()
        except BaseException:
            self._shelf.shutdown()
            raise
        try:
            for ward in WARDS:
                self.register(ward, self._root / ward / "node.key.pub")
                self.join(ward, self._node_config(ward))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all that was started."""
        try:
            super().__exit__(None, None, None)
        finally:
            self._shelf.shutdown()
            self._shelf.server_close()

    def train(self, name: str, *more: str, app: str | None = None) -> RunFolder:
        """Train the signed app on all wards; return the run's folder.

        `more` are further settings. `app` is another bundle than the signed one: a folder.

        Raises:
            RuntimeError: If the run ends otherwise than it should.
        """
        ended = self.run(app or self.app, [*self.overrides(name), *more], timeout=None)
        if ended != "finished:completed":
            raise RuntimeError(f"the run did not end well: {_end_of(ended)}")
        return RunFolder(self._root / "runs" / name)

    def run_own(self, app: str) -> str:
        """Run a signed app as its own configuration says; return the end of its log.

        Raises:
            RuntimeError: If the run ends otherwise than it should.
        """
        ended, logged = self.streamed(app)
        if ended != "finished:completed":
            raise RuntimeError(f"the run did not end well: {_end_of(ended)}")
        return _end_of(logged)

    def send_tables(self) -> list[dict[str, Any]]:
        """Run the app that sends the wards' tables; return what the server got from each.

        Raises:
            RuntimeError: If the run ends otherwise than it should.
        """
        folder = self._root / "runs"
        ended = self.run(self.curious, [f"output_dir={folder}"], timeout=None)
        if ended != "finished:completed":
            raise RuntimeError(f"the run did not end well: {_end_of(ended)}")
        arrived: list[dict[str, Any]] = json.loads((folder / "arrived.json").read_text())
        return arrived

    def tables(self) -> list[NDArray[np.float64]]:
        """The numbers of each ward's table."""
        files = [self._root / ward / "train.csv" for ward in WARDS]
        return [
            np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1)).ravel() for file in files
        ]

    def overrides(self, name: str) -> list[str]:
        """The settings of a run of that name."""
        root = self._root
        overrides = [
            *SETTINGS,
            *self._mode.overrides,
            f"rounds={ROUNDS}",
            f"task.num_clients={len(WARDS)}",
            f"task.data_dir={root / 'public'}",
            f"output_dir={root / 'runs'}",
            f"run_name={name}",
        ]
        if self._mode.server_counts:
            overrides += ["privacy.delta=0.01", f"privacy.witness_dir={root / 'witness'}"]
        if self._mode.has_roster:
            overrides.append(f"privacy.secure_sum.roster={root / 'roster.json'}")
        return overrides

    def ledger_of(self, ward: str) -> Path:
        """A ward's ledger file, which is there once something was charged."""
        return self._root / ward / "ledger" / "ledger.db"

    def witness_of(self, ward: str) -> Path:
        """The file that knows how far a ward's ledger has come."""
        return self._root / "witness" / f"{ward}.heads"

    def _supernode(self, name: str) -> Sequence[str]:
        started = ["fl_dp.app.local.local_supernode"]
        if self._mode.gate:
            started = ["fl_dp", "supernode", "--policy", str(self._policy(name)), "--cooperative"]
        return (
            "python",
            "-P",
            "-m",
            *started,
            "--root-certificates",
            str(self.authority),
            "--auth-supernode-private-key",
            str(self._root / name / "node.key"),
            "--trusted-entities",
            str(self._root / "trusted.yaml"),
        )

    def _write_ward(self, ward: str) -> None:
        """Write what a ward's owner keeps: its key, its ledger's folder and its policy."""
        make_node(self._root / ward / "node.key")
        self.ledger_of(ward).parent.mkdir()
        self.witness_of(ward).parent.mkdir(exist_ok=True)
        schema = self._root / ward / "schema.yaml"
        schema.write_text(
            yaml.safe_dump(
                {"label_column": "ill", "classes": ["no", "yes"], "columns": ["age", "pressure"]}
            ),
            encoding="utf-8",
        )
        policy: _OPTIONS = {
            "dp-unit-name": ward,
            "dp-ledger-path": str(self.ledger_of(ward)),
            "dp-witness-path": str(self.witness_of(ward)),
            **self._mode.policy,
            **self._mode.gate,
        }
        if self._mode.has_roster:
            policy["dp-secagg-roster"] = str(self._root / "roster.json")
        if not self._mode.gate:
            policy |= self._data_of(ward)
        self._policy(ward).write_text(yaml.safe_dump(policy), encoding="utf-8")

    def _policy(self, ward: str) -> Path:
        return self._root / ward / "policy.yaml"

    def _node_config(self, ward: str) -> _OPTIONS:
        """What apps get: a gate tells them nothing of the policy."""
        number: _OPTIONS = {"partition-id": WARDS.index(ward), "num-partitions": len(WARDS)}
        if not self._mode.gate:
            return number | {"dp-policy-path": str(self._policy(ward))}
        return number | self._data_of(ward)

    def _data_of(self, ward: str) -> _OPTIONS:
        folder = self._root / ward
        return {"dp-data-path": str(folder), "dp-data-schema": str(folder / "schema.yaml")}

    def _write_roster(self) -> None:
        """Write the identities that the wards' owners have compared."""
        members = []
        for ward in WARDS:
            identity = Identity.load_or_create(self.ledger_of(ward).with_name(IDENTITY_FILE))
            member = Member(name=ward, identity=identity.public, committee=False)
            members.append(
                {"name": member.name, "identity": member.identity.hex(), "committee": False}
            )
        roster = {"federation": "three wards", "members": members}
        (self._root / "roster.json").write_text(json.dumps(roster), encoding="utf-8")

    def _signed_app(self, source: Path) -> str:
        """Bundle an app, sign it, and have the wards trust who signed."""
        folder, key = self._root / "apps", self._root / "reviewer" / "key"
        before = set(folder.glob("*.fab"))
        self._flwr("build", "--app", str(source), cwd=folder)
        [bundle] = set(folder.glob("*.fab")) - before
        app = sign(bundle, key)
        line = trusted_line(load_signer(key).public_key())
        (self._root / "trusted.yaml").write_text(f"{line}\n", encoding="utf-8")
        return f"{app.app_id}=={app.version}"


def spent_lines(federation: Federation, run: RunFolder | None) -> Iterator[str]:
    """Say what was spent, from the ledgers, the wards' each compared with its witness.

    `run` has the server's ledger; None: an app of one's own knows where that is.
    """
    for ward in WARDS:
        file = federation.ledger_of(ward)
        if not file.exists():
            yield f"  {ward}: nothing of its own; the server's ledger counts in this mode"
            continue
        with NodeLedger.read(file, witness=witness_at(str(federation.witness_of(ward)))) as ledger:
            if reliances := ledger.reliances:
                answers = sum(reliance.answers for reliance in reliances)
                yield f"  {ward}: no epsilon of its own, {answers} answers relied upon the server"
            for spending in ledger.spendings:
                assert spending.budget is not None  # it has spent
                spent, budget = spending.epsilon().best, spending.budget
                releases = sum(count for _, count in spending.history)
                yield (
                    f"  {ward}: epsilon {brief_epsilon(spent)} of {brief_epsilon(budget.epsilon)} "
                    f"at delta {delta_rounded_up(budget.delta)}, {releases} releases"
                )
    if run is not None and run.ledger.exists():
        with PrivacyLedger.read(run.ledger) as kept:
            yield f"  the server's ledger: {kept.rounds_committed} rounds released"


def arrived_lines(
    tables: Sequence[NDArray[np.float64]], arrived: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Say what the server wrote down of each reply, compared with the wards' tables."""
    for answer in arrived:
        if "error" in answer:
            yield f"  an error, {answer['error']}: the gate did not start the app"
            continue
        [numbers] = answer["arrays"]
        likeness = max(float(np.corrcoef(numbers, table)[0, 1]) for table in tables)
        yield (
            f"  model: {len(numbers)} numbers, correlation with the table {likeness:.2f}; metrics: "
            f"{_shown(answer['metrics'])}; texts: {_shown(answer['texts'])}"
        )


def _shown(records: list[dict[str, Any]]) -> str:
    lines = [f"{name}={value!s:.20}" for record in records for name, value in record.items()]
    return ", ".join(lines) or "none"


def late_lines(logs: Mapping[str, str]) -> Iterator[str]:
    """Say whose app was late, by its SuperNode's log: the gate answered with noise alone."""
    for ward, log in logs.items():
        if times := log.count(f"TimeoutError: {LATE}"):
            yield f"  {ward}: {times} answers are noise alone: its app was late on a busy machine"


class _Progress:
    """Prints what is being done, with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:4.0f} s  {text}", flush=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Give an empty folder; one that nobody named is removed at the end."""
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise SystemExit(f"error: {keep} is not empty: name another folder")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="fl-dp-federation-") as folder:
        yield Path(folder)


def run_federation(mode: str, root: Path, own: Path | None = None) -> None:
    """Set up, train, and say what each ward spent; `own` is the folder of another app.

    Raises:
        RuntimeError: If something does not start or the run fails; its text has the logs' ends.
    """
    say, asked = _Progress(), MODES[mode]
    say(f"keys, certificates, policies and two signed apps in {root}")
    federation = Federation(root, asked, own)
    try:
        say("SuperLink with TLS, the keys of its SuperNodes and a database")
        with federation:
            say(f"SuperNodes of {', '.join(WARDS)} have joined; {asked.description}")
            run = None
            if federation.own is not None:
                say(f"running {own}, as its own configuration says; a round takes 30 s at a gate")
                logged = federation.run_own(federation.own)
                say(f"it ended well; the end of its log:\n{logged}")
            else:
                say(f"training, privacy={mode}")
                run = federation.train(mode)
                accuracy = run.read_metrics()[-1]["test_accuracy"]
                say(f"trained: {accuracy:.0%} right on the public table")
            print("What was spent (by limits for a trial with three wards, not for real data):")
            logs_of_wards = {ward: federation.log(ward) for ward in WARDS}
            for line in (*spent_lines(federation, run), *late_lines(logs_of_wards)):
                print(line)
            if asked.gate and federation.own is None:
                say("an app that a reviewer has signed by mistake sends the table of each ward")
                arrived = federation.send_tables()
                print("Each ward's app sent the table as a model, its first age as a metric, and")
                print("all of it as a text. What the server got (a correlation of 1.00 would be")
                print("the table itself; gates without noise send it to a server that is trusted):")
                for line in arrived_lines(federation.tables(), arrived):
                    print(line)
            say("taking down what was started")
    except RuntimeError as error:
        logs = "\n".join(
            f"--- {log.name}\n{_end_of(log.read_text(encoding='utf-8', errors='replace'))}"
            for log in sorted((root / "processes").glob("*.log"))
        )
        raise RuntimeError(f"{logs}\n--- the error\n{error}") from error
    say("done: nothing of the federation runs any more")


def _end_of(text: str) -> str:
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def _stop(*_: object) -> NoReturn:
    # Once: what takes processes down is not stopped half-way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Bring up the federation of the command line, and take it down."""
    parser = argparse.ArgumentParser(description="A federation on this machine, all protections on")
    parser.add_argument("--privacy", choices=MODES, default="local", help="(default: local)")
    parser.add_argument(
        "--app", type=Path, help="folder of your own Flower app, with pyproject.toml"
    )
    parser.add_argument("--keep", type=Path, help="an empty folder that stays, with all logs")
    asked = parser.parse_args(arguments)
    if asked.app is not None and not (asked.app / "pyproject.toml").is_file():
        raise SystemExit(f"error: {asked.app} has no pyproject.toml: name a Flower app's folder")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        with _folder(asked.keep) as root:
            try:
                run_federation(asked.privacy, root, asked.app)
            finally:
                # A signal may come when a process has begun and nobody has taken note of it yet.
                kill_all(descendants(os.getpid()))
    except KeyboardInterrupt:
        raise SystemExit("stopped: nothing of the federation runs any more") from None
    except RuntimeError as error:
        raise SystemExit(
            f"{error}\nerror: the federation failed, and nothing of it runs any more"
        ) from None


if __name__ == "__main__":
    main()
