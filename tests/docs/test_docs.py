"""What the documents show is run, and what they list is complete."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid, answer_with_app
from tables import with_tables

import fl_dp
from fl_dp import PrivacyLedger
from fl_dp.accounting.calibration import calibrate_client_scheme
from fl_dp.app.keys import all_keys

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "of_the_code"),
    [("configuration.md", "(`8.0`"), ("node_policy.md", "Each run's own budget")],
)
def test_the_tables_of_a_guide_are_as_the_code_writes_them(page: str, of_the_code: str) -> None:
    """Otherwise: `python docs/tables.py`, which `make docs` runs."""
    guide = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert with_tables(guide) == guide
    assert with_tables(guide.replace(of_the_code, "another")) == guide


def test_the_configuration_guide_has_every_key_with_its_default_and_its_sentence() -> None:
    """The sentences are those of the settings' docstrings, which `fl-dp config` shows."""
    guide = (ROOT / "docs/configuration.md").read_text()
    row = r"^- `([\w.]+)` \(`([^`]*)`[^:]*\): (.*)$"
    lists = "".join(re.findall(r"<!-- keys of .*?<!-- end -->", guide, re.DOTALL))
    rows = re.findall(row, lists, re.MULTILINE)
    keys = {key.name: (key.default_text, key.help) for key in all_keys().values()}
    assert {name: (default, meaning) for name, default, meaning in rows} == keys


def test_the_statistics_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/statistics.md").read_text(), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    guide: dict[str, Any] = {}
    for code in blocks:
        exec(compile(code, "docs/statistics.md", "exec"), guide)
    mean = guide["main"](LocalGrid(answer_with_app(guide["client_app"], 200), 200), None)
    assert mean[1] == pytest.approx(8.0, abs=5.0)  # 8 everywhere; 13 scales of the noise and more
    for name in ("ledger.db", "federation.db"):
        with PrivacyLedger.read(tmp_path / name) as ledger:
            assert [event.kind for event, _ in ledger.history] == ["laplace"]
    arrays = ArrayRecord([np.zeros(2)])
    accuracy = guide["train"](LocalGrid(answer_with_app(_plain_app(), 200), 200), arrays)
    assert accuracy == pytest.approx(0.75, abs=0.3)  # seven deviations of the noise


def _plain_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        [array] = message.content.array_records["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord([array + 1.0]), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"loss": 1.0, "accuracy": 0.75, "num-examples": 9})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def test_the_readme_s_python_runs_and_ends_in_one_line_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    mean = [float(number) for number in re.findall(r"\d+\.\d+", printed.getvalue())]
    # Of the mean's noise, std .02 a round, four rounds' worth lasts: .5 is 12 deviations and more.
    assert mean == pytest.approx([1.0, 2.0], abs=0.5)
    caplog.clear()
    caplog.set_level(logging.INFO, logger="flwr")
    with pytest.raises(SystemExit, match=r"error: the ledger .*ledger\.db is spent") as ended:
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert "\n" not in str(ended.value)
    assert not caplog.records


def test_the_version_is_the_same_in_the_package_and_its_metadata() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert metadata["project"]["version"] == fl_dp.__version__
    assert f"## {fl_dp.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {fl_dp.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_table_of_client_schemes_is_what_calibration_gives() -> None:
    guide = (ROOT / "docs/privacy.md").read_text()
    rows = re.findall(r"^\| ([18]), (one|ten) \| (.*) \|$", guide, re.MULTILINE)
    assert len(rows) == 4
    for epsilon, messages, cells in rows:
        exponential, *laplace = [float(cell) for cell in cells.split(" | ")]
        std = {
            name: calibrate_client_scheme(
                name,
                float(epsilon),
                1e-5,
                participations={"one": 1, "ten": 10}[messages],
                clipping_norm=1.0,
            ).noise_std
            for name in ("gaussian", "exponential", "laplace")
        }
        assert std["exponential"] / std["gaussian"] == pytest.approx(exponential, rel=0.02)
        for dimension, shown in zip((1, 10, 100, 1000), laplace, strict=True):
            ratio = std["laplace"] * math.sqrt(dimension) / std["gaussian"]
            assert ratio == pytest.approx(shown, rel=0.05)
