"""Text recovered from a language model's training: `experiment=text_recovery`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_dp.app.settings import Settings
from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.datasets.shakespeare import VOCABULARY

from .experiment import Recovery, RecoveryCell
from .inversion_attack import ClientRecords, Recovered
from .recovery_results import CellResult
from .registry import ON_TOKENS
from .threats import ThreatModel


class _Prior(NamedTuple):
    """Other windows, and what they show of a text without its update."""

    windows: NDArray[np.int64]
    most_frequent: int
    occurring: set[int]


class TextRecovery(Recovery):
    """An experiment on text: tokens in place, tokens that occur, and guesses from other texts."""

    def _require_fit(self) -> None:
        """Raise ValueError for attacks that are not on text, or for other networks."""
        for attack in set(self.options.attacks or ()) - set(ON_TOKENS):
            raise ValueError(
                f"recovery.attacks={attack} is on images, and task={self.dataset.name} is text: "
                f"write recovery.attacks=[{','.join(ON_TOKENS)}]"
            )
        if self.settings.model.name != "transformer" or self.options.resistance:
            raise ValueError(
                "text is recovered from model=transformer, with recovery.resistance=false: write "
                "experiment=text_recovery"
            )

    def _measured(
        self,
        cell: RecoveryCell,
        threat: ThreatModel,
        victims: Sequence[ClientRecords],
        recovered: Sequence[Recovered],
    ) -> CellResult:
        prior = self._prior(cell.seed)
        of_cell = self._of_cell(cell, threat)
        rows, truths, matches, nearest = [], [], [], []
        for client, (victim, guess) in enumerate(zip(victims, recovered, strict=True)):
            assert guess.occurring is not None  # of an attack on text
            texts, tokens = guess.features.numpy(), {*guess.occurring.tolist()}
            for number, truth in enumerate(victim.features.numpy()):
                text = texts[(texts == truth).sum(1).argmax()]  # in the attack's favour
                near = prior.windows[(prior.windows == truth).sum(1).argmax()]
                rows.append(
                    {
                        **of_cell,
                        "client": client,
                        "text": number,
                        "in_place": float((text == truth).mean()),
                        "guess_in_place": float((truth == prior.most_frequent).mean()),
                        "nearest_in_place": float((near == truth).mean()),
                        "occurring": _alike(tokens, {*truth.tolist()}),
                        "guess_occurring": _alike(prior.occurring, {*truth.tolist()}),
                        "true": _read(truth),
                        "recovered": _read(text),
                    }
                )
                truths.append(truth)
                matches.append(text)
                nearest.append(near)
        return CellResult(
            rows=rows,
            truth=np.stack(truths),
            recovered=np.stack(matches),
            nearest=np.stack(nearest),
            mean=np.full_like(truths[0], prior.most_frequent),
        )

    def _prior(self, seed: int) -> _Prior:
        """The prior from the adversary's own windows, none attacked."""
        windows = np.asarray(self.dataset.features(self._rows(seed)[2]), dtype=np.int64)
        counts = np.bincount(windows.reshape(-1), minlength=len(VOCABULARY))
        shares = [(windows == token).any(1).mean() for token in range(len(counts))]
        likely = {token for token, share in enumerate(shares) if share > 0.5}
        return _Prior(windows, int(counts.argmax()), likely)


def recovery_of(dataset: Dataset, settings: Settings) -> Recovery:
    """The settings' experiment, on images or on text."""
    kind = Recovery if dataset.vocabulary_size is None else TextRecovery
    return kind(dataset=dataset, settings=settings)


def _read(tokens: NDArray[np.int64]) -> str:
    """The text of tokens, a line's end as a slash."""
    return "".join(VOCABULARY[token] for token in tokens).replace("\n", "/")


def _alike(some: set[int], others: set[int]) -> float:
    """The share that two sets have in common, from 0 to 1."""
    return len(some & others) / len(some | others)
