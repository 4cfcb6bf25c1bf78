"""The tutorial runs word for word, as one Python session; its commands are tests of their own."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import call, train_here, use

PAGE = (Path(__file__).resolve().parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_block_of_the_tutorial_runs_after_the_one_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "handlers", [*flower.handlers, caplog.handler])
    session: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/tutorial.md", "exec"), session)
    printed = capsys.readouterr().out
    said = [float(number) for number in re.findall(r"accuracy (0\.\d+)", PAGE)]
    reached = [float(number) for number in re.findall(r"accuracy (0\.\d+)", printed)]
    assert reached == pytest.approx(said, abs=0.06)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and "NO PRIVACY" in warnings[0] and "name a witness" in warnings[1]
    assert "**epsilon 8 at delta 1e-05, one client (zero-out), against whoever sees" in printed
    assert "each node's own software to clip and to add its share of noise" in printed
    assert (tmp_path / "accuracy.png").stat().st_size > 5_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "less", [["rounds=2", "dp_sgd.steps=2"], pytest.param([], marks=pytest.mark.nightly)]
)
def test_the_tutorial_s_command_trains_and_names_the_epsilon_of_a_record(
    less: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if less:
        use(monkeypatch, train_here)
    (line,) = re.findall(r"^fl-dp (.*)$", PAGE, re.MULTILINE)
    assert call(*line.split(), *less).exit_code == 0
    assert (tmp_path / "runs/records/privacy.md").is_file()
