"""A statistic under a ledger: on disk as spent first, then released, then committed."""

from __future__ import annotations

from collections.abc import Iterable

from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import SecureRandom

from .noise_choice import NoiseChoice
from .release import Answer, release_statistic


def charged_release(
    ledger: PrivacyLedger,
    what: str,
    choice: NoiseChoice,
    contributions: Iterable[object],
    rng: SecureRandom,
) -> Answer:
    """Reserve all events of `choice`, answer the query, and commit.

    A plan that lists the events among its `other_releases` has put budget aside for them.

    Args:
        ledger: Opened to spend from.
        what: A name for the entries, for instance `feature means`.
        choice: The query and its noise.
        contributions: One vector a client, from `query.contribution`.
        rng: Where the noise comes from.

    Raises:
        PrivacyBudgetExhausted: If it would exceed the budget. Nothing was released; of several
            events, those that were reserved before the one that did not fit stay spent.
        ValueError: If the noise is insecure and the ledger does not know of it.
    """
    ledger.require_known(rng)
    reserved = [ledger.reserve_release(what, event) for event in choice.events]
    answer = release_statistic(choice, contributions, rng)
    for reservation in reserved:
        ledger.commit(reservation)
    return answer
