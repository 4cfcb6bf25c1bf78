"""Keys of secure sums: who may be lost or collude, and how values travel."""

from __future__ import annotations

from typing import Any

from fl_dp.plan.distributed_noise import SecureSum

from .checks import AbsolutePath
from .option import KeyRule, Option, key, made_by, option


def has_roster(*, roster: AbsolutePath | None = None) -> bool:
    """Return whether nodes know each other's identities.

    Args:
        roster: Absolute file with all nodes' identities, as in `dp-secagg-roster`. None: the
            promise needs a server that follows the protocol.
    """
    return roster is not None


class SecureSumOption(Option):
    """Secure sums of `privacy=distributed`; null means what suits the number of nodes."""

    def make(self, **given: Any) -> SecureSum:
        """Return the options in the form that a plan takes."""
        made: SecureSum = self.make_by(SecureSum, roster=self.make_by(has_roster), **given)
        return made


def _secure_sum(reply_after: KeyRule) -> type[SecureSumOption]:
    made = made_by(
        SecureSum,
        least=key(),
        colluding=key(),
        committee=key(),
        threshold=key(),
        degree=key(),
        bits=key(),
        element_cap=key(),
        cross_check=key(),
        reply_after=reply_after,
        max_parameters=key(),
    )
    roster = made_by(has_roster, roster=key(tracked=False))
    base = SecureSumOption
    return option("privacy.secure_sum", "", made, roster, base=base, checked_by={})


OF_CLIENTS = _secure_sum(key(tracked=False))
OF_RECORDS = _secure_sum(key(default=10.0, tracked=False))  # required for coins at the nodes
