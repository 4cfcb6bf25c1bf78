"""A folder with a sentence encoder of a few weights, drawn at random; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = ["[PAD]", "[UNK]", "a", "good", "bad", "dull", "film", "long", "and", "very"]


def write_encoder(folder: Path, **changes: Any) -> Any:
    """Write a BERT of width 16 as transformers saves it; return it, in `eval()`.

    `changes` are of its configuration. Its tokenizer knows `WORDS`, and adds no token of its own.
    """
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    config = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 12,
    }
    model = transformers.BertModel(transformers.BertConfig(**config | changes)).eval()
    model.save_pretrained(folder)
    numbers = {word: number for number, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_padding(length=12)  # as many folders ask for, and no vector may depend on
    words.save(str(folder / "tokenizer.json"))
    return model
