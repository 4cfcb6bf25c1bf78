"""Whose data a run is of.

Data sets that fl-dp brings or fetches are public by their digests; nothing else is, whatever a run
says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from fl_dp.ledger import NATURAL, AccountLedger, Population
from fl_dp.ledger.fingerprint import fingerprint, fingerprint_of_files
from fl_dp.ledger.population import read_key
from fl_dp.tasks.datasets import EMBEDDED, load_dataset

from .settings import Settings

_SHIPPED = {
    "digits": "2bcbcf667c2e29399f87eafb8c690abab68a48b9837ca95655fe5e140d511bdb",
    "breast_cancer": "b2e5c5d377c54c2a6882d2f8fe0f6b96bc122bbe9ba01c75dfcb52d36b06507e",
}
"""Fingerprints of the sets that come inside a package; fetched ones are read by pinned digests."""


def population_of(settings: Settings) -> Population | None:
    """Return a run's people; None: real nodes have the data, and nobody else knows whose they are.

    Raises:
        OSError: The data can't be read.
        ValueError: As `load_dataset`.
    """
    task = settings.task
    if task.partition == "nodes":
        return None
    if not task.is_own:
        public = task.name not in EMBEDDED or _fingerprint_of_set(task.name) == _SHIPPED[task.name]
        return Population(source=task.name, clients=_clients_of(settings, ""), public=public)
    folder = Path(task.data_dir or "").expanduser().resolve()
    training = folder / ("train" if task.name == "folder" else f"train.{task.name}")
    rows = fingerprint_of_files(training) if training.exists() else None
    return Population(source=str(folder), rows=rows, clients=_clients_of(settings, rows or ""))


def _clients_of(settings: Settings, rows: str) -> str:
    """A digest of all that decides which rows are at which client."""
    task = settings.task
    if task.partition == "natural":
        return NATURAL
    made = {
        "rows": rows,
        "partition": task.partition,
        "num_clients": task.num_clients,
        "seed": settings.seed,
        "alpha": task.alpha if task.partition == "dirichlet" else None,
        "shards": task.shards_per_client if task.partition == "shards" else None,
        "records": task.records_per_client,
        "among": task.clients,
        "persons": task.person_column,
        "held out": [task.validation, task.test_fraction, settings.features.public],
    }
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()


def file_of(population: Population, files: Iterable[Path]) -> Path | None:
    """Return the first of some accounts' files that is of these people; None: none is.

    An account that was made without people is of nobody who could be found.

    Raises:
        LedgerCorrupted, LedgerUnavailable, ValueError: An account, or its key, can't be read.
    """
    for file in files:
        with AccountLedger.look(file) as ledger:
            people = ledger.account.terms.people
        if people is not None and people.are(population.keyed(read_key(file))):
            return file
    return None


def is_of_somebody(file: Path) -> bool:
    """Tell whether an account's file was made for people who can be compared."""
    if not file.is_file() or not file.stat().st_size:
        return False
    with AccountLedger.look(file) as ledger:
        return ledger.account.terms.people is not None


def _fingerprint_of_set(name: str) -> str:
    dataset = load_dataset(name)
    return fingerprint(dataset.train_x, dataset.train_y)
