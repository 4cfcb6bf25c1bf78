"""Keys of noise with memory: how far a client's rounds lie apart, and how far a draw reaches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fl_dp.option_errors import IncompatibleOptions, OptionError

from .checks import Several
from .selections import SelectionOption, cohort

if TYPE_CHECKING:
    from fl_dp.plan import Banded

_MOST_MEMORY = 1 << 30  # bytes of earlier rounds' noise, unless privacy.bands says more


def rounds_apart(
    selection: SelectionOption,
    rounds: int,
    num_clients: int,
    *,
    separation: Several | None = None,
    groups: Several | None = None,
) -> dict[str, int]:
    """Return what keeps a client's rounds apart: `separation`, or `groups` that take turns.

    Args:
        selection: Who takes part.
        rounds: Number of planned rounds.
        num_clients: Number of clients of the roster.
        separation: With `selection=public`, least distance in rounds between two participations of
            a client; None is the largest that the roster allows.
        groups: With `selection=poisson` or `truncated_poisson`, number of public groups that take
            turns; required.

    Raises:
        ValueError: A key belongs to the other one, or there is no number of groups.
    """
    rate = selection.sampling_rate
    if selection.option == "public":
        if groups is not None:
            raise IncompatibleOptions(
                f"privacy.groups={groups} is for secret coins inside groups: write "
                "selection=poisson, or with selection=public how long clients rest, "
                "privacy.separation=...",
                option="privacy.groups",
            )
        usual = min(rounds, max(1, num_clients // cohort(rate, num_clients)))
        return {"separation": separation or usual}
    if separation is not None:
        raise IncompatibleOptions(
            f"privacy.separation={separation} is for cohorts that everybody sees: write "
            f"selection=public, or with selection={selection} the number of groups that take "
            "turns, privacy.groups=...",
            option="privacy.separation",
        )
    if groups is None:
        example = max(2, min(8, math.floor(1.0 / rate + 1e-9), rounds))
        raise OptionError(
            f"privacy=correlated with selection={selection} needs the number of groups that take "
            f"turns: write privacy.groups={example}, or selection=public, where clients rest "
            "between their rounds",
            option="privacy.groups",
        )
    return {"groups": groups}


def banded(
    rounds: int,
    apart: int,
    momentum: float,
    num_parameters: Callable[[], int],
    *,
    bands: Several | None = None,
) -> Banded:
    """Return the noise's correlation.

    Args:
        rounds: Number of planned rounds.
        apart: Distance of a client's rounds.
        momentum: Momentum of the server's optimizer.
        num_parameters: Counts the model's parameters, which it has to build.
        bands: Rounds that one draw of noise reaches; the server keeps one vector less. None: the
            distance of a client's rounds, or what fits into 1 GiB.
    """
    from fl_dp.accounting.banded import MOST_BANDS
    from fl_dp.plan import Banded

    if bands is None:
        bands = min(apart, MOST_BANDS, 1 + _MOST_MEMORY // (8 * num_parameters()))
    return Banded.optimal(rounds=rounds, bands=bands, momentum=momentum)
