"""Encoder: a frozen network with normalisation by public statistics, applied record by record.

    >>> encoder = Encoder(Scattering((1, 28, 28)), group_norm=27)
    >>> encoder = encoder.fitted(public_images, project=600, shrink=200)
    >>> encoder(images).shape
    (5000, 600)

A vector depends only on its own record and public things: a change of one record changes one
vector. So every promise to records or clients still holds.
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

from fl_dp.mechanisms.threads import usable_processors
from fl_dp.tasks.models.weights import set_weights
from fl_dp.user_code import Contained

from .encoding_progress import logged
from .patches import Patches
from .public_statistics import PublicStatistics
from .scattering import Scattering
from .sentence_encoder import Sentences

_FEW, _MANY = 16, 512  # records at a time; on a CPU more would leave its cache


class Encoder:
    """Turns records into vectors of norm 1.

    Attributes:
        statistics: Statistics of public vectors; None: no centring or projection.
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
            body: Maps float32 records `(n, *input_shape)` to `(n, channels, ...)` or vectors.
            group_norm: Number of groups of its channels; each is standardised within each record.
                None standardises none.
            statistics: Statistics of public vectors.
            device: Device that computes; None is the CPU.

        Raises:
            ValueError: If the statistics are another network's.
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
        """Return the encoder with the statistics of public records; see `PublicStatistics.fit`.

        Patches are drawn from the same records.
        """
        body: dict[str, Tensor] = {}
        encoder = self
        if isinstance(self._body, Patches):
            drawn = self._body.fitted(public)
            body = drawn.state_dict()
            encoder = Encoder(drawn, group_norm=self._group_norm, device=self._device)
        parts = encoder._of_batches(encoder._maps, public)
        vectors = torch.cat([*logged(parts, len(public), "public records")])
        finite = vectors[vectors.isfinite().all(dim=1)]
        statistics = PublicStatistics.fit(finite, project=project, shrink=shrink)
        return encoder.with_statistics(replace(statistics, body=body))

    def with_statistics(self, statistics: PublicStatistics) -> Encoder:
        """The same encoder with other statistics."""
        return Encoder(
            self._body, group_norm=self._group_norm, statistics=statistics, device=self._device
        )

    def __call__(self, records: NDArray[Any]) -> NDArray[np.float32]:
        """Encode records, numbers `(n, *input_shape)` that become float32.

        Returns:
            Float32 `(n, d)`, rows of norm 1. A record gets zeros if the network fails on it, or
            its vector is zero or not finite; other records are not affected.

        Raises:
            ValueError: If the network does not take such records, or the statistics are for
                vectors of another length.
        """
        parts = [*self._of_batches(self._vectors, records)]
        encoded: NDArray[np.float32] = torch.cat(parts).numpy()
        return encoded

    def width(self, input_shape: tuple[int, ...]) -> int:
        """The length of a vector.

        Raises:
            ValueError: As `__call__`.
        """
        [(nothing, _)] = self._batches(np.zeros((1, *input_shape), np.float32))
        return self._normalised(self._maps(nothing)).shape[1]

    def _of_batches(
        self, work: Callable[[Tensor], Tensor], records: NDArray[Any]
    ) -> Iterator[Tensor]:
        """Yield the results of some work on records, in order, batch by batch.

        The work runs in threads, where denormal numbers become zero: this process's noise must
        keep them. Our own networks use one thread per batch, as several threads wait for each
        other on small arrays; other networks compute one batch at a time.
        """
        ours = isinstance(self._body, Scattering | Patches | Sentences)
        is_parallel = ours and self._device.type == "cpu"
        before = torch.get_num_threads()
        count, threads_each = (usable_processors(), 1) if is_parallel else (1, before)

        def prepare() -> None:
            torch.set_num_threads(threads_each)  # of this thread
            torch.set_flush_denormal(True)

        def done(batch: tuple[Tensor, int]) -> Tensor:
            rows, filled = batch
            return work(rows)[:filled].cpu()

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
        """Yield batches of records, and the number of records in each.

        Kernels round by the number of rows. So every batch is filled up to one size, and a vector
        does not depend on the number of records.
        """
        makes_batches = isinstance(self._body, Sentences)
        size = _MANY if makes_batches or self._device.type != "cpu" else _FEW
        for start in range(0, max(len(records), 1), size):
            chunk = records[start : start + size]
            filled = np.zeros((size, *records.shape[1:]), np.float32)
            filled[: len(chunk)] = chunk
            yield torch.from_numpy(filled).to(self._device), len(chunk)

    @torch.inference_mode()
    def _maps(self, records: Tensor) -> Tensor:
        """The outputs of the network and the group norm, flat."""
        maps: Tensor = self._body(records)
        groups = self._group_norm
        if groups is None:
            return maps.flatten(1).float()
        if maps.shape[1] % groups:
            raise ValueError(
                f"features.group_norm={groups} does not divide the {maps.shape[1]} channels"
            )
        return functional.group_norm(maps, groups).flatten(1).float()

    def _vectors(self, records: Tensor) -> Tensor:
        """The vectors of records; zeros for one on which the network fails."""
        with Contained():
            return self._normalised(self._maps(records))
        vectors = torch.zeros(len(records), self.width(tuple(records.shape[1:])))
        for row, record in enumerate(records):
            alone = torch.zeros_like(records)
            alone[row] = record  # in its old row, so that it is rounded as before
            with Contained():
                vectors[row] = self._normalised(self._maps(alone))[row].cpu()
        return vectors

    def _normalised(self, vectors: Tensor) -> Tensor:
        if self.statistics is not None:
            if len(self.statistics.mean) != vectors.shape[1]:
                raise ValueError(
                    f"the public statistics are of vectors of {len(self.statistics.mean)} numbers, "
                    f"and these records have {vectors.shape[1]}: they belong to other features"
                )
            vectors = self.statistics.applied(vectors)
        vectors = functional.normalize(vectors)
        return torch.where(vectors.isfinite().all(dim=1, keepdim=True), vectors, 0.0)
