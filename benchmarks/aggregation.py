"""Time and memory from the replies of a round to the server's released model.

Ours checks, clips, sums on the grid and adds secure noise. On the same replies it is compared with
Flower's FedAvg, which does nothing for privacy, and with Flower's wrapper around FedAvg, which
clips and adds floating-point noise. One time is of all the work, noise included, as if all replies
came at once. The other starts at the last reply: while waiting, ours has drawn the noise and
folded the others; Flower only begins. The peak memory is printed to stderr.

    python benchmarks/aggregation.py [--json] [--repeats 9] [--of-processor]
    python benchmarks/aggregation.py --gib 1    # rounds with a model of that size: memory alone
"""

from __future__ import annotations

import logging
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from side_by_side import Case, main

from fl_dp.mechanisms import GaussianMechanism, SecureRandom, WhiteStream
from fl_dp.updates import VectorLayout, only_array_record
from fl_dp.updates.clipped_sum import ClippedSum

CLIPPING_NORM, NOISE_MULTIPLIER = 1.0, 1.0
MECHANISM = GaussianMechanism(noise_multiplier=NOISE_MULTIPLIER, clipping_norm=CLIPPING_NORM)
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
    """A model and a cohort's replies, with updates about ten clipping norms long."""

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
        """Release the model's private successor, from the opening of the round on."""
        self.open()
        self.fold(self.replies)
        return self.release()

    def open(self) -> None:
        """Begin to draw the noise, as a charged round does."""
        self.layout = VectorLayout.of(self.model)
        self.origin = self.layout.flatten(self.model)
        self.clipped = ClippedSum(
            self.layout, self.origin, grid=MECHANISM.grid, clipping_norms=[CLIPPING_NORM]
        )
        self.stream = WhiteStream()
        self.stream.draw_ahead(MECHANISM.law, self.size, SecureRandom(), index=0)

    def fold(self, replies: Sequence[Message]) -> None:
        """Add replies as they arrive."""
        for reply in replies:
            self.clipped.add(only_array_record(reply.content))

    def release(self) -> ArrayRecord:
        """Add the noise, divide, and write the model."""
        noise = self.stream.next(MECHANISM.law, self.size, SecureRandom(), index=0)
        mean = noise.view(np.float64)
        self.clipped.visit_blocks(
            lambda total, block: MECHANISM.release(
                total, noise[block], divided_by=self.cohort, out=mean[block]
            )
        )
        return self.layout.merge(self.layout.unflatten(self.origin, mean), self.model)

    def wait_for_last(self) -> None:
        """Do the work that precedes the last reply."""
        self.open()
        self.fold(self.replies[:-1])
        time.sleep(0.5)  # for the noise, which threads draw

    def after_last(self) -> ArrayRecord:
        """Release the model from the last reply on."""
        self.fold(self.replies[-1:])
        return self.release()

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
        """Messages of the same arrays: the wrapper writes into its messages."""
        copies = []
        for reply in self.replies:
            copy = Message(RecordDict(), dst_node_id=1, message_type="train")
            copy.content = RecordDict(dict(reply.content))
            copies.append(copy)
        return copies


def cases(name: str, work: Round) -> list[Case]:
    """Compare the same round with FedAvg's and the wrapper's."""
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
        Case(
            name=f"{name}, {size}, from the last reply on, against FedAvg",
            peer="FedAvg (not private)",
            before=work.wait_for_last,
            ours=work.after_last,
            theirs=work.fedavg,
        ),
    ]


def peak(run: Callable[[], object]) -> int:
    """How many bytes `run` adds to the memory in use at most."""
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
