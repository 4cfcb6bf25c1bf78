"""The folder of one run: what comes out, written while it runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors.numpy import save_file
from yaml import YAMLError

from fl_dp.accounting import (
    ExamplePlan,
    PrivacyLedger,
    PrivacyPlan,
    example_statement,
    example_statement_markdown,
    privacy_statement,
    statement_markdown,
)

from .settings import Settings


@dataclass(frozen=True)
class RunFolder:
    """Paths and writers of `runs/<name>/`.

    Attributes:
        path: The folder itself, absolute.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings, YAML."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON line a round."""
        return self.path / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        """The privacy ledger."""
        return self.path / "ledger.db"

    @property
    def example_plan(self) -> Path:
        """The plan of DP-SGD inside clients, JSON; where there is one."""
        return self.path / "example_plan.json"

    @property
    def node_ledgers(self) -> Path:
        """The ledgers of simulated nodes."""
        return self.path / "nodes"

    @property
    def statement(self) -> Path:
        """The privacy statement, JSON."""
        return self.path / "privacy.json"

    @property
    def statement_page(self) -> Path:
        """The privacy statement, Markdown."""
        return self.path / "privacy.md"

    @property
    def model(self) -> Path:
        """The last private model."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """What `resume` continues from."""
        return self.path / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        """The operator's log; not part of what is released."""
        return self.path / "run.log"

    def require_new(self) -> None:
        """Check that no other run has this folder.

        Raises:
            FileExistsError: If one has: its ledger must not be overwritten.
        """
        if self.path.exists():
            raise FileExistsError(
                f"{self.path} exists already: choose another run_name, or leave it out"
            )

    def create(self, settings: Settings) -> None:
        """Make the folder and write the settings.

        Raises:
            FileExistsError: If there is a run of that name: its ledger must not be overwritten.
        """
        self.require_new()
        self.path.mkdir(parents=True)
        self.config.write_text(OmegaConf.to_yaml(asdict(settings)), encoding="utf-8")

    def read_settings(self) -> Settings:
        """Return the settings that the run was made with.

        Raises:
            FileNotFoundError: If there is no run in this folder.
            ValueError: If they are not settings of this version.
        """
        if not self.config.is_file():
            raise FileNotFoundError(f"there is no run in {self.path}: it has no config.yaml")
        try:
            stored = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.load(self.config))
            settings = OmegaConf.to_object(stored)
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ValueError(
                f"{self.config} does not fit this version of fl-dp: {error}"
            ) from error
        assert isinstance(settings, Settings)
        return settings

    def read_plan(self) -> PrivacyPlan:
        """Return the plan that the run's ledger was started with."""
        with PrivacyLedger.read(self.ledger) as ledger:
            return ledger.plan

    def write_statement_of_ledger(self) -> bool:
        """Write the statement from ledger and plan alone, for a run that could not do so itself.

        Returns:
            Whether there is anything to state.
        """
        statement: dict[str, Any] = {}
        pages = []
        if self.ledger.is_file():
            with PrivacyLedger.read(self.ledger) as ledger:
                statement = privacy_statement(ledger)
            pages.append(statement_markdown(statement))
        if self.example_plan.is_file():
            settings = self.read_settings()
            records = example_statement(
                ExamplePlan.from_dict(json.loads(self.example_plan.read_text(encoding="utf-8"))),
                participations=None,
                num_clients=settings.task.num_clients,
                secure_randomness=settings.dp_sgd.secure_randomness,
            )
            pages.append(example_statement_markdown(records))
            if statement:
                statement["records"] = records
            else:
                statement = records | {"rounds": max(len(self.read_metrics()) - 1, 0)}
        if not statement:
            return False
        self.write_statement(statement, "\n".join(pages))
        return True

    def keep_example_plan(self, plan: ExamplePlan | None) -> ExamplePlan | None:
        """Write the plan of DP-SGD, or return the one that is there: a resumed run goes by it."""
        if plan is None:
            return None
        if self.example_plan.is_file():
            return ExamplePlan.from_dict(json.loads(self.example_plan.read_text(encoding="utf-8")))
        self.example_plan.write_text(json.dumps(plan.to_dict(), indent=2) + "\n", encoding="utf-8")
        return plan

    def write_no_promise(self, rounds: int) -> None:
        """Write the statement of a run without privacy."""
        statement = {"quoted": "none", "epsilon": {}, "delta": 0.0, "rounds": rounds}
        self.write_statement(
            statement,
            "# Privacy statement\n\nNothing is promised: this run had `privacy.mode=none`. Its "
            "model and its metrics may show any client's data.\n",
        )

    def drop_metrics_after(self, server_round: int) -> None:
        """Forget the lines of rounds that will be done again."""
        kept = [line for line in self.read_metrics() if line["round"] <= server_round]
        if self.metrics.is_file():
            text = "".join(json.dumps(line) + "\n" for line in kept)
            self.metrics.write_text(text, encoding="utf-8")

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add one round's line; a reader sees it at once."""
        with self.metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the complete lines that were written so far."""
        if not self.metrics.is_file():
            return []
        text = self.metrics.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def write_statement(self, statement: dict[str, Any], page: str) -> None:
        """Write the privacy statement for programs, and the page that says the same to people."""
        self.statement.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")
        self.statement_page.write_text(page, encoding="utf-8")

    def read_statement(self) -> dict[str, Any]:
        """Return the privacy statement."""
        statement: dict[str, Any] = json.loads(self.statement.read_text(encoding="utf-8"))
        return statement

    def write_model(self, arrays: ArrayRecord) -> None:
        """Write the model under its array names."""
        save_file({name: array.numpy() for name, array in arrays.items()}, self.model)
