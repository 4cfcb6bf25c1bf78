"""Trainings of three rounds that a fault strikes, in this process or their own."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from flat_plans import calibrated_plan
from flwr.app import Message
from local_grid import Answer, LocalGrid, answer_with_app, answer_with_update, introducing
from trainings import FixedClient, client_fn

from fl_dp import PrivacyBudget
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.clients import numpy_client_app

CLIENTS, ROUNDS = 4, 3
PLAN = calibrated_plan(
    PrivacyBudget(epsilon=8.0, delta=1e-5),
    rounds=ROUNDS,
    num_clients=CLIENTS,
    sampling_rate=1.0,
    clipping_norm=1.0,
)
BUFFERED = calibrated_plan(
    PrivacyBudget(epsilon=8.0, delta=1e-5),
    rounds=ROUNDS,
    num_clients=CLIENTS,
    sampling=BufferedSampling(cohort=2),
    clipping_norm=1.0,
)


def grid(*, before_round: tuple[int, Callable[[], object]] | None = None) -> LocalGrid:
    """The clients; `before_round` happens when the first client of a round answers."""
    answer: Answer = answer_with_update([{"w": np.full(8, 0.1)}] * CLIENTS)
    if before_round is None:
        return LocalGrid(answer, CLIENTS)
    number, happen = before_round
    seen = [0]

    def answer_after(message: Message, partition: int) -> Message | None:
        seen[0] += 1
        if seen[0] == (number - 1) * CLIENTS + 1:
            happen()
        return answer(message, partition)

    return LocalGrid(answer_after, CLIENTS)


def named_grid() -> LocalGrid:
    """Clients that tell a lasting name, by which a buffer counts them."""
    app = numpy_client_app(client_fn(lambda _: FixedClient(0.1)))
    return LocalGrid(introducing(answer_with_app(app, CLIENTS)), CLIENTS)


def in_a_process(work: Callable[[], object]) -> int:
    """Do it in a process of its own.

    Returns:
        0: it was done. 1: it raised. Less: minus the signal that ended it.
    """
    child = os.fork()
    if not child:  # it must not come back into pytest
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
