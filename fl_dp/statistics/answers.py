"""The server's part: charge, bound contributions, sum them, add noise once, compute the answer.

>>> [ledger.reserve_release("ages", event) for event in choice.events]  # on disk first
>>> answer = release_statistic(choice, contributions, SecureRandom())
>>> answer["mean"].value, answer["mean"].error
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting.events import PrivacyEvent, event_to_dict
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import ExponentialMechanism, SecureRandom

from .noise_law import NoiseChoice, draw_error
from .quantiles import Quantiles
from .query import Estimate, SumQuery
from .values import vector
from .votes import Vote

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A released answer, with its price.

    Attributes:
        estimates: Private numbers by name; the first is the main answer.
        events: Events that this release is charged as.
        explanation: Its noise, and other remarks for readers.
    """

    estimates: Mapping[str, Estimate]
    events: tuple[PrivacyEvent, ...]
    explanation: str

    @property
    def value(self) -> NDArray[np.float64]:
        """The answer, float64; a 0-d array for a count."""
        return next(iter(self.estimates.values())).value

    @property
    def error(self) -> NDArray[np.float64]:
        """Its error scale, same shape; its estimate says what that is."""
        return next(iter(self.estimates.values())).error

    def __getitem__(self, name: str) -> Estimate:
        """One of the estimates, `answer["std"]`."""
        return self.estimates[name]

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain JSON values."""
        estimates: dict[str, Any] = {}
        for name, estimate in self.estimates.items():
            estimates[name] = {
                "value": estimate.value.tolist(),
                "error": estimate.error.tolist(),
                "error_is": estimate.error_is,
                "note": estimate.note,
            }
        return {
            "estimates": estimates,
            "events": [event_to_dict(event) for event in self.events],
            "explanation": self.explanation,
        }


def release_statistic(
    choice: NoiseChoice, contributions: Iterable[object], rng: SecureRandom
) -> Answer:
    """Answer a query privately, once.

    Privacy: `choice.events`, for one client with all its records, zero-out neighbours, against
    anyone who sees the answer. Reserve them in the ledger *before* this call: each time adds fresh
    noise and is charged. A client that did not reply contributed zero, and the number of replies
    stays private.

    `contributions` are at most one vector per client, from `Query.contribution`. They are bounded
    once more: too long ones are clipped; one that is not finite or has another shape counts as
    zero.

    Raises:
        ValueError: There are more contributions than can be summed exactly.
    """
    query, mechanism = choice.query, choice.summed_by
    total = _total(choice, contributions)
    if isinstance(mechanism, Quantiles):
        estimates = _draw_quantiles(mechanism, choice, total, rng)
    elif isinstance(mechanism, Vote):
        estimates = _draw_winner(mechanism, choice, total, rng)
    else:
        assert isinstance(query, SumQuery)  # as the choice has checked
        released = mechanism.release(total, mechanism.noise(total.size, rng))
        estimates = query.estimates(released, mechanism.noise_std)
    notes = dict.fromkeys(estimate.note for estimate in estimates.values() if estimate.note)
    return Answer(
        estimates=estimates,
        events=choice.events,
        explanation="; ".join([choice.explanation, *notes]),
    )


def _draw_quantiles(
    query: Quantiles, choice: NoiseChoice, total: NDArray[np.float64], rng: SecureRandom
) -> dict[str, Estimate]:
    drawn: list[float] = []
    errors: list[float] = []
    for probability, mechanism in zip(query.probabilities, choice.mechanisms, strict=True):
        assert isinstance(mechanism, ExponentialMechanism)  # as above
        index = mechanism.select(query.utilities(total, probability), rng)
        drawn.append(query.grid[index])
        errors.append(draw_error(query.dimension, mechanism))
    # Independent draws may cross; sorted, none is further off than the worst of them was.
    return {
        "quantiles": Estimate(
            value=np.sort(np.array(drawn)),
            error=np.array(errors),
            error_is="rank error in clients, not exceeded with probability 0.95",
        )
    }


def _draw_winner(
    query: Vote, choice: NoiseChoice, total: NDArray[np.float64], rng: SecureRandom
) -> dict[str, Estimate]:
    (mechanism,) = choice.mechanisms
    assert isinstance(mechanism, ExponentialMechanism)  # as the choice has checked
    winner = mechanism.select(query.utilities(total), rng)
    return {
        "winner": Estimate(
            value=np.asarray(float(winner)),
            error=np.asarray(draw_error(query.candidates, mechanism)),
            error_is="votes that it is short of the best, not exceeded with probability 0.95",
        )
    }


def _total(choice: NoiseChoice, contributions: Iterable[object]) -> NDArray[np.float64]:
    """Sum encoded contributions exactly.

    Raises:
        ValueError: There are more than `choice.max_units`.
    """
    dimension, encode = choice.query.dimension, choice.summed_by.encode
    most = choice.max_units
    total = np.zeros(dimension)  # float64 holds every integer to 2^53, so the sum is exact
    for count, contribution in enumerate(contributions, start=1):
        if count > most:
            raise ValueError(
                f"at this noise at most {most} contributions can be summed exactly: "
                "choose a smaller epsilon, or ask a smaller roster"
            )
        total += encode(vector(contribution, dimension))
    return total


def charged_release(
    ledger: PrivacyLedger,
    name: str,
    choice: NoiseChoice,
    contributions: Iterable[object],
    rng: SecureRandom,
) -> Answer:
    """Reserve the events of `choice`, answer the query, and commit; see `release_statistic`.

    A plan that lists the events among its `other_releases` has reserved a part of its budget. The
    ledger must be opened to spend from; `name` labels its entries, for instance `feature means`.

    Raises:
        PrivacyBudgetExhausted: It would exceed the budget. Nothing was released; of several
            events, those reserved before the one that did not fit stay spent.
        ValueError: The noise is insecure and the ledger does not know of it.
    """
    ledger.require_known(rng)
    if (warning := Guarantee.of(ledger.plan).warning) is not None:
        logger.warning(warning)
    reserved = [ledger.reserve_release(name, event) for event in choice.events]
    answer = release_statistic(choice, contributions, rng)
    for reservation in reserved:
        ledger.commit(reservation)
    return answer
