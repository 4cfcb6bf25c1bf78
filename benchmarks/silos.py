"""Ten silos whose records are protected: who takes part when, and whose noise it is.

    python benchmarks/silos.py digits_2 digits_8        # choose rates, train, print a table
    python benchmarks/silos.py fashion --seeds 0,1,2

Each row is a whole `fl-dp run privacy=distributed_records`, and differs in two things alone. All
records take part in every round, or those whose coins come up. And the noise is enough with 8 of
10 shares (nobody is trusted), or with all (as a trusted server would add it). Ended runs are kept,
and read again.

Each row's server learning rate is chosen on MNIST, which is public here, by the same steps in this
process: gradients of a linear model, and noise by the nodes' code. For digits MNIST is made as
digits were: black or white, counted in blocks of pixels. `--played N` also trains on the private
sets in this way, over N seeds: without masks and messages, which change no number. One row is
played alone: silos that each hide their own records.
Fashion-MNIST and MNIST must be there: `fl-dp data fashion_mnist`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from accuracy import Row
from numpy.typing import NDArray

from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.settings import Settings
from fl_dp.app.workload import dataset_of
from fl_dp.mechanisms import NoiseShare, SecureRandom
from fl_dp.plan import Plan, SharedNoisePlan

Floats = NDArray[np.float64]

SILOS = 10
TRUSTED = ("privacy.secure_sum.least=10", "privacy.secure_sum.colluding=0")
EVERYBODY = ("selection.sampling_rate=1", "privacy.secure_sum.reply_after=null")
COINS = ("selection.sampling_rate=0.05", "privacy.secure_sum.reply_after=10")
ARMS = {
    "all records": EVERYBODY,
    "all records, 8 bits": (*EVERYBODY, "privacy.secure_sum.bits=8"),
    "coins at the nodes": COINS,
    "central, all records": (*EVERYBODY, *TRUSTED),
    "central, coins": (*COINS, *TRUSTED),
}
# Played alone: no setting asks for them.
OWN = "each silo's own noise, all records"
PLAYED = {OWN: "all records"}  # with the settings of


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Data, budget and model of a table.

    Attributes:
        overrides: Of `fl-dp run`, for all rows.
        rates: Server learning rates that are tried.
        shrunken: MNIST is made as digits were.
    """

    overrides: tuple[str, ...]
    rates: tuple[float, ...]
    shrunken: bool = False

    def settings(self, arm: str, *more: str) -> Settings:
        """The settings of a row."""
        return compose_settings([*self.overrides, *ARMS[PLAYED.get(arm, arm)], *more])


def _digits(epsilon: int) -> Setting:
    common = ("task.num_clients=10", "rounds=200", "privacy=distributed_records")
    budget = (f"privacy.epsilon={epsilon}", "privacy.delta=1e-5", "clipping.norm=1")
    return Setting(
        overrides=(*common, *budget, "simulation.engine=in_process"),
        rates=(0.03, 0.1, 0.3, 1.0),
        shrunken=True,
    )


TABLES = {
    "digits_2": _digits(2),
    "digits_8": _digits(8),
    "fashion": Setting(overrides=("experiment=fashion_silos",), rates=(5.0, 10.0, 20.0, 40.0)),
}


# The same steps in this process.


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """Rows, each with a one for the constant, and labels: to train on, and to measure on."""

    rows: Floats
    labels: NDArray[np.int64]
    test_rows: Floats
    test_labels: NDArray[np.int64]


@cache
def data_of(table: str, task: str) -> Data:
    """The records of a table's task; rates are chosen on `mnist`."""
    setting = TABLES[table]
    shrunken = setting.shrunken and task == "mnist"
    named = () if setting.shrunken and task != "mnist" else (f"task={task}",)
    dataset = dataset_of(setting.settings("all records", *named))

    def part(name: str, most: int) -> tuple[Floats, NDArray[np.int64]]:
        rows = slice(0, most) if shrunken else slice(None)
        features = np.asarray(dataset.features(rows, name), dtype=np.float64)
        features = _as_digits(features) if shrunken else features
        features = features.reshape(len(features), -1)
        labels = np.asarray(dataset.labels(rows, name), dtype=np.int64)
        return np.hstack([features, np.ones((len(features), 1))]), labels

    rows, labels = part("train", 1_437)
    test_rows, test_labels = part("test", 10_000)
    return Data(rows=rows, labels=labels, test_rows=test_rows, test_labels=test_labels)


def _as_digits(images: Floats) -> Floats:
    """Images of 28 x 28 as counts of black pixels in blocks of 3 x 3, in [-.3, .7]."""
    middle = images.reshape(-1, 28, 28)[:, 2:26, 2:26]
    black = middle > middle.min() + 0.5 * np.ptp(middle)
    counts: Floats = black.reshape(-1, 8, 3, 8, 3).mean(axis=(2, 4)) - 0.3
    return counts


class Nodes:
    """Ten nodes that answer with noise by the nodes' code."""

    def __init__(self, share: NoiseShare) -> None:
        """Make them."""
        self._share, self._rng = share, SecureRandom()

    def opened(self, sums: Sequence[Floats]) -> Floats:
        """The sum of all answers, in the units of gradients."""
        total = np.zeros(self._share.size, dtype=np.int64)
        for update in sums:
            values = [update, *(np.zeros(part.size) for part in self._share.segments[1:])]
            total += self._share.encode(values, self._rng)
        return self._share.decode(total)[0]


def _share_of(arm: str, plan: Plan, size: int) -> NoiseShare:
    """A node's noise: the plan's, or what costs a participation the same."""
    assert isinstance(plan, SharedNoisePlan)
    share = plan.shared_bundle(plan.noise_multiplier, size=size).share
    if arm == OWN:
        return replace(share, noise_scale=share.noise_scale * plan.noise.honest_shares**0.5)
    return share


def played(table: str, arm: str, rate: float, seed: int, *, task: str | None = None) -> float:
    """Train in this process; return the accuracy on the test part."""
    settings = TABLES[table].settings(arm)
    data = data_of(table, task or settings.task.name)
    plan = make_plan(settings)
    records, width = data.rows.shape
    classes = int(data.labels.max()) + 1
    nodes = Nodes(_share_of(arm, plan, width * classes))
    random = np.random.default_rng(seed)
    dealt = np.array_split(random.permutation(records), SILOS)
    share_of_records = settings.selection.sampling_rate
    model, speed = np.zeros((classes, width)), np.zeros((classes, width))
    optimizer = settings.server_optimizer
    for index in range(settings.rounds):
        sums = []
        for rows in dealt:
            inside = np.ones(len(rows), dtype=np.bool_)
            if share_of_records < 1.0:
                inside = random.random(len(rows)) < share_of_records
            sums.append(_clipped(model, data.rows[rows[inside]], data.labels[rows[inside]]))
        step = nodes.opened(sums).reshape(classes, width) / (records * share_of_records)
        speed = (optimizer.get("momentum") or 0.0) * speed + step
        left = 1.0 - index / settings.rounds if optimizer.get("linear_decay") else 1.0
        model -= rate * left * speed
    return float((np.argmax(data.test_rows @ model.T, axis=1) == data.test_labels).mean())


def _clipped(model: Floats, rows: Floats, labels: NDArray[np.int64]) -> Floats:
    """The sum of cross-entropy gradients, each clipped to norm 1."""
    scores = rows @ model.T
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1.0
    norms = np.linalg.norm(chances, axis=1) * np.linalg.norm(rows, axis=1)
    total: Floats = (chances / np.maximum(norms, 1.0)[:, None]).T @ rows
    return total.ravel()


# Tables.


def chosen_rates(table: str, arm: str, seeds: Sequence[int], kept: Path) -> dict[str, float]:
    """Accuracy on MNIST by server learning rate, mean over seeds."""
    name = "-".join(re.findall("[a-z]+", arm))
    file = kept / f"rates-{table}-{name}.json"
    if not file.is_file():
        tried = {
            f"{rate:g}": statistics.fmean(
                played(table, arm, rate, seed, task="mnist") for seed in seeds
            )
            for rate in TABLES[table].rates
        }
        file.write_text(json.dumps(tried), encoding="utf-8")
    rates: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return rates


def printed(table: str, asked: argparse.Namespace) -> Iterator[str]:
    """Choose, train and yield a table's lines in Markdown."""
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    yield f"**{table}**\n"
    yield "| who takes part, whose noise | rate | whole runs | each | s a round | played |"
    yield "|---|---|---|---|---|---|"
    for arm in (*ARMS, *PLAYED):
        if asked.arms and arm not in asked.arms:
            continue
        scores = chosen_rates(table, arm, range(100, 100 + asked.tried), asked.runs)
        rate = max(scores, key=scores.__getitem__)
        print(f"{table}, {arm}: on MNIST {scores}", file=sys.stderr, flush=True)
        cells = ["-", "-", "-"]
        if arm in ARMS and seeds and not asked.only_played:
            cells = _of_runs(table, arm, rate, seeds, asked.runs)
        again = "-"
        if asked.played:
            numbers = [played(table, arm, float(rate), seed) for seed in range(asked.played)]
            error = statistics.stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
            again = f"{_short(statistics.fmean(numbers))} ± {_short(error)} ({len(numbers)})"
        yield f"| {arm} | {rate} | {' | '.join(cells)} | {again} |"


def _of_runs(table: str, arm: str, rate: str, seeds: Sequence[int], runs: Path) -> list[str]:
    """Mean, single accuracies and seconds a round of whole runs."""
    asked = (*TABLES[table].overrides, *ARMS[arm], f"server_optimizer.learning_rate={rate}")
    row = Row(label=f"{table}, {arm}", overrides=asked)
    numbers, seconds = [], []
    for seed in seeds:
        if row.result(seed, runs) is None:
            row.trained(seed, runs)
        result = row.result(seed, runs)
        assert result is not None
        numbers.append(float(result["metric"]))
        seconds.append(float(result["seconds"]))
    rounds = TABLES[table].settings(arm).rounds
    mean, listed = _short(statistics.fmean(numbers)), ", ".join(map(_short, numbers))
    return [mean, listed, f"{min(seconds) / rounds:.2g}"]


def _short(number: float) -> str:
    return f"{number:.4f}".removeprefix("0")


def main() -> None:
    """Choose rates, train what is missing, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+", choices=[*TABLES])
    parser.add_argument("--seeds", default="0,1,2", help="of whole runs")
    parser.add_argument("--arms", nargs="*", choices=[*ARMS, *PLAYED], help="some alone")
    parser.add_argument("--tried", type=int, default=3, help="seeds that a rate is tried with")
    parser.add_argument("--played", type=int, default=0, help="seeds of trainings in this process")
    parser.add_argument("--only-played", action="store_true", help="no whole runs")
    parser.add_argument("--runs", type=Path, default=Path("runs/silos"), help="folder of the runs")
    asked = parser.parse_args()
    asked.runs = asked.runs.resolve()
    asked.runs.mkdir(parents=True, exist_ok=True)
    for table in asked.tables:
        began = time.monotonic()
        for line in printed(table, asked):
            print(line, flush=True)
        print(f"{table}: {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
