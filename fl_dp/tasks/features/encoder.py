"""Encoder: a frozen network, and normalisation by public statistics, for each record by itself.

    >>> encoder = Encoder(Scattering((1, 28, 28)), group_norm=27)
    >>> encoder = encoder.fitted(public_images, project=600, shrink=200)
    >>> encoder(images).shape
    (5000, 600)

A vector is a function of its own record and of public things. So what was promised to records or
clients holds as before: whoever changes one record changes one vector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fl_dp.mechanisms.threads import processors
from fl_dp.tasks.models.weights import set_weights
from fl_dp.user_code import Contained

from .patches import Patches
from .progress import told
from .public_statistics import PublicStatistics
from .scattering import Scattering

_ON_CPU, _ON_GPU = 16, 512  # records at a time; on a CPU more would leave its cache


class Encoder:
    """Turns records into vectors of norm 1.

    Attributes:
        statistics: Of public vectors; None leaves vectors where they are.
    """

    def __init__(
        self,
        body: nn.Module,
        *,
        group_norm: int | None = None,
        statistics: PublicStatistics | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Freeze a network.

        Args:
            body: From float32 records `(n, *input_shape)` to maps `(n, channels, ...)` or vectors.
            group_norm: Groups of its channels of which each is standardised by itself, in each
                record; None leaves them.
            statistics: Of public vectors.
            device: Where it computes; None is the CPU.

        Raises:
            ValueError: If the statistics are of another network.
        """
        self._device = device or torch.device("cpu")
        if isinstance(body, Patches) and statistics is not None:
            body = deepcopy(body)
            set_weights(body, statistics.body, "features.statistics")
        self._body = body.eval().requires_grad_(False).to(self._device)
        self._group_norm = group_norm
        self.statistics = statistics

    def fitted(
        self, public: NDArray[Any], *, project: int | None = None, shrink: int | None = None
    ) -> Encoder:
        """Return the encoder with the statistics of public records; see `PublicStatistics`.

        Patches are drawn of the same records.
        """
        body: dict[str, Tensor] = {}
        encoder = self
        if isinstance(self._body, Patches):
            drawn = self._body.fitted(public)
            body = drawn.state_dict()
            encoder = Encoder(drawn, group_norm=self._group_norm, device=self._device)
        parts = encoder._of_batches(encoder._maps, public)
        vectors = torch.cat([*told(parts, len(public), "public records")])
        finite = vectors[vectors.isfinite().all(dim=1)]
        statistics = PublicStatistics.fit(finite, project=project, shrink=shrink)
        return encoder.by(replace(statistics, body=body))

    def by(self, statistics: PublicStatistics) -> Encoder:
        """Return the same encoder with these statistics."""
        return Encoder(
            self._body, group_norm=self._group_norm, statistics=statistics, device=self._device
        )

    def __call__(self, records: NDArray[Any]) -> NDArray[np.float32]:
        """Return the vectors of records.

        Args:
            records: Numbers `(n, *input_shape)`, taken as float32.

        Returns:
            Float32 `(n, d)`, rows of norm 1. A record that the network fails on, or whose vector is
            zero or not finite, gets zeros: what is wrong with one changes nothing for others.

        Raises:
            ValueError: If the network does not take such records, or the statistics are of vectors
                of another length.
        """
        parts = [*self._of_batches(self._each, records)]
        encoded: NDArray[np.float32] = torch.cat(parts).numpy()
        return encoded

    def width(self, input_shape: tuple[int, ...]) -> int:
        """Return how many numbers a vector has.

        Raises:
            ValueError: As for records.
        """
        [(nothing, _)] = self._batches(np.zeros((1, *input_shape), np.float32))
        return self._normalised(self._maps(nothing)).shape[1]

    def _of_batches(
        self, work: Callable[[Tensor], Tensor], records: NDArray[Any]
    ) -> Iterator[Tensor]:
        """Yield what some work makes of records, in their order, batch by batch.

        Threads that end with it do the work: they take denormal numbers for zeros, which noise of
        this process must not. Our own networks compute in one thread each, as several wait for
        each other on small arrays; a network of somebody's own computes one batch at a time.
        """
        apart = isinstance(self._body, Scattering | Patches) and self._device.type == "cpu"
        count, each = (processors(), 1) if apart else (1, torch.get_num_threads())
        before = torch.get_num_threads()

        def prepare() -> None:
            torch.set_num_threads(each)  # of this thread
            torch.set_flush_denormal(True)

        def done(batch: tuple[Tensor, int]) -> Tensor:
            some, many = batch
            return work(some)[:many].cpu()

        waiting: deque[Future[Tensor]] = deque()
        pool = ThreadPoolExecutor(count, "fl-dp-encoder", prepare)
        try:
            for batch in self._batches(records):
                waiting.append(pool.submit(done, batch))
                if len(waiting) > 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)

    def _batches(self, records: NDArray[Any]) -> Iterator[tuple[Tensor, int]]:
        """Yield records some at a time, and how many they are.

        Kernels round by how many rows there are: the last ones are filled up, so that a vector does
        not depend on that.
        """
        size = _ON_CPU if self._device.type == "cpu" else _ON_GPU
        for start in range(0, max(len(records), 1), size):
            some = records[start : start + size]
            filled = np.zeros((size, *records.shape[1:]), np.float32)
            filled[: len(some)] = some
            yield torch.from_numpy(filled).to(self._device), len(some)

    @torch.inference_mode()
    def _maps(self, records: Tensor) -> Tensor:
        """Return what the network and the group norm make of records, flat."""
        maps: Tensor = self._body(records)
        groups = self._group_norm
        if groups is None:
            return maps.flatten(1).float()
        if maps.shape[1] % groups:
            raise ValueError(
                f"features.group_norm={groups} does not divide the {maps.shape[1]} channels"
            )
        return functional.group_norm(maps, groups).flatten(1).float()

    def _each(self, records: Tensor) -> Tensor:
        """Return the vectors of records, zeros for one that the network fails on."""
        with Contained():
            return self._normalised(self._maps(records))
        found = torch.zeros(len(records), self.width(tuple(records.shape[1:])))
        for place, record in enumerate(records):
            alone = torch.zeros_like(records)
            alone[place] = record  # where it was, so that it is rounded as it was
            with Contained():
                found[place] = self._normalised(self._maps(alone))[place].cpu()
        return found

    def _normalised(self, vectors: Tensor) -> Tensor:
        """Return vectors by the statistics, of norm 1."""
        if self.statistics is not None:
            if len(self.statistics.mean) != vectors.shape[1]:
                raise ValueError(
                    f"the public statistics are of vectors of {len(self.statistics.mean)} numbers, "
                    f"and these records have {vectors.shape[1]}: they belong to other features"
                )
            vectors = self.statistics.applied(vectors)
        vectors = functional.normalize(vectors)
        return torch.where(vectors.isfinite().all(dim=1, keepdim=True), vectors, 0.0)
