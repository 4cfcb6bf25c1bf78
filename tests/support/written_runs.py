"""Folders of runs, as a run would write them, but without a training."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fl_dp.app.settings import Settings

PROMISE = {
    "delta": 0.003,
    "unit": "client",
    "neighbours": "zero-out",
    "against": "whoever sees the models",
}
"""All that the epsilon of a written run means nothing without."""


def write_run(
    path: Path,
    *overrides: str,
    rounds: int = 4,
    done: int | None = None,
    stated: bool = True,
    epsilon: float = 8.0,
    written: float | None = None,
    **of_statement: Any,
) -> Path:
    """Write the folder of a training, all files at one time, and return it.

    Args:
        path: The folder.
        overrides: Overrides of its settings, each `key=value`; unchecked.
        rounds: Planned rounds.
        done: Released rounds; None: all.
        stated: Whether it wrote its statement.
        epsilon: Epsilon of the statement.
        written: When, seconds since 1970; None is now.
        of_statement: Other values of `privacy.json`.
    """
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(_settings(overrides, rounds))
    done = rounds if done is None else done
    write_rounds(path, range(done + 1), rounds=rounds, epsilon=epsilon)
    if stated:
        (path / "privacy.json").write_text(
            json.dumps(statement(rounds=rounds, done=done, epsilon=epsilon) | of_statement)
        )
    if written is not None:
        for file in path.iterdir():
            os.utime(file, (written, written))
    return path


def write_rounds(path: Path, which: range, *, rounds: int, epsilon: float = 8.0) -> None:
    """Append the lines of some rounds to a run's metrics."""
    with (path / "metrics.jsonl").open("a") as stream:
        for server_round in which:
            share = server_round / rounds
            line = {
                "round": server_round,
                "rounds": rounds,
                "expected_cohort": 50.0,
                "test_loss": 2.3 - 1.5 * share,
                "test_accuracy": 0.1 + 0.8 * share,
                "test_balanced_accuracy": 0.1 + 0.7 * share,
                "test_confusion_matrix": [[9, 1], [2, 8]],
                "test_classes": ["cat", "dog"],
                "epsilon": epsilon * share**0.5,
                "promise": PROMISE | {"budget": epsilon},
            }
            if server_round:
                line |= {"bytes_down": 2856, "bytes_up": 5456}
            stream.write(json.dumps(line) + "\n")


def statement(*, rounds: int, done: int, epsilon: float) -> dict[str, Any]:
    """What `privacy.json` holds of a training under central noise."""
    bounds = {"pld": epsilon, "rdp": 1.2 * epsilon, "naive": 20 * epsilon}
    event = {"event": "poisson-gaussian", "noise_multiplier": 1.3, "sampling_rate": 0.25}
    return {
        "delta": 0.003,
        "epsilon": bounds,
        "quoted": "pld",
        "epsilon_so_far": bounds,
        "budget": {"epsilon": epsilon, "delta": 0.003},
        "unit": "one client's whole contribution over the whole training",
        "neighboring_relation": "zero-out",
        "against": "whoever sees the models",
        "adversary": "sees every released model and knows all other clients' data",
        "trusted": "the server, with sums, coins and noise",
        "mechanism": "Gaussian on an integer grid, on the sum of L2-clipped updates",
        "sampling": "Poisson: an independent secret coin for each client in each round",
        "rule": "parameters fixed before the first release; privacy-loss distributions",
        "sampling_rate": 0.25,
        "rounds": done,
        "rounds_planned": rounds,
        "rounds_committed": done,
        "noise_multipliers": [1.3] * done,
        "most_rounds": None,
        "metrics": [],
        "releases": [event | {"count": done}] if done else [],
        "clipping": {"kind": "fixed", "norm": 0.5},
        "clipping_norm": 0.5,
        "denominator": 50.0,
        "num_clients": 200,
        "randomness": ["aes-256-ctr, keyed by the operating system"],
        "insecure": False,
        "not_covered": [
            "the choice of hyper-parameters, if it was made on the clients' data",
            "accuracy and loss on the test set, whose records have to be public",
        ],
        "versions": {"python": "3.11.7", "fl-dp": "0.1.0"},
        "second_figure": {"how": "PLDAccountant, by hand", "epsilon": epsilon, "ours": epsilon},
        "ledger": "ledger.db",
        "account": {
            "name": "ledger.db",
            "training": "training",
            "trainings": 1,
            "epsilon": epsilon,
            "delta": 0.01,
            "cap": None,
        },
        "ledger_entries": 2 * done + 1,
        "ledger_hash": "0" * 64,
    }


def _settings(overrides: tuple[str, ...], rounds: int) -> str:
    given = OmegaConf.from_dotlist([*overrides, f"rounds={rounds}"])
    return OmegaConf.to_yaml(OmegaConf.merge(_defaults(), given))


@cache
def _defaults() -> DictConfig:
    return OmegaConf.create(asdict(Settings()))
