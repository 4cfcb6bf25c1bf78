"""Scores of all candidates: a client's on its own records, the server's on public rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fl_dp.app.settings import SETTINGS_KEY, Settings
from fl_dp.app.workload import data_on_roster, dataset_of, fitting, model_of
from fl_dp.codec import decode_text, encode_text
from fl_dp.tasks.datasets import Dataset

from .trial import TrialRounds, trial_score

_CANDIDATES_KEY = "fl-dp-candidates"
_ROUNDS_KEY = "fl-dp-trial-rounds"
_MOST_PARTS = 64  # of the public rows: enough for a mean


def trials_config(candidates: Sequence[Settings], rounds: TrialRounds) -> ConfigRecord:
    """The config that tells a node to try `rounds` of each candidate.

    `candidates` are their settings, as clients may know them.
    """
    return ConfigRecord(
        {
            SETTINGS_KEY: candidates[0].to_json(),
            _CANDIDATES_KEY: json.dumps([candidate.to_json() for candidate in candidates]),
            _ROUNDS_KEY: encode_text(rounds),
        }
    )


def scores_of_unit(
    index: int, node_config: Mapping[str, Any], config: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Score each candidate by trials on a unit's own records.

    `index` is the unit's among those of all nodes; `config` is from `trials_config`.

    Returns:
        Shape `(candidates,)`; NaN where the unit has too few records.

    Raises:
        ValueError: If the unit has no data.
    """
    rounds = decode_text(TrialRounds, str(config[_ROUNDS_KEY]))
    texts = json.loads(str(config[_CANDIDATES_KEY]))
    candidates = [Settings.from_json(text) for text in texts]
    dataset, rows = data_on_roster(candidates[0], index, node_config)
    rows = fitting(dataset, rows)
    features, labels = dataset.features(rows), dataset.labels(rows)
    seed = _seed(candidates[0], index)
    scores = [
        _score(candidate, dataset, features, labels, rounds, seed) for candidate in candidates
    ]
    return np.array(scores)


def public_scores(candidates: Sequence[Settings], rounds: TrialRounds) -> NDArray[np.float64]:
    """Score each candidate by trials on the server's public test part, shape `(candidates,)`.

    The rows are dealt to at most 64 parts of a client's size, whose scores are averaged.

    Raises:
        ValueError: If there are fewer than two rows.
    """
    first = candidates[0]
    dataset = dataset_of(first)
    rows = np.random.default_rng(first.seed).permutation(len(dataset.test_y))
    size = max(2, len(dataset.train_y) // first.task.num_clients)
    parts = [rows[start : start + size] for start in range(0, len(rows), size)][:_MOST_PARTS]
    parts = [part for part in parts if len(part) > 1]
    if not parts:
        raise ValueError("the public test part has fewer than two rows: nothing can be tried on it")
    scores = []
    for number, part in enumerate(parts):
        features, labels = dataset.features(part, "test"), dataset.labels(part, "test")
        seed = _seed(first, number)
        scores.append(
            [_score(candidate, dataset, features, labels, rounds, seed) for candidate in candidates]
        )
    return np.asarray(np.mean(scores, axis=0), dtype=np.float64)


def _score(
    settings: Settings,
    dataset: Dataset,
    features: NDArray[Any],
    labels: NDArray[Any],
    rounds: TrialRounds,
    seed: int,
) -> float:
    return trial_score(
        settings,
        features,
        labels,
        rounds=rounds,
        seed=seed,
        build=lambda: model_of(settings, dataset.form),
    )


def _seed(settings: Settings, index: int) -> int:
    entropy = (settings.seed, index)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)
