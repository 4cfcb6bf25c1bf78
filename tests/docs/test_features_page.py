"""The page on features: its code runs, its policy is one, its keys are those that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fl_dp.app.compose import compose_settings
from fl_dp.clients.node_config import NodeConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/features.md").read_text(encoding="utf-8")


def test_the_code_for_projects_of_one_s_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    given: dict[str, Any] = {
        "Path": Path,
        "public_images": draw.random((620, 1, 28, 28), dtype=np.float32),
        "images": draw.random((20, 1, 28, 28), dtype=np.float32),
    }
    *others, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/features.md", "exec"), given)
    assert given["vectors"].shape == (20, 600)
    assert (tmp_path / "features.safetensors").is_file()
    for each in others:  # they need a network of somebody's
        compile(each, "docs/features.md", "exec")


def test_the_policy_names_an_encoder() -> None:
    [policy] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert NodeConfig.of(yaml.safe_load(policy)).encoders is not None


def commands_of(page: str) -> list[str]:
    return re.findall(r"^fl-dp run (.*)$", page.replace("\\\n", ""), re.MULTILINE)


def test_the_command_for_clients_is_the_row_of_the_table() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    [command] = [each for each in commands_of(page) if "task.num_clients=833" in each]
    table = yaml.safe_load((ROOT / "benchmarks/accuracy.yaml").read_text())["fashion_60"]
    [row] = [each for each in table["rows"] if each["label"] == "epsilon 3"]
    measured = compose_settings([*table["overrides"], *row["overrides"]])
    assert compose_settings(command.split()) == measured


def test_the_commands_compose() -> None:
    commands = commands_of(PAGE)
    assert commands
    for command in commands:
        settings = compose_settings(command.replace("$PWD", "/here").split())
        assert settings.features.name != "none"
