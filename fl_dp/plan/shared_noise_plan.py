"""Common part of the kinds in which each node adds a share of noise, under masks."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    PoissonSampling,
    PrivacyBudget,
    VisibleSampling,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.shared_noise import usual_colluding
from fl_dp.guarantee import Against
from fl_dp.mechanisms.noise_share import MOST_UNITS
from fl_dp.option_errors import IncompatibleOptions, OptionError

from .distributed_noise import DistributedNoise, SecureSum
from .plan_base import ANOTHER_APP, Plan
from .shared_bundle import SharedBundle

if TYPE_CHECKING:
    from fl_dp.accounting.filters import PrivacyFilter

_CONSTANT = NoiseSchedule()
_ONCE_LATE = (
    "that the work of a node with several clients, or of records, failed or was late, or that work "
    "ended the process of any node, once a Flower run: it sends nothing from then on, be it for "
    "one client or record, for a slow machine or for a restart of the node"
)


@dataclass(frozen=True, kw_only=True)
class SharedNoisePlan(Plan):
    """Noise in shares, one per node, on a sum that a committee of nodes opens.

    Fields: see `SecureSum`, `NoiseSchedule` and `Plan`.
    """

    noise_location: ClassVar[str] = "in shares at the nodes"
    trusts_server: ClassVar[bool] = False
    masked: ClassVar[bool] = True

    secure_sum: SecureSum
    schedule: NoiseSchedule = _CONSTANT

    @property
    @abstractmethod
    def sampling(self) -> PoissonSampling | VisibleSampling:
        """Law of each cohort."""

    @cached_property
    def noise(self) -> DistributedNoise:
        """The shares of noise in a sum, and their error."""
        sampling, hosting, units, terms = self.sampling, self.hosting, self.num_units, self._terms
        if sampling.visible:
            units = round(self.expected_cohort)
        return DistributedNoise(
            nodes=hosting.nodes_of(units),
            units_in_sum=hosting.most_drawn(sampling),
            sums=self.rounds + sum(count for _, count in self.other_releases),
            secure_sum=terms,
        )

    @property
    def _terms(self) -> SecureSum:
        """The options, with as many colluding nodes as a cohort may have."""
        terms, sampling = self.secure_sum, self.sampling
        if self.is_draft:
            terms = terms.with_most_bits()  # how many are enough depends on the multiplier
        chosen = not isinstance(sampling, PoissonSampling)
        if not (chosen and terms.roster and terms.colluding is None):
            return terms
        # A server that lies chooses the cohort, and all colluding nodes may be in it.
        usual = usual_colluding(self.hosting.nodes_of(self.num_units))
        cohort = round(self.expected_cohort)
        if cohort < usual + 2:
            raise OptionError(
                f"of {self.num_clients} nodes {usual} may collude, and a server that lies would "
                f"put them all into one cohort: take cohorts of at least {usual + 2}, got "
                f"{cohort}, or write secure_sum.colluding=...",
                option="secure_sum.colluding",
            )
        return replace(terms, colluding=usual)

    @property
    def roster_can_grow(self) -> bool:
        """False: noise in shares is planned for the declared nodes."""
        return False

    @property
    def slack(self) -> float:
        """Lambda, of draws in float64; see `Plan.slack`."""
        return self.noise.slack

    @property
    def event_budget(self) -> PrivacyBudget:
        """The part of the budget for the Gaussians that sums are charged as."""
        return self.noise.event_budget(self.budget)

    @property
    def against(self) -> Against:
        """The server: with a roster even one that lies."""
        return Against.LYING_SERVER if self.secure_sum.roster else Against.HONEST_SERVER

    @property
    def adversary(self) -> str:
        """The server and colluding nodes."""
        shares = self.noise.shares
        server = "the server, which may lie about models, cohorts and drop-outs"
        if not self.secure_sum.roster:
            server = "the server, which follows the protocol"
        return (
            f"is {server}, with {shares.colluding} of {shares.cohort} nodes: sees every message, "
            "knows all other data and opens only sums"
        )

    @property
    def trusted(self) -> str:
        """Each node's own software, and enough nodes of a sum."""
        units = ""
        if self.hosting.of_records:
            units = ", with its records and their coins,"
        elif self.hosting.max_units > 1:
            units = ", with the updates of its units,"
        return self._trusted(f"each node's own software{units}")

    def trusted_behind_gates(self) -> str:
        """Each site's own gate, and enough nodes of a sum."""
        return self._trusted("each site's own gate")

    def _trusted(self, software: str) -> str:
        roster = ""
        if self.secure_sum.roster:
            roster = " and the roster of nodes that their owners agreed on"
        return (
            f"{software} to clip and to add its share of noise; at least "
            f"{self.noise.honest_shares} nodes of a sum not to collude{roster}"
        )

    @property
    def mechanism(self) -> str:
        """The clipping and the noise of each node."""
        shares = self.noise.shares
        least = shares.guaranteed if self.secure_sum.roster else shares.least
        return (
            f"discrete Gaussian in shares, one a node, on the masked sum of clipped updates; "
            f"any opened sum has at least {least} nodes and {self.noise.honest_shares} shares of "
            "noise that nobody else knows"
        )

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What no secure sum covers."""
        sentences: tuple[str, ...] = (
            "norms and honesty of malicious clients: each can spoil a sum, and none learns more",
            "a sum that always opens: nodes that stay away, or lie, make it fail, and it stays "
            "charged",
            "who takes part, when it answers and how long it trains",
            _ONCE_LATE,
            ANOTHER_APP,
        )
        if self.secure_sum.roster:
            return sentences
        return (
            "a server that invents nodes, swaps keys or tells members different repliers: nodes "
            "have no roster of identities (`roster` of the secure sum)",
            *sentences,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with lambda.

        A recomputation of epsilon without this package needs it.
        """
        return super().to_dict() | {"slack": self.slack}

    def gate(self, budget: PrivacyBudget, history: FrozenHistory) -> PrivacyFilter:
        """Return the gate for the declared releases, and at most the accounted sums."""
        from fl_dp.accounting.filters import DeclaredFilter

        return DeclaredFilter(
            self.noise.event_budget(budget),
            history,
            neighboring_relation=self.neighboring_relation,
            most=self.noise.releases,
        )

    def noise_of_mean(self, noise_multiplier: float) -> float:
        """Return the noise of all shares, not only of the charged ones."""
        ratio = self.noise.shares.cohort / self.noise.honest_shares
        return super().noise_of_mean(noise_multiplier) * math.sqrt(ratio)

    def shared_bundle(
        self,
        noise_multiplier: float,
        *,
        size: int,
        clipping_norms: tuple[float, ...] | None = None,
    ) -> SharedBundle:
        """Return a round's sums under a secure sum, with their noise; see `Plan.bundle`.

        Raises:
            ValueError: See `DistributedNoise.shared_bundle`.
        """
        bundle = self.bundle(noise_multiplier, clipping_norms=clipping_norms)
        return self.noise.shared_bundle(bundle, size)

    def check(self) -> None:
        """Refuse options that would reveal secrets under a secure sum."""
        if self.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
            raise IncompatibleOptions(
                "a unit that is alone at its node takes its share of the noise with it: write "
                "neighboring_relation=zero-out",
                option="neighboring_relation",
            )
        sampled = not self.sampling.visible
        if sampled and not self.hosting.coins_at_nodes:
            raise IncompatibleOptions(
                "a cohort that only the server knows is no secret under a secure sum, whose noise "
                "is one share a member, and many coordinates of it tell how many there were: "
                "write coins_at_nodes=True or sampling_rate=1, or draw visible cohorts by a public "
                f"selection, got {self.sampling}",
                option="coins_at_nodes",
            )
        if sampled and self.secure_sum.reply_after is None:
            raise IncompatibleOptions(
                "a node whose coins drew nobody answers sooner, which shows its coins: write "
                "secure_sum.reply_after=..., in seconds, or sampling_rate=1",
                option="secure_sum.reply_after",
            )
        if (hosted := self.hosting.max_units) > MOST_UNITS:
            raise OptionError(
                f"a node of a secure sum adds up at most {MOST_UNITS} units as exactly as they are "
                f"charged, and may have {self.hosting.limit}={hosted}: spread them over more "
                f"nodes, and write {self.hosting.limit}={MOST_UNITS} or less",
                option=self.hosting.limit,
            )
        _ = self.noise  # checks itself

    def check_noise(self) -> None:
        """Refuse too few bits for the least noise."""
        super().check_noise()
        self.noise.check(
            self.bundle(self.noise_multiplier),
            units_in_sum=self.hosting.most_drawn(self.sampling),
            sums=self.rounds + sum(count for _, count in self.other_releases),
            num_clients=self.num_units,
        )
