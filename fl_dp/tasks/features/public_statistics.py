"""Statistics of public records, by which all records' vectors are centred and projected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import save
from torch import Tensor

from fl_dp.files import written_whole
from fl_dp.tasks.models.weights import read_weights

_SPARE = 10  # directions beyond the requested ones, which become exact by them
_PASSES = 4
_SEED = 0
_BODY = "body."


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicStatistics:
    """Mean of public vectors and directions to project on; no private data influenced them.

    Attributes:
        mean: Float32 `(d,)`, subtracted from every vector.
        directions: Float32 `(d, k)`, by which the difference is multiplied; None: no projection.
        body: Named state of the network made from public records; empty if none was.
    """

    mean: Tensor
    directions: Tensor | None = None
    body: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def fit(cls, vectors: Tensor, *, project: int | None = None, shrink: int | None = None) -> Self:
        """Compute the statistics of public vectors.

        Args:
            vectors: Float32 `(n, d)`.
            project: Number of principal directions; None projects nothing.
            shrink: Number of first directions to scale down to the last one's variance: few
                directions have most of the variance, and classes differ in others as well.

        Raises:
            ValueError: If there are fewer directions.
        """
        mean = vectors.mean(dim=0)
        if project is None:
            return cls(mean=mean)
        if project > min(vectors.shape):
            raise ValueError(
                f"{len(vectors)} public vectors of {vectors.shape[1]} numbers have no {project} "
                "directions: write a smaller features.project"
            )
        with torch.random.fork_rng(devices=[]):  # the same directions in every process
            torch.default_generator.manual_seed(_SEED)
            rank = min(project + _SPARE, *vectors.shape)
            _, deviations, axes = torch.svd_lowrank(vectors - mean, rank, niter=_PASSES)
        directions = axes[:, :project].contiguous()
        if shrink is not None:
            directions[:, :shrink] *= deviations[shrink - 1] / deviations[:shrink]
        return cls(mean=mean, directions=directions)

    def applied(self, vectors: Tensor) -> Tensor:
        """Centre and project vectors `(n, d)`."""
        centred = vectors - self.mean.to(vectors.device)
        if self.directions is None:
            return centred
        return centred @ self.directions.to(vectors.device)

    def save(self, file: Path, *, public: bool = False) -> None:
        """Write them as safetensors, for encoding elsewhere; see `written_whole`."""
        arrays = {"mean": self.mean}
        if self.directions is not None:
            arrays["directions"] = self.directions
        arrays |= {_BODY + name: array for name, array in self.body.items()}
        stored = save(arrays)
        with written_whole(file, public=public) as unfinished:
            unfinished.write_bytes(stored)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            OSError: If it can't be read.
            ValueError: If the file is something else.
        """
        arrays = read_weights(file)
        body = {
            name.removeprefix(_BODY): arrays.pop(name)
            for name in list(arrays)
            if name.startswith(_BODY)
        }
        mean, directions = arrays.pop("mean", torch.empty(0)), arrays.pop("directions", None)
        fit = directions is None or (directions.dim() == 2 and len(directions) == len(mean))
        if arrays or mean.dim() != 1 or not len(mean) or not fit:
            raise ValueError(
                f"{file} holds no statistics of features: write the features.safetensors of a run "
                "with features.public"
            )
        return cls(mean=mean, directions=directions, body=body)
