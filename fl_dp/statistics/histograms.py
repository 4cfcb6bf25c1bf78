"""Histograms of numbers and frequencies of categories.

A record falls into one bin, so a client's vector has the same bound in L1 and in L2, whatever the
number of bins: Laplace noise is smaller there than Gaussian at all but the smallest epsilon.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .query import CountingQuery, Estimate, as_numbers, as_tuple, require_increasing
from .values import labels, records

Category: TypeAlias = str | int


@dataclass(frozen=True, kw_only=True)
class BinnedQuery(CountingQuery):
    """Numbers of records in each of several public bins.

    Privacy: see `Query`; a client's vector has an L1 and an L2 norm of at most `max_records`.

    Attributes:
        nonnegative: Whether negative noisy counts are reported as 0, which biases small counts.
    """

    nonnegative: bool = False

    @abstractmethod
    def _bins_of(self, values: object) -> NDArray[np.intp]:
        """The bin of each usable record, shape `(n,)`."""

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        indices = self._bins_of(values)
        return np.bincount(indices, minlength=self.dimension).astype(np.float64), indices.size

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """The estimate `counts`, shape `(bins,)`."""
        value = np.maximum(total, 0.0) if self.nonnegative else total
        return {"counts": Estimate(value=value, error=np.full(self.dimension, noise_std))}


@dataclass(frozen=True, kw_only=True)
class Histogram(BinnedQuery):
    """A histogram of one number per record.

    Attributes:
        edges: `bins + 1` increasing numbers. A bin contains its left edge, the last one both, as
            in `numpy.histogram`; values beyond the ends count in the end bins.
    """

    kind: ClassVar[str] = "histogram"
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: Edges are fewer than two, or not strictly increasing.
        """
        super().__post_init__()
        object.__setattr__(self, "edges", as_numbers("edges", self.edges))
        require_increasing("edges", self.edges, at_least=2)

    @property
    def dimension(self) -> int:
        """One number per bin: one fewer than the edges."""
        return len(self.edges) - 1

    def _bins_of(self, values: object) -> NDArray[np.intp]:
        # Only the inner edges part bins, so that the outer bins reach to infinity.
        return np.searchsorted(self.edges[1:-1], records(values, 1)[:, 0], side="right")


@dataclass(frozen=True, kw_only=True)
class Frequencies(BinnedQuery):
    """Counts of categories: labels, device classes, languages.

    Attributes:
        categories: Strings or whole numbers. Public: never take them from the data. A record of no
            category does not count; add a catch-all if it should.
    """

    kind: ClassVar[str] = "frequencies"
    categories: tuple[Category, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: There is no category, or one is neither string nor whole number, or occurs
                twice.
        """
        super().__post_init__()
        categories = as_tuple("categories", self.categories)
        object.__setattr__(self, "categories", categories)
        if not categories:
            raise ValueError("categories is empty: give at least one")
        distinct: set[Category] = set()
        for category in categories:
            if isinstance(category, bool) or not isinstance(category, str | int):
                raise ValueError(f"a category must be a string or a whole number, got {category!r}")
            if category in distinct:
                raise ValueError(f"category {category!r} occurs twice in categories")
            distinct.add(category)

    @property
    def dimension(self) -> int:
        """One number per category."""
        return len(self.categories)

    def ranked(self, estimate: Estimate, most: int) -> tuple[tuple[Category, float], ...]:
        """The most frequent categories with their noisy counts, the largest first.

        This post-processes the answer's `counts` and costs nothing. Counts within their noise of
        one another may be in the wrong order.

        Raises:
            ValueError: `most` is below 1, or the answer is of other categories.
        """
        if most < 1:
            raise ValueError(f"the most frequent categories must be at least 1, got {most}")
        if estimate.value.shape != (self.dimension,):
            raise ValueError(
                f"{self.dimension} categories and counts of shape {estimate.value.shape}: give the "
                "answer to this query"
            )
        order = np.argsort(-estimate.value, kind="stable")[:most]
        return tuple((self.categories[index], float(estimate.value[index])) for index in order)

    def _bins_of(self, values: object) -> NDArray[np.intp]:
        bin_of: dict[object, int] = {label: index for index, label in enumerate(self.categories)}
        bins: list[int] = []
        for label in labels(values):
            try:
                index = bin_of.get(label)
            except TypeError:  # a list or another unhashable value is no category
                continue
            if index is not None:
                bins.append(index)
        return np.array(bins, dtype=np.intp)
