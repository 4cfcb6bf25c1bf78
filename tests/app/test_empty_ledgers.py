"""An empty file, as a killed first charge left it, is a ledger that was never made."""

from __future__ import annotations

from pathlib import Path

from fl_dp.app.run_folder import RunFolder
from fl_dp.clients import NodeConfig
from fl_dp.commands.words_of_budget import words_of_budget


def test_commands_take_an_empty_file_for_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    owner = NodeConfig.of({"dp-ledger-path": str(path), "dp-max-epsilon": 4.0})
    [words] = words_of_budget(owner)
    assert words.startswith("Nothing was spent: all of the cap is there, epsilon 4 at delta")
    assert not RunFolder(tmp_path).has_ledger
    assert not RunFolder(tmp_path).write_statement_of_ledger()
