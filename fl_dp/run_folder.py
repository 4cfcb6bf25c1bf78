"""The folder of one run: what comes out, written while it runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from omegaconf import OmegaConf
from safetensors.numpy import save_file

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
