"""Histograms of numbers and frequencies of categories.

A record falls into one bin, so a client's vector has the same bound in L1 and in L2, however many
bins there are: Laplace noise is smaller there than Gaussian noise at all but the smallest epsilon.
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
        nonnegative: Report negative noisy counts as 0. This makes small counts biased.
    """

    nonnegative: bool = False

    @abstractmethod
    def _bins_of(self, values: object) -> NDArray[np.intp]:
        """Return the bin of each usable record, shape `(n,)`."""

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        indices = self._bins_of(values)
        return np.bincount(indices, minlength=self.dimension).astype(np.float64), indices.size

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """Return `counts`, shape `(bins,)`; see `SumQuery.estimates`."""
        value = np.maximum(total, 0.0) if self.nonnegative else total
        return {"counts": Estimate(value=value, error=np.full(self.dimension, noise_std))}


@dataclass(frozen=True, kw_only=True)
class Histogram(BinnedQuery):
    """A histogram of one number a record.

    Attributes:
        edges: `bins + 1` increasing numbers. A bin holds its left edge, the last one both, as in
            `numpy.histogram`; values beyond the ends count in the first or last bin.
    """

    kind: ClassVar[str] = "histogram"
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If there are not two edges or more, strictly increasing.
        """
        super().__post_init__()
        object.__setattr__(self, "edges", as_numbers("edges", self.edges))
        require_increasing("edges", self.edges, at_least=2)

    @property
    def dimension(self) -> int:
        """One number a bin: one fewer than the edges."""
        return len(self.edges) - 1

    def _bins_of(self, values: object) -> NDArray[np.intp]:
        # Only the inner edges part bins, so that the outer bins reach to infinity.
        return np.searchsorted(self.edges[1:-1], records(values, 1)[:, 0], side="right")


@dataclass(frozen=True, kw_only=True)
class Frequencies(BinnedQuery):
    """Counts of categories: labels, device classes, languages.

    Attributes:
        categories: Strings or whole numbers. Public: never read them off the data. A record that
            is none of them is left out; give a catch-all of your own if it should count.
    """

    kind: ClassVar[str] = "frequencies"
    categories: tuple[Category, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If there is no category, one is neither string nor whole number, or occurs
                twice.
        """
        super().__post_init__()
        categories = as_tuple("categories", self.categories)
        object.__setattr__(self, "categories", categories)
        if not categories:
            raise ValueError("categories is empty: give at least one")
        seen: set[Category] = set()
        for category in categories:
            if isinstance(category, bool) or not isinstance(category, str | int):
                raise ValueError(f"a category must be a string or a whole number, got {category!r}")
            if category in seen:
                raise ValueError(f"category {category!r} occurs twice in categories")
            seen.add(category)

    @property
    def dimension(self) -> int:
        """One number a category."""
        return len(self.categories)

    def ranked(self, estimate: Estimate, most: int) -> tuple[tuple[Category, float], ...]:
        """Return the most frequent categories with their noisy counts, the largest first.

        Post-processing of the answer's `counts`: it costs nothing. Two whose counts are within
        their noise of one another may stand the other way round.

        Args:
            estimate: `answer["counts"]`.
            most: How many, at most.

        Raises:
            ValueError: If `most` is below 1, or the answer is of other categories.
        """
        if most < 1:
            raise ValueError(f"the most frequent categories must be at least 1, got {most}")
        if estimate.value.shape != (self.dimension,):
            raise ValueError(
                f"{self.dimension} categories and counts of shape {estimate.value.shape}: give the "
                "answer to this query"
            )
        order = np.argsort(-estimate.value, kind="stable")[:most]
        return tuple((self.categories[place], float(estimate.value[place])) for place in order)

    def _bins_of(self, values: object) -> NDArray[np.intp]:
        places: dict[object, int] = {category: i for i, category in enumerate(self.categories)}
        found: list[int] = []
        for label in labels(values):
            try:
                place = places.get(label)
            except TypeError:  # a list or another unhashable thing is no category
                continue
            if place is not None:
                found.append(place)
        return np.array(found, dtype=np.intp)
