"""The folder of one run: its results, written while it runs.

Only its owner can enter. Inside, model, statement and rounds' metrics have permissions of files
meant for others; ledger, checkpoint, settings and log do not.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from safetensors.numpy import save
from yaml import YAMLError

from fl_dp.app.run_process import PROCESS, this_process
from fl_dp.codec import decode_text, encode
from fl_dp.documents import MALFORMED, document
from fl_dp.files import (
    full_disk_named,
    held_alone,
    private_file,
    private_folder,
    read_json_object,
    write_text,
    written_whole,
)
from fl_dp.ledger import LedgerAnchor, SpentLedger, Witness, witness_at
from fl_dp.plan import Plan, RecordPlan
from fl_dp.promise import Enforcement
from fl_dp.statement import (
    NoPromise,
    PrivacyStatement,
    RecordStatement,
    privacy_statement,
    read_statement,
    record_statement,
    statement_markdown,
)

from .checkpoints import checkpoint_anchor
from .schema import settings_document, settings_of
from .settings import Settings


def statement_of_records(
    plan: RecordPlan,
    settings: Settings,
    participations: int | None = None,
    enforcement: Enforcement | None = None,
) -> RecordStatement:
    """Statement of a run's promise to clients' records; see `record_statement`."""
    chosen = settings.record_training
    declared = None
    if chosen.grad_sample_mode in ("hooks", "ghost"):
        declared = chosen.grad_sample_mode
    return record_statement(
        plan,
        participations=participations,
        num_clients=settings.task.num_clients,
        secure_randomness=chosen.secure_randomness,
        declared_gradients=declared,
        enforcement=enforcement,
    )


class RunFolder:
    """Paths and writers of `runs/<name>/`.

    Attributes:
        path: The folder itself, absolute.
        config: The resolved settings, YAML.
        metrics: One JSON line per round.
        ledger: The ledger of a run whose account is thrown away.
        account: Names the account that has the run's releases, JSON; only with one.
        record_plan: The plan of DP-SGD inside clients, JSON; only with DP-SGD.
        node_ledgers: Folder of simulated nodes' ledgers.
        statement: The privacy statement, JSON.
        statement_page: The same, Markdown.
        statistic: A statistic's answer, JSON; only if the run asks one.
        private_metrics: Quality of the last model on clients' held-out rows, JSON; only if asked.
        model: The last private model.
        features: Statistics of public records for the features; only with such features.
        checkpoint: State from which `resume` continues.
        identity: The run's random name for trackers; only with trackers.
        process: Machine and process that train it, or did so last.
        lock: File that the training process locks.
        log: The operator's log; not released.
    """

    def __init__(self, path: Path) -> None:
        """Name the files of a folder, which need not exist yet."""
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.ledger = path / "ledger.db"
        self.account = path / "account.json"
        self.record_plan = path / "record_plan.json"
        self.node_ledgers = path / "nodes"
        self.statement = path / "privacy.json"
        self.statement_page = path / "privacy.md"
        self.statistic = path / "statistic.json"
        self.private_metrics = path / "private_metrics.json"
        self.model = path / "model.safetensors"
        self.features = path / "features.safetensors"
        self.checkpoint = path / "checkpoint.safetensors"
        self.identity = path / "tracking.id"
        self.process = path / PROCESS
        self.lock = path / "run.lock"
        self.log = path / "run.log"

    def require_new(self) -> None:
        """Check that no run has this folder.

        Raises:
            FileExistsError: One has: its ledger must not be overwritten.
        """
        if self.path.exists():
            raise FileExistsError(
                f"{self.path} exists already: choose another run_name, or leave it out"
            )

    def held(self) -> AbstractContextManager[None]:
        """Lock the folder for a block, so that no other process trains in it.

        Raises:
            HeldElsewhere: Another process does; nothing was spent or written.
        """
        return held_alone(self.lock, f"trains in {self.path}")

    def create(self, settings: Settings) -> None:
        """Make the folder and write the settings.

        Raises:
            FileExistsError: A run of that name exists: its ledger must not be overwritten.
        """
        self.require_new()
        private_folder(self.path, exist_ok=False)
        self.write_settings(settings)
        private_file(self.log)

    def note_process(self) -> None:
        """Write which process works on the run: nobody should wait for a killed one."""
        if (process := this_process()) is not None:
            write_text(self.process, json.dumps(process) + "\n")

    def write_settings(self, settings: Settings) -> None:
        """Write the run's settings, in place of existing ones."""
        from omegaconf import OmegaConf  # which `fl-dp ledger` does without

        write_text(self.config, OmegaConf.to_yaml(settings_document(settings)))

    def read_settings(self) -> Settings:
        """The settings that the run was made with.

        Raises:
            FileNotFoundError: There is no run in this folder.
            ValueError: They are no settings of this version.
        """
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if not self.config.is_file():
            raise FileNotFoundError(f"there is no run in {self.path}: it has no config.yaml")
        try:
            return settings_of(dict(OmegaConf.load(self.config)))
        # OmegaConf raises an OSError for YAML that is a number.
        except (OmegaConfBaseException, YAMLError, ValueError, OSError, *MALFORMED) as error:
            # OmegaConf writes the key on a line of its own.
            key, reason = getattr(error, "full_key", None), str(error).partition("\n")[0]
            at = f" at {key}" if key else ""
            raise ValueError(
                f"{self.config} does not fit this version of fl-dp{at}: {reason}"
            ) from error

    def witness(self, settings: Settings) -> Witness | None:
        """Witness of the ledger's last entry, if the settings name one."""
        folder = settings.privacy.get("witness_dir")
        if folder is None:
            return None
        return witness_at(Path(folder) / f"{self.path.name}.heads")

    @property
    def has_ledger(self) -> bool:
        """Whether a ledger was begun: who was killed before leaves an empty file."""
        if self.account.is_file():
            return True
        return self.ledger.is_file() and self.ledger.stat().st_size > 0

    def note_entry(self, location: str, name: str) -> None:
        """Write in which account the run was entered, and under which name."""
        if "://" not in location:
            location = os.path.relpath(location, self.path)  # all may move together
        write_text(self.account, json.dumps({"ledger": location, "training": name}) + "\n")

    def entry(self) -> tuple[str | Path, str] | None:
        """Return the run's account and its name there; None: it has none.

        Raises:
            ValueError: `account.json` can't be read.
        """
        if not self.account.is_file():
            return None
        written = read_json_object(self.account, "note of an account")
        with document("note of an account"):
            location, name = str(written["ledger"]), str(written["training"])
        return location if "://" in location else (self.path / location).resolve(), name

    def read_ledger(self) -> SpentLedger:
        """Open the run's ledger for reading; compare it with checkpoint and statement.

        Raises:
            LedgerCorrupted: It was altered, or lacks what checkpoint or statement know.
            ValueError: Checkpoint or statement can't be read.
        """
        location, training = self.entry() or (self.ledger, None)
        ledger = SpentLedger.read(location, training=training)
        try:
            for file, anchor in self.anchors().items():
                ledger.require_holds(anchor, of=f"{file.name} beside it")
        except BaseException:
            ledger.close()
            raise
        return ledger

    def anchors(self) -> dict[Path, LedgerAnchor]:
        """The ledger's last entry, as each file knows it.

        Raises:
            ValueError: Checkpoint or statement can't be read.
        """
        anchors: dict[Path, LedgerAnchor | None] = {}
        if self.checkpoint.is_file():
            anchors[self.checkpoint] = checkpoint_anchor(self.checkpoint)
        if self.statement.is_file():
            anchors[self.statement] = LedgerAnchor.from_statement(self.read_statement())
        return {file: anchor for file, anchor in anchors.items() if anchor is not None}

    def read_plan(self) -> Plan:
        """The plan that the ledger was started with. Raises as `read_ledger`."""
        with self.read_ledger() as ledger:
            return ledger.plan

    def write_statement_of_ledger(self) -> bool:
        """Write the statement from ledger and plan alone, for a run that could not.

        Return whether there is anything to state.

        Raises:
            LedgerCorrupted: The ledger was altered or cut; no statement is written.
        """
        of_clients: PrivacyStatement | None = None
        of_records: RecordStatement | None = None
        if self.has_ledger:
            with self.read_ledger() as ledger:
                of_clients = privacy_statement(ledger)
        record_plan = self.read_record_plan()
        if record_plan is not None:
            of_records = statement_of_records(record_plan, self.read_settings())
        if of_clients is not None:
            told = self._told_by_the_run_alone(of_clients.rounds)
            self.write_statement(replace(of_clients, records=of_records, **told))
        elif of_records is not None:
            rounds = max(len(self.read_metrics()) - 1, 0)
            told = self._told_by_the_run_alone(rounds)
            self.write_statement(replace(of_records, rounds=rounds, **told))
        return of_clients is not None or of_records is not None

    def _told_by_the_run_alone(self, rounds: int) -> dict[str, Any]:
        """Fields of the run's own statement that neither ledger nor plan tells.

        Its failure is that of the run only if no round came after it.
        """
        if not self.statement.is_file():
            return {}
        written = self.read_statement()
        told: dict[str, Any] = {
            name: tuple(written[name])
            for name in ("shared_parameters", "public_inputs")
            if written.get(name) is not None
        }
        if written.get("rounds") == rounds:
            told["failure"] = written.get("failure")
        return told

    def keep_record_plan(self, plan: RecordPlan | None) -> RecordPlan | None:
        """Write the DP-SGD plan and return it; a resumed run uses and returns the existing one."""
        if plan is None:
            return None
        existing = self.read_record_plan()
        if existing is not None:
            return existing
        plan = replace(plan, training=secrets.token_hex(16))  # by which nodes count
        write_text(self.record_plan, json.dumps(encode(plan), indent=2) + "\n", public=True)
        return plan

    def read_record_plan(self) -> RecordPlan | None:
        """The plan of DP-SGD inside clients, if the run has one."""
        if not self.record_plan.is_file():
            return None
        return decode_text(RecordPlan, self.record_plan.read_text(encoding="utf-8"))

    def drop_metrics_after(self, server_round: int) -> None:
        """Delete the lines of rounds that will be repeated."""
        lines = [line for line in self.read_metrics() if line["round"] <= server_round]
        if self.metrics.is_file():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            write_text(self.metrics, text, public=True)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append a round's line, which a reader sees at once."""
        # Not replaced as a whole: the command line reads the file while the run writes it.
        with full_disk_named(self.path), self.metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The complete lines written so far."""
        if not self.metrics.is_file():
            return []
        text = self.metrics.read_text(encoding="utf-8")
        # An incomplete line is being written, or was when the power failed.
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def write_statement(self, statement: PrivacyStatement | RecordStatement | NoPromise) -> None:
        """Write the privacy statement as JSON and as a page for people."""
        document = json.dumps(statement.to_dict(), indent=2) + "\n"
        write_text(self.statement, document, public=True)
        write_text(self.statement_page, statement_markdown(statement), public=True)

    def read_statement(self) -> dict[str, Any]:
        """The privacy statement. Raises as `fl_dp.statement.read_statement`."""
        return read_statement(self.statement)

    def write_model(self, arrays: ArrayRecord) -> None:
        """Write the model under its array names."""
        stored = save({name: array.numpy() for name, array in arrays.items()})
        with written_whole(self.model, public=True) as unfinished:
            unfinished.write_bytes(stored)  # safetensors itself would set other permissions
