"""Words and figures that statements share."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal

from fl_dp.accounting import NeighboringRelation, PoissonGaussianEvent, PrivacyEvent
from fl_dp.accounting.events import (
    FixedSizeGaussianEvent,
    RandomStoppingEvent,
    TruncatedPoissonGaussianEvent,
)
from fl_dp.accounting.second_figure import TOLERANCE, SecondFigure
from fl_dp.mechanisms.events import ExponentialEvent, GaussianEvent, LaplaceEvent, ZcdpEvent

ACCOUNTANTS = {
    "pld": "privacy-loss distributions",
    "rdp": "Renyi DP",
    "gdp": "Gaussian DP, exact without sampling",
    "zcdp": "zero-concentrated DP",
    "gumbel": "privacy-loss distributions of all noisy scores",
    "filter": "what the gate before each release guarantees",
    "naive": "basic composition, for comparison",
}

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "a client is in the population or it is not",
    NeighboringRelation.ZERO_OUT: (
        "a client of the public roster contributes, or contributes zero throughout"
    ),
    NeighboringRelation.REPLACE_ONE: "a client's data is replaced by any other data",
}
_RELATIONS_OF_RECORDS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "a client has a record or does not",
    NeighboringRelation.ZERO_OUT: "a record contributes, or contributes zero throughout",
    NeighboringRelation.REPLACE_ONE: "one record of a client is replaced by any other",
}
UNITS = {
    "client": "one client's whole contribution over the whole training",
    "record": "one record of one client, over the whole training",
}


def neighbours_in_words(unit: str, relation: NeighboringRelation) -> str:
    """Return which data are neighbours.

    Args:
        unit: What is protected, in words.
        relation: How neighbours differ.
    """
    if unit == UNITS["record"]:
        return _RELATIONS_OF_RECORDS[relation]
    return _RELATIONS[relation]


def describe_event(event: PrivacyEvent) -> str:
    """Return one line that tells a person what was released."""
    match event:
        case GaussianEvent(noise_multiplier=z):
            return f"Gaussian, noise multiplier {z:.5g}"
        case PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate):
            return f"Gaussian, noise multiplier {z:.5g}, Poisson sample at rate {rate:g}"
        case TruncatedPoissonGaussianEvent():
            return (
                f"Gaussian, noise multiplier {event.noise_multiplier:.5g}, Poisson sample at rate "
                f"{event.sampling_rate:g} of {event.num_units}, cut at {event.max_cohort}"
            )
        case FixedSizeGaussianEvent():
            return (
                f"Gaussian, noise multiplier {event.noise_multiplier:.5g}, {event.cohort} of "
                f"{event.num_units} units"
            )
        case LaplaceEvent(noise_multiplier=scale):
            return f"Laplace, scale {scale:.5g} of the L1 sensitivity"
        case ExponentialEvent(epsilon=epsilon, draws=draws):
            return f"exponential mechanism, {draws} drawn at bounded range {epsilon:.5g}"
        case ZcdpEvent(rho=rho):
            return f"{rho:.5g}-zCDP"
        case RandomStoppingEvent(releases=releases, mean_runs=mean, shape=shape):
            run = ", ".join(f"{count} x {describe_event(one)}" for one, count in releases)
            return (
                f"the best of a secret random number of trainings, {mean:g} expected (truncated "
                f"negative binomial of shape {shape:g}), each of {run}"
            )


def second_figure_in_words(second: SecondFigure) -> str:
    """Return what a page says of the figure that dp-accounting computed, in whole sentences."""
    if second.epsilon is None or second.ours is None:
        return f"There is no second figure of dp-accounting: {second.how}."
    text = (
        f"dp-accounting computes epsilon {rounded_up(second.epsilon)} for the same releases "
        f"({second.how}), beside our {rounded_up(second.ours)}: "
    )
    if second.above_ours:
        text += f"{100.0 * second.difference:.1f} % MORE, which discretisation does not explain."
    elif second.difference < -TOLERANCE:
        text += f"ours is the more cautious one, by {-100.0 * second.difference:.1f} % of it."
    else:
        text += f"they agree within {100.0 * TOLERANCE:g} %."
    return f"{text} Both believe that each release is charged as the right event."


def warnings_of(second: SecondFigure) -> list[str]:
    """Return what the statement has to leave out because of a second figure: none if it agrees."""
    if not second.above_ours or second.epsilon is None:
        return []
    return [
        "THE NUMBER ITSELF: dp-accounting computes more for the same releases. Go by epsilon "
        f"{rounded_up(second.epsilon)} until the difference is explained"
    ]


def rounded_up(epsilon: float) -> str:
    """Write an upper bound so that what is printed is one too, to four decimals."""
    # Through the shortest decimal that is this float: formatting would round to nearest.
    if epsilon >= 1e6:
        return ceiling(epsilon, 4)
    return str(Decimal(repr(float(epsilon))).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def ceiling(number: float, digits: int) -> str:
    """Write a number rounded up to `digits` significant digits."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(number)))
    return f"{float(rounded):.{digits}g}"
