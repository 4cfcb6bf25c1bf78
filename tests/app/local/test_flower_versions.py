"""What the app starts says at once that a part of Flower is gone."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from fl_dp.app.local import local_supernode, superlink


@pytest.mark.parametrize(
    ("started", "gone"),
    [
        ("fl_dp.client_app", "flwr.common.constant.ErrorCode"),
        ("fl_dp.app.local.script_simulation", "flwr.supercore.task_identity.TaskIdentity"),
    ],
)
def test_what_starts_says_so_at_once(started: str, gone: str) -> None:
    module, _, name = gone.rpartition(".")
    flower = "import flwr.app, flwr.serverapp, flwr.clientapp"  # which needs the part itself
    code = f"{flower}; import {module} as m; del m.{name}; import {started}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert name in said
    assert "fl-dp was tested with flwr 1.41 and 1.42" in said


@pytest.mark.parametrize("command", [superlink, local_supernode])
def test_a_guarded_command_without_its_part_of_flower_ends_in_one_line(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = command.__name__.rpartition(".")[2].removeprefix("local_")
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setitem(sys.modules, f"flwr.{name}.cli", None)
    with pytest.raises(SystemExit, match=r"^error: flwr 1\..* lacks .*pip install 'flwr==") as said:
        command.main()
    assert "\n" not in str(said.value)
