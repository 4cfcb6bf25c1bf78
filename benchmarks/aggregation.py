"""How long the server takes from the replies of a round to its released model, and in what memory.

Ours checks, clips, sums on the grid and adds secure noise. It is compared with Flower's FedAvg on
the same reply messages, which does nothing for privacy, and with Flower's wrapper around FedAvg,
which clips and adds floating-point noise. The peak memory is printed to stderr.

    python benchmarks/aggregation.py [--json] [--repeats 9]
"""

from __future__ import annotations

import logging
import sys
import tracemalloc
from collections.abc import Callable
from math import prod

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from side_by_side import Case, main

from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.updates import VectorLayout, only_array_record
from fl_dp.updates.clipped_sum import ClippedSum

CLIPPING_NORM, NOISE_MULTIPLIER = 1.0, 1.0
SMALL_CNN = {  # 1.09 M parameters
    "conv1.weight": (32, 1, 5, 5),
    "conv1.bias": (32,),
    "conv2.weight": (64, 32, 5, 5),
    "conv2.bias": (64,),
    "fc1.weight": (1000, 1024),
    "fc1.bias": (1000,),
    "fc2.weight": (10, 1000),
    "fc2.bias": (10,),
}
LARGE_MLP = {  # 10 M parameters
    "fc1.weight": (2900, 784),
    "fc1.bias": (2900,),
    "fc2.weight": (2660, 2900),
    "fc2.bias": (2660,),
    "fc3.weight": (10, 2660),
    "fc3.bias": (10,),
}


class Round:
    """A model and the replies of a cohort, whose updates are about ten clipping norms long."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], cohort: int) -> None:
        """Write the replies as Flower's clients do."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        rng = np.random.default_rng(0)
        self.size = sum(prod(shape) for shape in shapes.values())
        self.cohort = cohort
        model = {
            name: 0.05 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()
        }
        self.model = ArrayRecord({name: Array(values) for name, values in model.items()})
        spread = np.float32(10 * CLIPPING_NORM / self.size**0.5)
        question = Message(RecordDict(), dst_node_id=1, message_type="train")
        question.metadata.__dict__["_message_id"] = "question"
        self.replies = []
        for _ in range(cohort):
            record = ArrayRecord(
                {
                    name: Array(values + spread * rng.standard_normal(values.shape, np.float32))
                    for name, values in model.items()
                }
            )
            content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})
            self.replies.append(Message(content, reply_to=question))

    def ours(self) -> ArrayRecord:
        """Release the model's private successor."""
        mechanism = GaussianMechanism(
            noise_multiplier=NOISE_MULTIPLIER, clipping_norm=CLIPPING_NORM
        )
        layout = VectorLayout.of(self.model)
        origin = layout.flatten(self.model)
        clipped = ClippedSum(
            layout, origin, grid=mechanism.grid, clipping_norms=[mechanism.clipping_norm]
        )
        for reply in self.replies:
            clipped.add(only_array_record(reply.content))
        noise = mechanism.noise(clipped.total.size, SecureRandom())
        mean = mechanism.release(clipped.total, noise, divided_by=self.cohort)
        return layout.merge(layout.unflatten(origin, mean), self.model)

    def fedavg(self) -> ArrayRecord:
        """Average without privacy."""
        arrays, _ = FedAvg().aggregate_train(1, self.replies)
        assert arrays is not None
        return arrays

    def wrapper(self) -> ArrayRecord:
        """Let Flower's wrapper clip, average and add noise."""
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), NOISE_MULTIPLIER, CLIPPING_NORM, self.cohort
        )
        strategy.current_arrays = self.model
        arrays, _ = strategy.aggregate_train(1, self._copies())
        assert arrays is not None
        return arrays

    def _copies(self) -> list[Message]:
        """Return messages of the same arrays: the wrapper writes into those that it is given."""
        copies = []
        for reply in self.replies:
            copy = Message(RecordDict(), dst_node_id=1, message_type="train")
            copy.content = RecordDict(dict(reply.content))
            copies.append(copy)
        return copies


def cases(name: str, work: Round) -> list[Case]:
    """Compare the same round with FedAvg's and with the wrapper's."""
    size = f"{work.cohort} replies x {work.size / 1e6:.3g} M float32"
    return [
        Case(
            name=f"{name}, {size}, against FedAvg",
            peer="FedAvg (not private)",
            ours=work.ours,
            theirs=work.fedavg,
        ),
        Case(
            name=f"{name}, {size}, against the wrapper",
            peer="DifferentialPrivacyServerSideFixedClipping",
            ours=work.ours,
            theirs=work.wrapper,
        ),
    ]


def peak(run: Callable[[], object]) -> int:
    """Return how many bytes `run` adds to the memory in use at most."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    small = Round(SMALL_CNN, 100)
    large = Round(LARGE_MLP, 10)
    main("From replies to the released model", cases("central", small) + cases("central", large))
    for work in (Round(SMALL_CNN, 10), small, large):
        vectors = {
            side: peak(run) / (8 * work.size)
            for side, run in {
                "ours": work.ours,
                "FedAvg": work.fedavg,
                "wrapper": work.wrapper,
            }.items()
        }
        print(
            f"peak memory, {work.cohort} replies x {work.size / 1e6:.3g} M, in float64 vectors of "
            "that length: " + ", ".join(f"{side} {many:.3g}" for side, many in vectors.items()),
            file=sys.stderr,
        )
