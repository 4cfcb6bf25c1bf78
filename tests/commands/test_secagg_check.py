"""`fl-dp secagg check` says what it did not check, whatever a server did."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl_dp.clients.secure_node import STORE_FILE
from fl_dp.commands.secagg import secagg
from fl_dp.secagg import Directory, Identity, SecureNode, SQLiteStore


def took_part(folder: Path, run: int, *, ended: bool) -> None:
    """Let a node hold the directory of a run."""
    store = SQLiteStore(folder / STORE_FILE)
    identity = Identity.load_or_create(folder / "secagg-identity.pem")
    # Names of their own in each run: the node would refuse a name with another identity.
    others = [
        SecureNode(Identity.generate(), SQLiteStore(None), name=f"{run}-{i}") for i in range(2)
    ]
    nodes = [SecureNode(identity, store, name="a"), *others]
    directory = Directory.first(run, [node.entry(run) for node in nodes])
    nodes[0].accept(directory)
    if ended:
        nodes[0].forget(run)
    store.close()


def checked(folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(secagg, ["check", str(folder)])
    return result.exit_code, " ".join(result.output.split())


def test_a_run_that_its_server_never_ended_is_not_hidden_behind_an_older_one(
    tmp_path: Path,
) -> None:
    took_part(tmp_path, 7, ended=True)
    assert "not ended" not in checked(tmp_path)[1]
    took_part(tmp_path, 8, ended=False)
    status, text = checked(tmp_path)
    assert "run 7" in text and "run 8: 3 nodes, not ended by its server's word" in text
    assert status == 0


@pytest.mark.parametrize("run", [2**63, 2**64 - 1])
def test_a_run_of_any_number_is_checked(tmp_path: Path, run: int) -> None:
    """A server chooses the number: one that can't be read would spare it the check."""
    took_part(tmp_path, run, ended=True)
    status, text = checked(tmp_path)
    assert status == 0 and str(run) in text
