"""`fl-dp run` ends with a page, unless it is told not to; a page that fails stops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import call, train_here, use

SMALL = ("rounds=2", "task.num_clients=20", "client.epochs=1", "simulation.units_per_node=10")


def run(folder: Path, *overrides: str) -> str:
    result = call("run", *SMALL, f"output_dir={folder}", "run_name=a", *overrides)
    assert result.exit_code == 0, result.stderr
    return " ".join((result.stdout + result.stderr).split())


def test_a_run_ends_with_its_page_and_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, train_here, draws=True)
    said = run(tmp_path)
    page, picture = tmp_path / "a" / "report.html", tmp_path / "a" / "accuracy.png"
    assert f"Report, to look at: {page}" in said
    assert f"Picture: {picture}" in said
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Accuracy over epsilon" in page.read_text()


def test_a_run_leaves_the_page_out_when_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, train_here)
    assert "Report, to look at" not in run(tmp_path, "report=none")
    assert not (tmp_path / "a" / "report.html").exists()


def test_a_page_that_cannot_be_written_is_said_and_the_run_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, train_here)

    def fails(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("fl_dp.commands.ended_runs.write_report", fails)
    assert "no report could be written: no space left" in run(tmp_path)
    assert (tmp_path / "a" / "privacy.json").is_file()
