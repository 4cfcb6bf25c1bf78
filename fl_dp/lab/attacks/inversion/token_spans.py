"""Text recovered from a language model's update: which tokens occur, then their order.

Rows of the embedding's gradient say which tokens occur: those of all others are zero. A linear
layer's gradient is a sum of outer products with its inputs, so its rows span them, one for each
token of the text. A causal layer's input at one place depends on what stands before it alone: the
text is grown token by token, each the one whose input lies in the span of every later layer's
gradient. What earlier tokens explain is taken away first, as a repeated token would fit for ever.

References:
    Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning", 4.1.
    Petrov et al. 2024, "DAGER: Exact Gradient Inversion for Large Language Models".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fl_dp.tasks.models.transformer import Transformer

from .attack import Attack, Observation, PixelRange, Recovered, require_alike

# Linear layers of a block that read its input, and the norm before each.
_READERS = {
    "mlp.dense_h_to_4h": "post_attention_layernorm",
    "attention.query_key_value": "input_layernorm",
}
_ABOVE_FLOOR = 2.0  # times the noise of a singular value: below it a direction is not told apart
_ABOVE_MEDIAN = 1.5  # times the median square of a row: most tokens of a vocabulary do not occur
_LEAST = 1e-6  # length from which on an input is new; float32 gradients know no less


@dataclass(frozen=True, kw_only=True)
class TokenSpans(Attack):
    """Reads tokens from the embedding's rows and their order from spans of gradients.

    Exact without noise for one record with fewer tokens than the model is wide. Of more records, of
    a sum of clients', and where noise hides most of the spans, it gives the token with the largest
    row at every place.

    Attributes:
        beam: Beginnings of the text that are kept at each place.
    """

    beam: int = 8

    def recover(
        self,
        observations: Sequence[Observation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Return the tokens, int64. See `Attack.recover`; `pixels` and `seed` are not used.

        Raises:
            ValueError: If the model is not a `Transformer`.
        """
        del pixels, seed
        model = require_alike(observations).model
        if not isinstance(model, Transformer):
            raise ValueError(
                "token_spans reads the layers of model=transformer, and this model is another"
            )
        return [self._recovered(model, each, *input_shape) for each in observations]

    def _recovered(self, model: Transformer, seen: Observation, length: int) -> Recovered:
        rows, text = embedding_rows(seen), seen.records * length
        found = occurring(rows)
        readers = _readers(model, seen, text) if text < model.head.in_features else []
        if any(2 * len(each.span) >= text for each in readers):
            tokens = self._in_order(model, readers, found, length)
        else:
            tokens = rows.argmax().expand(length)
        return Recovered(
            features=tokens.repeat(seen.records, 1),
            # The character after the last one is not searched.
            labels=tokens[-1:].repeat(seen.records),
            occurring=found,
        )

    def _in_order(
        self, model: Transformer, readers: list[_Reader], tokens: Tensor, length: int
    ) -> Tensor:
        body: Any = copy.deepcopy(model.body).eval().double()
        nothing = torch.zeros((0, model.head.in_features), dtype=torch.float64)
        beam = [_Beginning(tokens[:0], 0.0, [nothing] * len(readers))]
        for _ in range(length):
            longer = torch.cat(
                [
                    torch.cat([each.text.expand(len(tokens), -1), tokens[:, None]], 1)
                    for each in beam
                ]
            )
            with torch.no_grad():
                layers = body(input_ids=longer, output_hidden_states=True).hidden_states
                inputs = [each.norm(layers[each.layer][:, -1]) for each in readers]
            beam = self._longer(beam, longer, inputs, readers)
        return beam[0].text

    def _longer(
        self,
        beam: list[_Beginning],
        longer: Tensor,
        inputs: list[Tensor],
        readers: list[_Reader],
    ) -> list[_Beginning]:
        """Return the best beginnings that are one token longer."""
        of_each = len(longer) // len(beam)
        misfit = torch.tensor([each.misfit for each in beam], dtype=torch.float64)
        misfit = misfit.repeat_interleave(of_each)
        new = []
        for place, reader in enumerate(readers):
            unit = nn.functional.normalize(inputs[place], dim=1)
            explained = [each.explained[place] for each in beam]
            rest = torch.cat(
                [
                    # Twice: once leaves a rest of the order of what is told apart.
                    _without(_without(some, known), known)
                    for some, known in zip(torch.split(unit, of_each), explained, strict=True)
                ]
            )
            outside = _without(rest, reader.span).norm(dim=1)
            misfit = misfit + ((outside + _LEAST) / (rest.norm(dim=1) + _LEAST)).log()
            new.append(nn.functional.normalize(rest, dim=1, eps=1e-14))
        best = misfit.topk(min(self.beam, len(misfit)), largest=False)
        return [
            _Beginning(
                longer[row],
                float(value),
                [
                    torch.cat([known, fresh[row : row + 1]])
                    for known, fresh in zip(beam[row // of_each].explained, new, strict=True)
                ],
            )
            for value, row in zip(best.values, best.indices.tolist(), strict=True)
        ]


class _Reader(NamedTuple):
    """A linear layer that reads the input of a block: which, after what, and its span."""

    layer: int
    norm: nn.Module
    span: Tensor


class _Beginning(NamedTuple):
    """A text so far, the log of what does not fit, and what it explains of each span."""

    text: Tensor
    misfit: float
    explained: list[Tensor]


def embedding_rows(seen: Observation) -> Tensor:
    """Return the squared length of each token's embedding's update, `(vocabulary,)`."""
    return seen.parts()["body.embed_in.weight"].square().sum(1)


def occurring(rows: Tensor) -> Tensor:
    """Return the tokens whose embeddings moved, int64, at least one.

    Args:
        rows: As `embedding_rows` returns them.
    """
    largest = rows.max()
    found = torch.nonzero(rows > torch.maximum(_ABOVE_MEDIAN * rows.median(), 1e-12 * largest))
    return found.flatten() if len(found) else rows.argmax()[None]


def _readers(model: Transformer, seen: Observation, tokens: int) -> list[_Reader]:
    parts = seen.parts()
    readers = []
    # The first block's input holds no places: it says which tokens occur, and no order.
    for layer, block in enumerate(model.body.layers):
        for name, norm in _READERS.items() if layer else ():
            gradient = parts[f"body.layers.{layer}.{name}.weight"]
            _, values, directions = torch.linalg.svd(gradient, full_matrices=False)
            floor = values[tokens:].square().mean().sqrt()
            told = values[:tokens] > _ABOVE_FLOOR * floor
            before = copy.deepcopy(block.get_submodule(norm)).double()
            readers.append(_Reader(layer, before, directions[:tokens][told]))
    return readers


def _without(vectors: Tensor, known: Tensor) -> Tensor:
    """Return what orthonormal rows do not explain of other rows."""
    return vectors - (vectors @ known.T) @ known
