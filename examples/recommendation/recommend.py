"""Recommendation: a film's table under client-level privacy, a person's vector at the person.

    Rscript -e 'write.csv(dslabs::movielens, "movielens.csv", row.names = FALSE)'
    python recommend.py movielens.csv --epsilon 8

A rating is about `3.5 + b + c + p @ q`: the person's bias b and vector p, the film's c and q. A
node has one person. It solves for b and p in the table that it got, and answers with what would
better the films it rated; b and p are never sent, nor kept. Which films a person rated is as
private as how: the update has a row for every film, and is clipped and noised as a whole.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM
from numpy.typing import NDArray

from fl_dp.accounting import PoissonSampling
from fl_dp.app import simulate
from fl_dp.clients import numpy_client_app
from fl_dp.statement import privacy_statement
from fl_dp.strategies import DPFedAvg, LawSelection, UnprotectedFedAvg

FILMS = 300
"""The catalogue, public: the films with the most ratings."""

_MIDDLE, _LEAST, _MOST = 3.5, 0.5, 5.0  # of the scale that people rate on
_RIDGE = 4.0
_HELD_OUT = 0.2


class Ratings(NamedTuple):
    """What one person rated: films by their numbers, and how."""

    films: NDArray[np.int64]
    values: NDArray[np.float64]


def people_of(table: Path) -> list[Ratings]:
    """Return the ratings of each person in MovieLens, as R's package dslabs carries it."""
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    often = Counter(row["movieId"] for row in rows).most_common(FILMS)
    number = {film: place for place, (film, _) in enumerate(often)}
    of_people: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        kept = of_people.setdefault(row["userId"], [])
        if row["movieId"] in number:
            kept.append((number[row["movieId"]], float(row["rating"])))
    return [
        Ratings(np.array([film for film, _ in each], np.int64), np.array([v for _, v in each]))
        for each in of_people.values()
    ]


def split(people: Sequence[Ratings], seed: int) -> tuple[list[Ratings], list[Ratings]]:
    """Return what each person trains with, and a fifth that is held out."""
    rng, train, test = np.random.default_rng(seed), [], []
    for films, values in people:
        out = rng.random(len(films)) < _HELD_OUT
        train.append(Ratings(films[~out], values[~out]))
        test.append(Ratings(films[out], values[out]))
    return train, test


def own_vector(table: NDArray[np.float64], own: Ratings) -> NDArray[np.float64]:
    """Return a person's bias and vector, `(1 + factors,)`, by ridge regression."""
    bias, factors = table[own.films, 0], table[own.films, 1:]
    x = np.column_stack([np.ones(len(own.films)), factors])
    square = x.T @ x + _RIDGE * np.eye(x.shape[1])
    found: NDArray[np.float64] = np.linalg.solve(square, x.T @ (own.values - _MIDDLE - bias))
    return found


def predicted(
    table: NDArray[np.float64], person: NDArray[np.float64], films: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return what a person would rate films."""
    made = _MIDDLE + person[0] + table[films, 0] + table[films, 1:] @ person[1:]
    inside: NDArray[np.float64] = np.clip(made, _LEAST, _MOST)
    return inside


class Person(NumPyClient):
    """One person, who answers with a step for the films and keeps the rest."""

    def __init__(self, own: Ratings) -> None:
        """Take the person's ratings."""
        self.own = own

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]  # as NumPyClient has it
        """Return the table after one step on the person's own squared error."""
        (table,) = parameters
        person = own_vector(table, self.own)
        wrong = self.own.values - predicted(table, person, self.own.films)
        moved = table.copy()
        # One row a film: nobody rates a film twice.
        moved[self.own.films] += np.outer(wrong, np.r_[1.0, person[1:]])
        return [moved], 1, {}


def error(table: NDArray[np.float64], train: Sequence[Ratings], test: Sequence[Ratings]) -> float:
    """Return the root mean squared error of held-out ratings, over all people's together."""
    wrong = [
        each.values - predicted(table, own_vector(table, own), each.films)
        for own, each in zip(train, test, strict=True)
    ]
    return float(np.sqrt(np.mean(np.concatenate(wrong) ** 2)))


def first_table(factors: int, seed: int) -> NDArray[np.float64]:
    """Return biases of zero, and small random factors: a table of zeros would never move."""
    drawn = np.random.default_rng(seed).normal(0.0, 0.3, (FILMS, factors))
    return np.column_stack([np.zeros(FILMS), drawn])


def train(
    people: Sequence[Ratings],
    start: NDArray[np.float64],
    *,
    epsilon: float | None,
    norm: float,
    rate: float,
    rounds: int,
    ledger: Path,
) -> NDArray[np.float64]:
    """Return the table after training; its privacy statement is printed."""
    trained: list[NDArray[np.float64]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        optimizer = FedAvgM(server_learning_rate=rate, server_momentum=0.5)
        if epsilon is None:
            plain = UnprotectedFedAvg(
                optimizer, selection=LawSelection(PoissonSampling(sampling_rate=1.0))
            )
            result = plain.start(grid, ArrayRecord([start]), num_rounds=rounds)
        else:
            private = DPFedAvg.with_budget(
                optimizer,
                epsilon=epsilon,
                rounds=rounds,
                num_clients=len(people),
                sampling_rate=1.0,
                clipping_norm=norm,
                contribution_check=False,
                ledger=ledger,
            )
            result = private.start(grid, ArrayRecord([start]), num_rounds=rounds)
            spent = privacy_statement(private.ledger)
            print(f"{spent.guarantee}, all ratings together")
        trained.extend(result.arrays.to_numpy_ndarrays())

    def person(context: Context) -> Person:
        return Person(people[int(context.node_config["partition-id"])])

    simulate(server, numpy_client_app(person), num_nodes=len(people))
    return trained[0]


def main() -> None:
    """Train as the command line asks, and print the error on held-out ratings."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("table", type=Path, help="dslabs' movielens as CSV, written by R")
    asked.add_argument("--epsilon", type=float, help="of a person; none without privacy")
    asked.add_argument("--factors", type=int, default=0, help="of a film, beside its bias")
    asked.add_argument("--norm", type=float, default=2.0, help="clipping norm of a person's step")
    asked.add_argument("--rate", type=float, default=3.0, help="of the server's steps")
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--seed", type=int, default=0, help="of the split and the first factors")
    given = asked.parse_args()
    train_part, test_part = split(people_of(given.table), given.seed)
    start = first_table(given.factors, given.seed)
    print(
        f"{len(train_part)} people; error before training {error(start, train_part, test_part):.4f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        table = train(
            train_part,
            start,
            epsilon=given.epsilon,
            norm=given.norm,
            rate=given.rate,
            rounds=given.rounds,
            ledger=Path(folder) / "films.db",
        )
    print(f"error on held-out ratings {error(table, train_part, test_part):.4f}")


if __name__ == "__main__":
    main()
