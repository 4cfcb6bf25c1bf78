"""Subjects of the distinguishing game: freshly made strategies that claim to be private.

    >>> ours = FlDp()
    >>> ours.play({0: Sent(updates)}, nodes=2, rounds=1000)

All have the same public plan: clipping norm, noise multiplier and number of replies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from numpy.typing import NDArray
from played_rounds import HandOver, PaperLedger, as_arrays, play, reply_from

from fl_dp.accounting import PoissonSampling, PrivacyBudget
from fl_dp.app.in_process import flower_in_silence
from fl_dp.mechanisms import AdaptiveClipping, Clipping, FixedClipping, PerLayerClipping
from fl_dp.plan import CentralPlan, Plan
from fl_dp.strategies import DPFedAvg, PrivateLoop, Selection

SIZE = 64
"""Length of the model: one direction for the game, those across it show the noise."""

_NO_BUDGET = 1e6  # epsilon: a game is not to be stopped by a budget


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A client's reply to a model of zeros.

    Attributes:
        first: First coordinate of its update; all others are zero.
        examples: Number of claimed records.
        spread: Whether the update of that length lies along all coordinates alike instead.
    """

    first: float
    examples: int = 1
    spread: bool = False

    def message(self, node: int, arrays: int = 1) -> Message:
        """Return it as Flower's message, in `arrays` arrays."""
        update = self.first * direction(spread=self.spread)
        return reply_from(node, as_arrays(update, arrays), **{"num-examples": self.examples})


def direction(*, spread: bool) -> NDArray[np.float64]:
    """The updates' direction, length 1: the first coordinate, or all alike."""
    return np.full(SIZE, SIZE**-0.5) if spread else np.eye(1, SIZE)[0]


Replies = Mapping[int, Sent]
"""Reply of each client by its index in the roster; others are silent."""


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """A strategy to be audited.

    Attributes:
        noise_multiplier: Configured noise on the sum over the clipping norm: one round's claim.
        clipping_norm: Clipping norm of the first round.
        crowd: Additional clients of each game, whose updates are clipped.
    """

    name: str
    noise_multiplier: float
    clipping_norm: float = 0.5
    crowd: int = 0

    def play(
        self, replies: Replies, *, nodes: int, rounds: int, rate: float = 1.0
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The released models and who was asked, as `played_rounds.play` does."""
        with flower_in_silence():
            return self._play(replies, nodes=nodes, rounds=rounds, rate=rate)

    @abstractmethod
    def _play(
        self, replies: Replies, *, nodes: int, rounds: int, rate: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Play; Flower's and our own logs are silent."""


@dataclass(frozen=True, kw_only=True)
class FlDp(Subject):
    """`DPFedAvg`, or a broken copy of it.

    Attributes:
        adaptive: Whether the clipping norm follows a quantile.
        arrays: Number of the model's arrays; if several, each has its own norm.
        selection: Makes the selection from the sampling rate; None: the plan's.
    """

    name: str = "fl-dp, DPFedAvg"
    loop_class: type[PrivateLoop] = PrivateLoop
    adaptive: bool = False
    arrays: int = 1
    selection: Any = field(default=None)

    def plan(self, nodes: int, rate: float = 1.0) -> Plan:
        """The strategy's plan."""
        clipping: Clipping = FixedClipping(norm=self.clipping_norm)
        if self.adaptive:
            clipping = AdaptiveClipping(norm=self.clipping_norm)
        elif self.arrays > 1:
            clipping = PerLayerClipping.evenly(self.clipping_norm, self.arrays)
        return CentralPlan(
            budget=PrivacyBudget(epsilon=_NO_BUDGET, delta=1e-5),
            rounds=1,
            sampling=PoissonSampling(sampling_rate=rate),
            noise_multiplier=self.noise_multiplier,
            clipping=clipping,
            num_clients=nodes,
            contribution_check=False,  # its share of the noise would be another multiplier
        )

    def strategy(self, nodes: int, rate: float = 1.0) -> DPFedAvg:
        """The strategy, charged on paper alone."""
        plan = self.plan(nodes, rate)
        selection: Selection | None = None if self.selection is None else self.selection(rate)

        class Audited(DPFedAvg):
            loop_class = self.loop_class

        return Audited(HandOver(), plan=plan, ledger=PaperLedger(plan), selection=selection)  # type: ignore[arg-type]  # plays one

    def _play(
        self, replies: Replies, *, nodes: int, rounds: int, rate: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        messages = {node: sent.message(node, self.arrays) for node, sent in replies.items()}
        # Each adaptive round starts from the first norm: with another norm it is another game.
        length = 1 if self.adaptive else rounds
        released, asked = [], []
        for _ in range(rounds // length):
            strategy = self.strategy(nodes, rate)
            models, askings = play(
                strategy, messages, nodes=nodes, rounds=length, size=SIZE, arrays=self.arrays
            )
            released.append(models)
            asked.append(askings)
        return np.concatenate(released), np.concatenate(asked)


@dataclass(frozen=True, kw_only=True)
class FlowersOwn(Subject):
    """Flower's own server-side wrapper around its FedAvg, used as documented.

    Attributes:
        adaptive: Whether it adapts its clipping norm. Give it a crowd: with few clients its count
            of clipped ones leaves no noise multiplier for the updates.
    """

    name: str = "Flower's server-side fixed clipping"
    adaptive: bool = False

    def _strategy(self, nodes: int) -> Strategy:
        inner = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=nodes,
            min_available_nodes=nodes,
        )
        if self.adaptive:
            return DifferentialPrivacyServerSideAdaptiveClipping(
                inner, self.noise_multiplier, nodes, initial_clipping_norm=self.clipping_norm
            )
        return DifferentialPrivacyServerSideFixedClipping(
            inner, self.noise_multiplier, self.clipping_norm, nodes
        )

    def _play(
        self, replies: Replies, *, nodes: int, rounds: int, rate: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        played = []
        for _ in range(rounds):
            # The wrapper changes replies and its norm, so each round gets new ones.
            messages = {node: sent.message(node) for node, sent in replies.items()}
            strategy = self._strategy(nodes)
            played.append(play(strategy, messages, nodes=nodes, rounds=1, size=SIZE)[0])
        return np.concatenate(played), np.ones((rounds, nodes), dtype=np.bool_)
