"""Models that no training can use: refused before anybody is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fl_dp.accounting.shared_noise import sampler_slack
from fl_dp.machine import free_memory
from fl_dp.plan import Plan
from fl_dp.updates import VectorLayout
from fl_dp.updates.arrays import read
from fl_dp.updates.batch_norm import running_statistics

LAST_DIGIT = 1e-4
"""Unit of the last digit of a quoted epsilon."""

# Of a round at its peak, the model itself left out: sum, update, noise, release and the model in
# float64, one reply. Measured (benchmarks/large_model.py).
_BYTES_A_PARAMETER = 44


def float64_error_of(plan: Plan, layout: VectorLayout) -> str | None:
    """A warning if so much noise is drawn that float64 shows in the quoted epsilon.

    Else None; also under secure sums, whose plans reserve a part of their budget.
    """
    error = 2.0 * sampler_slack(plan.charged_rounds * layout.size)
    if plan.slack or error < LAST_DIGIT:
        return None
    return (
        f"{plan.charged_rounds} rounds of {layout.size} coordinates are so many draws of noise "
        f"that float64 may add {error:.2g} to epsilon, which no quoted epsilon counts: add it"
    )


class UnfitModel(ValueError):
    """A model that is not finite, has arrays that noise ruins silently, or exceeds the memory."""


def require_memory(model: ArrayRecord) -> None:
    """Check that there is something to train, and memory for it at the server.

    Raises:
        UnfitModel: If not: the process would end in the middle of a round.
    """
    size = VectorLayout.of(model).size
    if not size:
        raise UnfitModel(
            "the model's floating-point arrays are all empty: there is no number to train"
        )
    needed, free = _BYTES_A_PARAMETER * size, free_memory()
    if free is not None and needed > free:
        raise UnfitModel(
            f"a round of this model takes {needed / 2**30:.3g} GiB at the server, and "
            f"{free / 2**30:.3g} GiB are free; nobody was asked: train a part of the model "
            "(adapters, for instance), or let the server have more memory"
        )


def require_finite(model: ArrayRecord) -> None:
    """Check that what is released of a model is finite: else no update to it is.

    Raises:
        UnfitModel: If a value is NaN or infinite; nobody was asked.
    """
    for name, array in model.items():
        _, values = read(array)
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            raise UnfitModel(
                f"'{name}' of the first model holds a value that is NaN or infinite, so no update "
                "to it is finite: start from finite weights (initial_arrays); nobody was asked"
            )


def require_no_tied_rest(model: ArrayRecord, released: ArrayRecord) -> None:
    """Check that no array that stays has the numbers of one that is trained.

    A `state_dict` has a tied tensor under two names. Of these one is trained, and a client that
    loads both would begin each round with the other one's first numbers.

    Raises:
        UnfitModel: One has; nobody was asked.
    """
    numbers = {name: read(array)[1] for name, array in released.items()}
    for name in model.keys() - released.keys():
        rest = read(model[name])[1]
        for trained, values in numbers.items():
            if _are_same(rest, values):
                raise UnfitModel(
                    f"'{name}' of the first model has the numbers of '{trained}', which is trained "
                    "and it is not: if they are one tensor, clients would read the first numbers "
                    "again in each round. Send what is trained alone, by "
                    "fl_dp.clients.exchanged_arrays(module); nobody was asked"
                )


def _are_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays have equal numbers, and not one number alone, as scales and zeros have."""
    if one.shape != other.shape or not np.array_equal(one.flat[:16], other.flat[:16]):
        return False  # most end here, before all of a large model is read
    return np.array_equal(one, other) and bool((one != one.flat[:1]).any())


def require_no_running_statistics(model: ArrayRecord) -> None:
    """Check that a model has no running statistics: noise ruins them without an error.

    Raises:
        UnfitModel: If it has, with the ways out.
    """
    names = running_statistics(model)
    if names:
        raise UnfitModel(
            f"'{names[0]}' holds running statistics of a BatchNorm ({len(names)} such arrays): "
            "noise on averages ruins the model. Put GroupNorm in its place "
            "(fl_dp.clients.private_module does), or name the arrays that are trained, as in "
            "trained=fl_dp.clients.trained_names(module): all others stay as they are"
        )
