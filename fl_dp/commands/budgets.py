"""`fl-dp budgets`: list accounts, what is entered in each, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, exit_on_errors, note, print_shown


def budgets(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the accounts in a folder of runs: trainings, totals, and what is left of each.

    FOLDER holds runs, or is the file of one account, NAME.account.db; without it, `runs/`.

    All runs of an account are of the same people. Each is charged its whole budget before it
    starts, a sweep what its trainings may spend together. A total is of one unit and its
    neighbours; it is none if a run had no promise. Runs of your own data have an account named
    after the data; `privacy.account=NAME` names another, `privacy.account_cap=[8,1e-5]` caps a new
    one. Each account is verified, as by `fl-dp ledger`.
    """
    with exit_on_errors():
        from rich.console import RenderableType

        from fl_dp.app.accounts import SUFFIX, RunAccount, accounts_in
        from fl_dp.ledger import AccountLedger
        from fl_dp.terminal.account_view import account_json, account_table

        if not folder.exists():
            raise FileNotFoundError(f"there is no folder {folder}: write `fl-dp budgets FOLDER`")
        files = [folder] if folder.is_file() else accounts_in(folder)
        documents = []
        lines: list[RenderableType] = []
        for file in files:
            with AccountLedger.read(file) as ledger:
                RunAccount.at(file).require_known_to_runs(ledger)
                documents.append(account_json(ledger))
                lines += [account_table(ledger), f"Left: {ledger.account.left_in_words()}"]
        if not files:
            note(f"there are no accounts in {folder}: they are named NAME{SUFFIX}")
    print_shown({"accounts": documents}, lines, as_json)
