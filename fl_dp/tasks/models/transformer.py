"""A small decoder of Hugging Face transformers, from a configuration: nothing is downloaded.

In training each record teaches every character of its window, not only the last. A criterion sees
one label per record. So the model adds the other characters' loss S in an extra column of logits,
which is never a label. Beside log-probabilities p that sum to one, `k = log(exp(S) - 1)` gives

    cross_entropy([log p, k], y) = log(1 + exp(k)) - log p_y = S - log p_y.

So the criterion, each record's gradient and its clipping stay as they are.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn import functional

_LAYERS = 3
_HEADS = 4


class Transformer(nn.Module):
    """GPT-NeoX over tokens `(n, length)`, int64, that scores the next one.

    It has only linear layers, LayerNorm and embeddings, which per-record gradients and LoRA know;
    positions are rotations without parameters.

    References:
        Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model".
    """

    def __init__(self, vocabulary_size: int, length: int, num_classes: int, hidden: int) -> None:
        """Make the layers with weights from torch's global generator.

        Tokens are below `vocabulary_size`, `length` of them in a record. `hidden` is the width, a
        multiple of 8.

        Raises:
            ModuleNotFoundError: If transformers is not installed.
        """
        super().__init__()
        try:
            transformers = import_module("transformers")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the model 'transformer' is built on transformers, which is not installed: "
                "pip install 'fl-dp[transformers]'"
            ) from error
        config = transformers.GPTNeoXConfig(
            vocab_size=vocabulary_size,
            hidden_size=hidden,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_HEADS,
            intermediate_size=4 * hidden,
            max_position_embeddings=length,
            use_cache=False,
        )
        self.body = transformers.GPTNeoXModel(config)
        self.head = nn.Linear(hidden, num_classes)
        self._names_tokens = num_classes == vocabulary_size

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(n, num_classes)`; in training one more column, if classes are tokens."""
        if not len(tokens):
            return self.head.weight.new_zeros(0, self.head.out_features)  # which attention can't
        states = self.body(input_ids=tokens).last_hidden_state
        if not (self.training and self._names_tokens):
            last: Tensor = self.head(states[:, -1])
            return last
        scores = self.head(states).log_softmax(dim=2)
        others = functional.nll_loss(
            scores[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
        ).sum(dim=1)
        # log(exp(S) - 1), where exp(S) itself would overflow.
        extra = others + torch.log(-torch.expm1(-others))
        return torch.cat([scores[:, -1], extra[:, None]], dim=1)
