"""The common part of queries: parameters, a bounded contribution, estimates from a noisy sum.

A query is plain data, sent to the clients (`encode_text`). `contribution` runs on a client and
sees its records; `estimates` runs on the server and sees only the noisy sum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_dp.documents import real_number
from fl_dp.option_errors import OptionError

_MOST_RECORDS = 2**53


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Private numbers with their errors.

    Attributes:
        value: Float64; 0-d for a single number.
        error: Error scale of each number, float64, same shape.
        note: A remark; mostly empty.
    """

    value: NDArray[np.float64]
    error: NDArray[np.float64]
    error_is: str = "standard deviation of the noise"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Query(ABC):
    """A question to a federation; every client answers with one vector of bounded norm.

    Privacy: the unit is one client with all its records. Neighbours differ in one client of a
    public roster whose contribution becomes zero (zero-out). That moves the sum of contributions
    by at most `l1_sensitivity` in L1 and `l2_sensitivity` in L2. The server sees contributions in
    the clear; the guarantee is against those who see its releases.

    Attributes:
        max_records: A client with more records counts as this many average ones of its own: no
            client weighs more. With 1, every client with data weighs the same.
    """

    kind: ClassVar[str]
    max_records: int = 1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: `max_records` is not a whole number from 1 to 2^53.
        """
        most: object = self.max_records  # it may have come from a message
        if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
            raise OptionError(
                f"max_records must be a whole number of at least 1, got {most!r}",
                option="max_records",
            )
        if most > _MOST_RECORDS:
            raise OptionError(
                f"max_records must be at most {_MOST_RECORDS}, got {most}", option="max_records"
            )
        object.__setattr__(self, "max_records", int(most))

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Length of a contribution."""

    @property
    @abstractmethod
    def l1_sensitivity(self) -> float:
        """Bound on a contribution's L1 norm."""

    @property
    @abstractmethod
    def l2_sensitivity(self) -> float:
        """Bound on a contribution's L2 norm."""

    @abstractmethod
    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        """The sum over one client's usable records, and their number."""

    def contribution(self, values: object) -> NDArray[np.float64]:
        """A client's contribution, computed on its own records.

        Args:
            values: The records, an array or a list. Numbers out of range, also infinite ones,
                count as the nearest in range. Records with a NaN do not count; none does if
                `values` has a wrong shape or no numbers.

        Returns:
            Float64, shape `(dimension,)`, zero without a record. Its norms are within the
            sensitivities up to rounding; the server clips once more.
        """
        total, count = self._total(values)
        if count > self.max_records:
            total = total * self.max_records / count
        return total


@dataclass(frozen=True, kw_only=True)
class SumQuery(Query):
    """A query answered from the noisy sum of all contributions."""

    @abstractmethod
    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """Compute the answer from a noisy sum: post-processing, at no cost in privacy.

        Args:
            total: The released sum, float64, shape `(dimension,)`.
            noise_std: Standard deviation of the noise on each coordinate.

        Returns:
            Estimates by name; the first is the main answer.
        """


@dataclass(frozen=True, kw_only=True)
class CountingQuery(SumQuery):
    """Counts records: each adds one to one number, so both norms are the cap."""

    @property
    def l1_sensitivity(self) -> float:
        """All records of a client together."""
        return float(self.max_records)

    @property
    def l2_sensitivity(self) -> float:
        """All records of a client in one number."""
        return float(self.max_records)


def as_tuple(name: str, values: object) -> tuple[Any, ...]:
    """A field as a tuple, from any sequence: it may have come from a message.

    Raises:
        ValueError: It is no sequence, or a text.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list, got {values!r}")
    return tuple(values)


def as_numbers(name: str, values: object) -> tuple[float, ...]:
    """A field as a tuple of finite numbers, from any sequence.

    Raises:
        ValueError: It is anything else, or empty.
    """
    numbers: list[float] = []
    for index, value in enumerate(as_tuple(name, values)):
        number = real_number(value)
        if not math.isfinite(number):
            raise ValueError(f"{name}[{index}] must be a finite number, got {value!r}")
        numbers.append(number)
    if not numbers:
        raise OptionError(f"{name} is empty: give at least one number", option=name)
    return tuple(numbers)


def require_increasing(name: str, numbers: tuple[float, ...], *, at_least: int) -> None:
    """Refuse too few numbers, numbers not strictly increasing, or a span beyond float64.

    Raises:
        ValueError: They are so.
    """
    if len(numbers) < at_least:
        raise OptionError(
            f"{name} needs at least {at_least} numbers, got {len(numbers)}", option=name
        )
    for before, after in pairwise(numbers):
        if not before < after:
            raise OptionError(
                f"{name} must be strictly increasing, got {before} before {after}", option=name
            )
    if not math.isfinite(numbers[-1] - numbers[0]):
        raise ValueError(f"{name} spans more than float64 holds: {numbers[0]} to {numbers[-1]}")
