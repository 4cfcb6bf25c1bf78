"""The page on trained models runs as it stands, and so does the example that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAvg
from local_grid import LocalGrid, answer_with_app
from safetensors.torch import load_file

from fl_dp.app.compose import compose_settings
from fl_dp.app.run_folder import RunFolder
from fl_dp.ledger import PrivacyLedger
from fl_dp.strategies import DPFedAvg

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/models.md"
WITH_FL_DP, WITHOUT, TRAINED, TEXT = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def executed(code: str, **names: Any) -> dict[str, Any]:
    page: dict[str, Any] = dict(names)
    exec(compile(code, "docs/models.md", "exec"), page)
    return page


def test_a_model_is_loaded_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / "runs" / "NAME")
    run.create(compose_settings([f"output_dir={tmp_path / 'runs'}", "run_name=NAME"]))
    weight = np.random.default_rng(0).normal(size=(10, 64)).astype(np.float32)
    bias = np.zeros(10, np.float32)
    run.write_model(ArrayRecord({"1.weight": Array(weight), "1.bias": Array(bias)}))
    with_it, without = executed(WITH_FL_DP), executed(WITHOUT)
    for page in (with_it, without):
        np.testing.assert_array_equal(page["model"][1].weight.detach().numpy(), weight)
    pixels = with_it["data"].test_x.reshape(-1, 64)
    np.testing.assert_array_equal((pixels @ weight.T).argmax(1), with_it["predicted"])


def test_what_is_trained_is_named_and_the_rest_stays(tmp_path: Path) -> None:
    def build_model() -> torch.nn.Module:
        frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        return torch.nn.Sequential(frozen, torch.nn.Linear(2, 1))

    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [array + 0.1 for array in parameters], 1, {}

    budget = {
        "epsilon": 8.0,
        "rounds": 1,
        "num_clients": 4,
        "sampling_rate": 1.0,
        "clipping_norm": 1.0,
        "ledger": tmp_path / "ledger.db",
    }
    page = executed(
        TRAINED,
        build_model=build_model,
        FedAvg=FedAvg,
        DPFedAvg=DPFedAvg,
        budget=budget,
        client_fn=lambda context: Client(),
    )
    first = ArrayRecord(page["module"].state_dict())
    result = page["strategy"].start(LocalGrid(answer_with_app(page["app"], 4), 4), first)
    moved = [
        name
        for name, array in result.arrays.items()
        if not np.array_equal(array.numpy(), first[name].numpy())
    ]
    assert moved == ["1.weight", "1.bias"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_private_head_is_trained_on_a_public_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = executed((ROOT / "examples/private_head/app.py").read_text(encoding="utf-8"))
    grid = LocalGrid(answer_with_app(page["client_app"], page["CLIENTS"]), page["CLIENTS"])
    before = page["model"].encoder[0].weight.clone()
    page["main"](grid, None)
    for message in grid.sent:
        assert list(message.content.array_records["arrays"]) == ["head.weight", "head.bias"]
    assert torch.equal(page["model"].encoder[0].weight, before)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["encoder.0.weight"], before)
    test = slice(page["TEST"])
    right = page["model"](page["images"][test]).argmax(1) == page["labels"][test]
    assert right.float().mean() > 0.4  # a tenth by chance; .65 and .69 were measured
    with PrivacyLedger.read(tmp_path / "head.db") as ledger:
        assert ledger.rounds_committed == 20


@pytest.mark.slow
def test_text_of_one_s_own_is_checked_before_it_is_trained_on(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}
    tokens = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokens.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=4,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=128,
        )
    ).save_pretrained(tmp_path)
    page = executed(TEXT.replace("/srv/encoder", str(tmp_path)))
    travels = [
        name for name, each in page["build_model"]().named_parameters() if each.requires_grad
    ]
    assert travels
    assert all("lora_" in name or "classifier" in name for name in travels)
