"""The page on features: its code runs, its policy is one, its keys are those that there are."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_sentences import write_encoder

from fl_dp.app.compose import compose_settings
from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.tasks.features import Encoder, PublicStatistics
from fl_dp.tasks.features.own_encoder import encoder_module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/features.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_for_projects_of_one_s_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    given: dict[str, Any] = {
        "Path": Path,
        "public_images": draw.random((620, 1, 28, 28), dtype=np.float32),
        "images": draw.random((20, 1, 28, 28), dtype=np.float32),
        "public_texts": ["a good film", "dull"],
    }
    write_encoder(tmp_path / "encoder")
    for code, width in zip(PYTHON, (600, 16), strict=True):
        code = code.replace("/srv", str(tmp_path))
        exec(compile(code, "docs/features.md", "exec"), given)
        statistics = PublicStatistics.read(tmp_path / "features.safetensors")
        assert statistics.applied(torch.zeros(1, len(statistics.mean))).shape == (1, width)
    assert given["vectors"].shape == (20, 600)


def test_the_encoders_that_the_page_names_are_python() -> None:
    """They need a network of somebody's."""
    named = re.findall(r"\]\(\.\./(examples/encoders/\w+\.py)\)", PAGE)
    assert len(named) == 3
    for name in named:
        compile((ROOT / name).read_text(encoding="utf-8"), name, "exec")


SMALL: dict[str, Any] = dict(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=16,
    patch_size=8,
)


def small_dinov2() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {name: size for name, size in SMALL.items() if name != "intermediate_size"}
    return transformers.Dinov2Model(transformers.Dinov2Config(**sizes))


def small_clip() -> Any:
    transformers = pytest.importorskip("transformers")
    texts = SMALL | {"vocab_size": 8, "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.CLIPConfig(text_config=texts, vision_config=SMALL, projection_dim=4)
    return transformers.CLIPModel(config)


@pytest.mark.slow
@pytest.mark.parametrize("make", [small_dinov2, small_clip])
def test_a_folder_of_transformers_becomes_an_encoder_as_the_page_says(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the network itself sees an image that its own processor has scaled."""
    model = make()
    model.save_pretrained(tmp_path / "vision")
    pixels = {"image_mean": [0.4] * 3, "image_std": [0.2] * 3, "size": {"height": 16, "width": 16}}
    (tmp_path / "vision/preprocessor_config.json").write_text(json.dumps(pixels), encoding="utf-8")
    module = (ROOT / "examples/encoders/vision_encoder.py").read_text(encoding="utf-8")
    copy, weights = tmp_path / "vision_encoder.py", tmp_path / "encoder.safetensors"
    copy.write_text(module.replace("/srv", str(tmp_path)), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(copy), str(weights)])
    runpy.run_path(str(copy), run_name="__main__")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vision_encoder", raising=False)
    network = encoder_module("vision_encoder:Vision", weights, (1, 20, 20))
    images = torch.rand(2, 3, 16, 16)
    with torch.inference_mode():
        vision = getattr(model, "vision_model", model).eval()
        torch.testing.assert_close(network(images), vision((images - 0.4) / 0.2).pooler_output)
    vectors = Encoder(network)(np.random.default_rng(0).random((3, 1, 20, 20), dtype=np.float32))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


def test_the_policy_names_an_encoder() -> None:
    [policy] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert NodeConfig.of(yaml.safe_load(policy)).encoder_digests is not None


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
