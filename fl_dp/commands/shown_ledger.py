"""`fl-dp ledger`: a ledger is read, checked, and compared with its witness and statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from fl_dp.app.run_folder import RunFolder
from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger, witness_at
from fl_dp.ledger.training import library_versions
from fl_dp.statement import read_statement
from fl_dp.statement.check import entries_behind_statement, statement_differences, statement_page
from fl_dp.terminal.account_view import account_json, account_table
from fl_dp.terminal.ledger_view import (
    folded_table,
    ledger_json,
    ledger_summary,
    ledger_table,
    write_csv,
)
from fl_dp.terminal.node_ledger_view import (
    node_ledger_json,
    node_ledger_summary,
    node_ledger_table,
)


@dataclass(frozen=True, kw_only=True)
class ShownLedger:
    """Output of the command.

    Attributes:
        document: Plain JSON values, for a program.
        lines: Tables and sentences, for a person, one below the other.
    """

    document: dict[str, Any]
    lines: list[RenderableType]


@dataclass(kw_only=True)
class _Comparison:
    """Findings on a ledger and the files beside it.

    Attributes:
        witness: File or database with which it was compared when it was opened; None without one.
        compared: Files that agree with the ledger.
        behind: Entries after the statement's last one; None without a statement.
    """

    witness: str | None
    compared: list[str] = field(default_factory=list)
    behind: int | None = None

    @property
    def agreeing(self) -> list[str]:
        """All that agrees with the ledger."""
        if self.witness is None:
            return self.compared
        return [*self.compared, f"its witness {self.witness}"]

    def to_dict(self) -> dict[str, Any]:
        return {"compared": self.agreeing, "entries_after_statement": self.behind}

    def sentences(self) -> list[str]:
        if not self.agreeing:
            return [
                "Nothing was compared with the ledger's end: no statement lies beside it; name one "
                "with --check, as entries that are cut off the end show in no chain"
            ]
        lines = [f"Compared and in agreement: {escape(', '.join(self.agreeing))}"]
        if self.witness is None:
            lines.append(
                "Witness: none; --witness PLACE detects an older copy in the ledger's place"
            )
        if self.behind:
            lines.append(
                f"The ledger is {self.behind} entries ahead of the statement: the run is under "
                "way, or ended before its last statement"
            )
        return lines


def show_ledger(
    location: str,
    *,
    csv: Path | None,
    check: Path | None,
    witness: str | None = None,
    entries: bool = False,
) -> ShownLedger:
    """Verify a ledger, compare it with witness and statement, and show what was spent.

    Args:
        location: A ledger's file or URL, or a run's folder.
        csv: File for the entries, one line each; None writes none.
        check: A privacy statement; None: the one in the ledger's folder, if there is one.
        witness: The ledger's witness, a file or database; None: no witness is read.
        entries: Whether to show every entry; else equal ones that follow each other are one row.

    Raises:
        LedgerCorrupted: If the ledger was altered, or something disagrees with it, one line each.
        OSError: If the ledger can't be read.
        ValueError: As `OSError`, or if the arguments do not fit together.
    """
    of_nodes = _opened_node_ledgers(location, witness)
    if of_nodes is not None:
        if csv is not None or entries:
            raise ValueError(
                "a node's ledger is shown by account: leave out --csv and --entries, or write "
                "--json"
            )
        return _shown_node_ledgers(location, of_nodes, check, witness)
    with _opened_server_ledger(location, witness) as (ledger, folder):
        findings = _compare(ledger, folder, check, witness)
        lines: list[RenderableType] = [*ledger_summary(ledger), *findings.sentences()]
        lines += [f"Left: {ledger.account.left_in_words()}", account_table(ledger)]
        table = ledger_table if entries else folded_table
        lines.append(table(ledger))
        if csv is not None:
            write_csv(ledger, csv)
            lines.append(escape(f"Entries: {csv}"))
        document = ledger_json(ledger) | {"account": account_json(ledger)} | findings.to_dict()
    return ShownLedger(document=document, lines=lines)


def begin_witness_of(location: str, witness: str) -> None:
    """Verify a ledger, and write its last entry into an empty witness.

    Raises:
        LedgerCorrupted: As `show_ledger`.
        OSError: As `show_ledger`, or if the witness can't be written.
        ValueError: As `show_ledger`, or if the witness is not empty.
    """
    of_nodes = _opened_node_ledgers(location)
    if of_nodes is not None:
        with of_nodes as (opened, _):
            url = _of_one([ledger.location for ledger in opened], witness)
            opened[0].begin_witness(witness_at(url))
        return
    with _opened_server_ledger(location) as (ledger, _):
        ledger.begin_witness(witness_at(witness))


@contextmanager
def _opened_server_ledger(
    location: str, witness: str | None = None
) -> Iterator[tuple[SpentLedger, RunFolder | None]]:
    folder = _folder_of(location)
    path: str | Path = location
    training: str | None = None
    if folder is not None:
        path, training = folder.entry() or (folder.ledger, None)
    opened_witness = None if witness is None else witness_at(witness)
    with SpentLedger.read(path, witness=opened_witness, training=training) as ledger:
        yield ledger, folder


def _of_one(ledgers: Sequence[str], witness: str) -> str:
    """Return a witness, which belongs to exactly one ledger."""
    if len(ledgers) != 1:
        raise ValueError(
            f"a witness belongs to one ledger, and here are {len(ledgers)}: name one of them, for "
            f"example {ledgers[0]}"
        )
    return witness


_OfNodes = AbstractContextManager[tuple[list[NodeLedger], RunFolder | None]]


def _opened_node_ledgers(location: str, witness: str | None = None) -> _OfNodes | None:
    """Return the nodes' ledgers at a location, to be opened; None if a training's is there."""
    folder = Path(location)
    locations = _node_ledgers_in(folder) if folder.is_dir() else [location]
    try:
        if not locations or not NodeLedger.is_one(locations[0]):
            return None
    except (OSError, ValueError):
        return None  # the other reader says what is wrong

    @contextmanager
    def opened() -> Iterator[tuple[list[NodeLedger], RunFolder | None]]:
        with ExitStack() as stack:
            opened_witness = None
            if witness is not None:
                opened_witness = witness_at(_of_one(locations, witness))
            ledgers = [
                stack.enter_context(NodeLedger.read(one, witness=opened_witness))
                for one in locations
            ]
            for ledger in ledgers:
                ledger.require_owed()
            run = RunFolder(folder) if folder.is_dir() else None
            yield ledgers, run

    return opened()


def _shown_node_ledgers(
    location: str, of_nodes: _OfNodes, check: Path | None, witness: str | None
) -> ShownLedger:
    with of_nodes as (opened, folder):
        findings = _compare(None, folder, check, witness)
        documents = [node_ledger_json(ledger) for ledger in opened]
        document = documents[0] if len(documents) == 1 else {"ledgers": documents}
        return ShownLedger(
            document=document | findings.to_dict(),
            lines=[
                *node_ledger_summary(opened),
                *findings.sentences(),
                node_ledger_table(opened, location),
            ],
        )


def _folder_of(location: str) -> RunFolder | None:
    """Return the run's folder of a ledger, by the folder or the file; None for other locations."""
    path = Path(location)
    if path.is_dir():
        return RunFolder(path)
    beside = RunFolder(path.parent)
    return beside if path == beside.ledger else None


def _node_ledgers_in(folder: Path) -> list[str]:
    """Return the ledgers of simulated nodes in a run's folder without a server's ledger."""
    run = RunFolder(folder)
    if run.has_ledger:
        return []
    nodes = run.node_ledgers if run.node_ledgers.is_dir() else folder
    return [str(file) for file in sorted(nodes.glob("node-*.db"))]


def _compare(
    ledger: SpentLedger | None,
    folder: RunFolder | None,
    check: Path | None,
    witness: str | None,
) -> _Comparison:
    """Compare a ledger with a named statement, or with all files beside it."""
    findings = _Comparison(witness=witness)
    if folder is not None and ledger is not None and check is None:
        for file, anchor in folder.anchors().items():
            ledger.require_holds(anchor, of=f"{file.name} beside it")
            findings.compared.append(file.name)
    statement_file, page = check, None
    if check is None and folder is not None and folder.statement.is_file():
        statement_file, page = folder.statement, folder.statement_page
    if statement_file is None:
        return findings
    statement = read_statement(statement_file)
    if ledger is not None:
        findings.behind = entries_behind_statement(ledger, statement)
    wrong = [
        f"{statement_file}: {difference}" for difference in statement_differences(ledger, statement)
    ]
    other_version = _other_version(statement)
    if wrong:
        raise LedgerCorrupted("\n".join(wrong) + other_version)
    if (
        page is not None
        and page.is_file()
        and not other_version
        and page.read_text(encoding="utf-8") != statement_page(statement)
    ):
        raise LedgerCorrupted(
            f"{page}: it does not say what {statement_file.name} says: it was edited, or is of "
            "another moment"
        )
    if statement_file.name not in findings.compared:
        findings.compared.append(statement_file.name)
    return findings


def _other_version(statement: dict[str, Any]) -> str:
    theirs, ours = statement["versions"].get("fl-dp"), library_versions()["fl-dp"]
    if theirs == ours:
        return ""
    return f" (the statement is of fl-dp {theirs} and this is {ours}, which may word it otherwise)"
