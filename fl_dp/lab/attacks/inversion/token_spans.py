"""Text recovered from a language model's update: which tokens occur, then their order.

Rows of the embedding's gradient show which tokens occur: all others are zero. A linear layer's
gradient is a sum of outer products with its inputs, so its rows span them: one input per token. A
causal layer's input at a position depends only on the tokens up to it. So the text grows token by
token: the next is the one whose input lies in the span of every later layer's gradient. Directions
of earlier tokens are removed first, as a repeated token would fit for ever.

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

from .inversion_attack import Attack, PixelRange, Recovered, RoundObservation, require_alike

# Linear layers of a block that read its input, and the norm before each.
_READERS = {
    "mlp.dense_h_to_4h": "post_attention_layernorm",
    "attention.query_key_value": "input_layernorm",
}
_ABOVE_FLOOR = 2.0  # times the noise of a singular value: a smaller one may be noise
_ABOVE_MEDIAN = 1.5  # times the median square of a row: most tokens of a vocabulary do not occur
_LEAST = 1e-6  # least length of a new input; float32 gradients are no finer


@dataclass(frozen=True, kw_only=True)
class TokenSpans(Attack):
    """Reads tokens from the embedding's rows and their order from spans of gradients.

    Without noise, exact for one record with fewer tokens than the model is wide. For more records,
    a sum of clients, or noise that hides most spans, it repeats the token with the largest row.

    Attributes:
        beam: Number of the text's beginnings to keep at each position.
    """

    beam: int = 8

    def recover(
        self,
        observations: Sequence[RoundObservation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """The tokens, int64. See `Attack.recover`; `pixels` and `seed` are not used.

        Raises:
            ValueError: If the model is not a `Transformer`.
        """
        del pixels, seed
        model = require_alike(observations).model
        if not isinstance(model, Transformer):
            raise ValueError(
                "token_spans reads the layers of model=transformer, and this model is another"
            )
        return [self._recovered(model, observed, *input_shape) for observed in observations]

    def _recovered(self, model: Transformer, observed: RoundObservation, length: int) -> Recovered:
        rows, num_tokens = embedding_rows(observed), observed.records * length
        candidates = occurring(rows)
        readers = []
        if num_tokens < model.head.in_features:
            readers = _readers(model, observed, num_tokens)
        if any(2 * len(reader.span) >= num_tokens for reader in readers):
            tokens = self._in_order(model, readers, candidates, length)
        else:
            tokens = rows.argmax().expand(length)
        return Recovered(
            features=tokens.repeat(observed.records, 1),
            # The character after the last one is not searched.
            labels=tokens[-1:].repeat(observed.records),
            occurring=candidates,
        )

    def _in_order(
        self, model: Transformer, readers: list[_Reader], tokens: Tensor, length: int
    ) -> Tensor:
        body: Any = copy.deepcopy(model.body).eval().double()
        nothing = torch.zeros((0, model.head.in_features), dtype=torch.float64)
        beam = [_Beginning(tokens[:0], 0.0, [nothing] * len(readers))]
        for _ in range(length):
            extensions = []
            for beginning in beam:
                texts = beginning.text.expand(len(tokens), -1)
                extensions.append(torch.cat([texts, tokens[:, None]], 1))
            longer = torch.cat(extensions)
            with torch.no_grad():
                layers = body(input_ids=longer, output_hidden_states=True).hidden_states
                inputs = [reader.norm(layers[reader.layer][:, -1]) for reader in readers]
            beam = self._longer(beam, longer, inputs, readers)
        return beam[0].text

    def _longer(
        self,
        beam: list[_Beginning],
        longer: Tensor,
        inputs: list[Tensor],
        readers: list[_Reader],
    ) -> list[_Beginning]:
        """The best beginnings, one token longer."""
        num_extensions = len(longer) // len(beam)
        misfit = torch.tensor([beginning.misfit for beginning in beam], dtype=torch.float64)
        misfit = misfit.repeat_interleave(num_extensions)
        directions = []
        for number, reader in enumerate(readers):
            unit = nn.functional.normalize(inputs[number], dim=1)
            rests = []
            for vectors, beginning in zip(torch.split(unit, num_extensions), beam, strict=True):
                basis = beginning.explained[number]
                # Twice: rounding of the first projection is as large as what is looked for.
                rests.append(_without(_without(vectors, basis), basis))
            rest = torch.cat(rests)
            outside = _without(rest, reader.span).norm(dim=1)
            misfit = misfit + ((outside + _LEAST) / (rest.norm(dim=1) + _LEAST)).log()
            directions.append(nn.functional.normalize(rest, dim=1, eps=1e-14))
        best = misfit.topk(min(self.beam, len(misfit)), largest=False)
        beginnings = []
        for value, row in zip(best.values, best.indices.tolist(), strict=True):
            bases = beam[row // num_extensions].explained
            explained = [
                torch.cat([basis, new[row : row + 1]])
                for basis, new in zip(bases, directions, strict=True)
            ]
            beginnings.append(_Beginning(longer[row], float(value), explained))
        return beginnings


class _Reader(NamedTuple):
    """A linear layer that reads a block's input: layer, norm before it, and span."""

    layer: int
    norm: nn.Module
    span: Tensor


class _Beginning(NamedTuple):
    """A text's beginning, the log of its misfit, and its directions in each span."""

    text: Tensor
    misfit: float
    explained: list[Tensor]


def embedding_rows(observation: RoundObservation) -> Tensor:
    """The squared length of each token's embedding update, `(vocabulary,)`."""
    return observation.parts()["body.embed_in.weight"].square().sum(1)


def occurring(rows: Tensor) -> Tensor:
    """The tokens whose embeddings moved, by `embedding_rows`: int64, at least one."""
    largest = rows.max()
    threshold = torch.maximum(_ABOVE_MEDIAN * rows.median(), 1e-12 * largest)
    tokens = torch.nonzero(rows > threshold).flatten()
    return tokens if len(tokens) else rows.argmax()[None]


def _readers(model: Transformer, observation: RoundObservation, tokens: int) -> list[_Reader]:
    parts = observation.parts()
    readers = []
    for layer, block in enumerate(model.body.layers):
        if layer == 0:
            continue  # the first block's input holds no positions, so it shows no order
        for name, norm in _READERS.items():
            gradient = parts[f"body.layers.{layer}.{name}.weight"]
            _, values, directions = torch.linalg.svd(gradient, full_matrices=False)
            floor = values[tokens:].square().mean().sqrt()
            above_floor = values[:tokens] > _ABOVE_FLOOR * floor
            before = copy.deepcopy(block.get_submodule(norm)).double()
            readers.append(_Reader(layer, before, directions[:tokens][above_floor]))
    return readers


def _without(vectors: Tensor, basis: Tensor) -> Tensor:
    """Each row's part orthogonal to the rows of an orthonormal basis."""
    return vectors - (vectors @ basis.T) @ basis
