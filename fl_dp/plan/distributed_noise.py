"""Noise in shares under a secure sum: no party alone knows an update or the noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from typing import Self

from fl_dp.accounting import (
    PoissonGaussianEvent,
    PrivacyBudget,
    PrivacyEvent,
    SharedNoise,
)
from fl_dp.accounting.shared_noise import shared_noise_slack, usual_colluding, within_slack
from fl_dp.arguments import Arguments
from fl_dp.mechanisms import GaussianBundle, GaussianMechanism
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import OptionError, require_count, require_positive
from fl_dp.secagg.terms import require_time

from .hosting import Hosting
from .shared_bundle import MOST_BITS, SharedBundle, WordSize

_LARGEST_SLACK = 1e-2
_ATTEMPTS = 2  # of each sum: what failed ones may repeat, counted beforehand
_MOST_EVERYBODY = 64  # clients up to which each one is everybody's neighbour


@dataclass(frozen=True, kw_only=True)
class SecureSum(Arguments):
    """Options of a training's secure sums; None stands for the default.

    Attributes:
        least: Fewest nodes whose replies open a sum; None is 90 % of the nodes.
        colluding: Nodes that may tell the server what they added: of a sum, or with a roster of all
            nodes. None: 1 up to 10 nodes, 2 up to 20, 5 up to 200, else 10.
        committee: Members that hold shares of every client's seeds; None is all nodes up to 20,
            else 40, and 60 from 500 on.
        threshold: Members that open a sum together; None is 80 % of the committee, or more where
            many may collude.
        degree: Neighbours that a client shares masks with, even. None: all up to 64 nodes, 20 up to
            200, else 40; twice as many if over 10 % may drop out.
        bits: Bits of each summed coordinate; None is 16, or 20 where needed. With too few, sums are
            rotated and cut.
        element_cap: Largest entry of one node's sum, in clipping norms. None: what its clients can
            reach, or a quarter to save bits.
        cross_check: Members first agree on who replied, in one more exchange; then a lying server
            opens no sum below `least`.
        roster: Whether nodes know each other's identities from a file, which the promise against a
            lying server needs.
        reply_after: Seconds after which every node answers, at least 4, so that time shows no coin.
            Required where nodes flip coins; None: as soon as ready.
        max_parameters: Most parameters of a model: the accounting's own error is computed for them.
    """

    least: int | None = None
    colluding: int | None = None
    committee: int | None = None
    threshold: int | None = None
    degree: int | None = None
    bits: int | None = None
    element_cap: float | None = None
    cross_check: bool = False
    roster: bool = False
    reply_after: float | None = None
    max_parameters: int = 10_000_000

    def __post_init__(self) -> None:
        """Validate what does not depend on the number of nodes.

        Raises:
            ValueError: A number is out of range.
        """
        super().__post_init__()
        require_count(**{"secure_sum.max_parameters": self.max_parameters})
        for name in ("least", "committee", "threshold"):
            if (count := getattr(self, name)) is not None:
                require_count(**{f"secure_sum.{name}": count})
        if self.colluding is not None and self.colluding < 0:
            raise OptionError(
                f"secure_sum.colluding must be at least 0, got {self.colluding}",
                option="secure_sum.colluding",
            )
        if self.bits is not None and not 4 <= self.bits <= 32:
            raise OptionError(
                f"secure_sum.bits must lie in [4, 32], got {self.bits}: 16 suit most federations",
                option="secure_sum.bits",
            )
        if self.degree is not None and (self.degree < 2 or self.degree % 2):
            raise OptionError(
                f"secure_sum.degree must be even and at least 2, got {self.degree}",
                option="secure_sum.degree",
            )
        if self.element_cap is not None:
            require_positive(**{"secure_sum.element_cap": self.element_cap})
        if self.reply_after is not None:
            require_positive(**{"secure_sum.reply_after": self.reply_after})

    def with_most_bits(self) -> Self:
        """Return the options with words that hold any sum: no accounting depends on them."""
        return replace(self, bits=32)

    def noise(self, nodes: int) -> SharedNoise:
        """Return the shares and the committee of a sum of `nodes` nodes.

        Raises:
            ValueError: A number is out of range, or a client would not be hidden.
        """
        if nodes < 3:
            raise ValueError(
                f"a secure sum needs at least 3 nodes, got {nodes}: with two, each can take its "
                "own values off and see the other's"
            )
        colluding = self.colluding
        if colluding is None:
            colluding = usual_colluding(nodes)
        committee = self.committee
        if committee is None:
            usual = next(size for most, size in _COMMITTEE if nodes <= most)
            committee = min(usual, nodes)
        if committee > nodes:
            raise OptionError(
                f"secure_sum.committee = {committee} members are more than the {nodes} "
                "nodes: write at most as many",
                option="secure_sum.committee",
            )
        never_both = (committee + min(colluding, committee)) // 2 + 1
        return SharedNoise(
            cohort=nodes,
            least=self._least_of(nodes),
            colluding=colluding,
            committee=committee,
            threshold=self.threshold or max(never_both, -(-4 * committee // 5)),
            cross_check=self.cross_check,
        )

    def neighbours(self, nodes: int) -> int:
        """Return how many neighbours, of `nodes` nodes, a client shares masks with."""
        if self.degree is not None:
            return self.degree
        if nodes <= _MOST_EVERYBODY:
            return nodes + nodes % 2  # even, and at least everybody else
        usual = 20 if nodes <= 200 else 40
        return usual if 10 * self._least_of(nodes) >= 9 * nodes else 2 * usual

    def _least_of(self, nodes: int) -> int:
        """Return the fewest repliers, in integers: floats are no proof that 0.9 * 10 is 9."""
        return -(-9 * nodes // 10) if self.least is None else self.least


_COMMITTEE = ((20, 20), (499, 40), (inf, 60))


@dataclass(frozen=True, kw_only=True)
class DistributedNoise:
    """Gaussian noise in shares: each node adds one to its values before masking them.

    A noise multiplier counts the shares that are certain to be in a sum and unknown to all
    untrusted parties. With a roster of identities, that holds against a server that lies; without
    one, only against a server that follows the protocol.

    Attributes:
        nodes: Number of nodes of a sum.
        units_in_sum: Most units of one node in a sum; see `Hosting.most_drawn`.
        sums: Planned rounds and other releases; the accounting's own error is for twice as many.
    """

    nodes: int
    units_in_sum: int = 1
    sums: int
    secure_sum: SecureSum

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: The accounting's own error is beyond what may be charged for it.
        """
        if self.slack > _LARGEST_SLACK:
            raise OptionError(
                f"secure_sum.max_parameters = {self.secure_sum.max_parameters} in {self.sums} "
                f"sums of {self.nodes} nodes make float64's own error {self.slack:.2g}, above "
                f"{_LARGEST_SLACK:g}: write secure_sum.max_parameters=... with the model's own "
                "size",
                option="secure_sum.max_parameters",
            )

    @cached_property
    def shares(self) -> SharedNoise:
        """Numbers of nodes in a sum, and of certain shares of noise."""
        return self.secure_sum.noise(self.nodes)

    @property
    def honest_shares(self) -> int:
        """Number of shares of noise that a noise multiplier counts."""
        return self.shares.honest_shares(server_lies=self.secure_sum.roster)

    @property
    def releases(self) -> int:
        """Number of accounted sums: planned ones, and repetitions of failed ones."""
        return _ATTEMPTS * self.sums

    @cached_property
    def slack(self) -> float:
        """Lambda; see `Plan.slack`."""
        # Of all nodes' shares: the most that any claim counts.
        return shared_noise_slack(self.releases, self.secure_sum.max_parameters, self.nodes)

    def event_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return what remains of a budget for the Gaussians that sums are charged as.

        Raises:
            ValueError: Nothing remains.
        """
        return within_slack(budget, self.slack)

    def shared_bundle(self, bundle: GaussianBundle, size: int) -> SharedBundle:
        """Return a round's sums on the integers of a secure sum.

        Raises:
            ValueError: The model is larger than the accounting covers, bits are too few, or
                `reply_after` is too short.
        """
        self._require_accounted("model", size)
        if self.secure_sum.reply_after is not None:
            require_time(self.secure_sum.reply_after, size)
        return self._words.fit(bundle, size)

    def shared_statistic(
        self, mechanism: GaussianMechanism, size: int, hosting: Hosting
    ) -> SharedBundle:
        """Return a statistic's sum on the integers of a secure sum.

        Its coordinates are few, and one unit may fill one. So words are as wide as possible, and
        no entry is cut below what a node can reach. All units of a node take part.

        Raises:
            ValueError: There are more coordinates than the accounting covers.
        """
        self._require_accounted("statistic", size)
        bundle = GaussianBundle(
            noise_multiplier=mechanism.noise_multiplier, clipping_norms=(mechanism.clipping_norm,)
        )
        words = replace(
            self._words,
            units_in_sum=hosting.distinct_units,
            bits=MOST_BITS,
            element_cap=float(hosting.distinct_units),
        )
        return words.fit(bundle, size)

    def _require_accounted(self, name: str, size: int) -> None:
        if size > (most := self.secure_sum.max_parameters):
            raise OptionError(
                f"the {name} has {size} coordinates, and the plan accounts for {most}: write "
                f"secure_sum.max_parameters={size}",
                option="secure_sum.max_parameters",
            )

    def noise_std(self, shared: SharedBundle) -> float:
        """Return the standard deviation of all nodes' noise on a statistic, in its units.

        All shares count, whoever replied: the number of replies stays secret.
        """
        (segment,) = shared.segments
        return shared.noise_scale * sqrt(self.nodes) / segment.scale

    def in_shares(self, shared: SharedBundle) -> str:
        """Return a statistic's accuracy, in words."""
        return (
            f"it comes in shares, of which {self.honest_shares} have to be enough: those of all "
            f"{self.nodes} nodes together have {self.noise_std(shared):.4g}"
        )

    @property
    def _words(self) -> WordSize:
        return WordSize(
            noise=self.shares,
            shares=self.honest_shares,
            units_in_sum=self.units_in_sum,
            bits=self.secure_sum.bits,
            element_cap=self.secure_sum.element_cap,
        )

    def check(
        self, bundle: GaussianBundle, *, units_in_sum: int, sums: int, num_clients: int
    ) -> None:
        """Refuse sums that are not the plan's, and too few bits for the least noise.

        Raises:
            ValueError: With what to write instead.
        """
        _ = self.shares  # checks itself
        if units_in_sum != self.units_in_sum:
            raise OptionError(
                f"the noise is for {self.units_in_sum} units a node, and the plan has "
                f"{units_in_sum}: write secure_sum=SecureSum(...) and let the plan count",
                option="secure_sum",
            )
        if sums > self.sums or self.nodes > num_clients:
            raise OptionError(
                f"the noise is for {self.sums} sums of {self.nodes} nodes, and the plan has "
                f"{sums} of {num_clients} units: write secure_sum=SecureSum(...) and let the "
                "plan count",
                option="secure_sum",
            )
        self.shared_bundle(bundle, 1)

    def of_public_models(self, event: PrivacyEvent) -> PrivacyEvent:
        """Return a round's price against an adversary who sees its released model alone.

        Then no share is known, and a server that follows the protocol opens no sum below `least`.
        """
        assert isinstance(event, GaussianEvent | PoissonGaussianEvent)  # as `check` allows
        more = sqrt(self.shares.least / self.honest_shares)
        return replace(event, noise_multiplier=more * event.noise_multiplier)
