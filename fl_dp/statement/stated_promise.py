"""Promises as frozen objects, the source of JSON, Markdown and every other form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from fl_dp.accounting import NeighboringRelation, PrivacyBudget
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.second_figure import SecondFigure
from fl_dp.codec import decode, encode
from fl_dp.guarantee import Against, Guarantee
from fl_dp.ledger import LedgerAnchor
from fl_dp.mechanisms import Clipping
from fl_dp.promise import Enforcement


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Common part of all statements.

    Attributes:
        epsilon: Valid upper bounds by accountant.
        quoted: Accountant of the smallest bound; `none` if no bound is known.
        epsilon_so_far: The same for the releases so far.
        budget: Agreed on before training.
        unit: The protected unit, in words.
        against: The adversary, in a few words.
        adversary: What the adversary sees and knows.
        trusted: The trusted parties, and what they are trusted with.
        mechanism: The noise, and the sum it is added to.
        rule: Rule that keeps the budget.
        insecure: Whether noise or coins came from a predictable source.
        not_covered: What is not promised, one sentence each, the gravest first.
        versions: Versions of the libraries that computed the numbers.
        second_figure: Epsilon of the same releases by dp-accounting.
        shared_parameters: Parameters that left the nodes; None: all did. Others are neither
            released nor covered.
        epsilon_of_several: Where the unit is a record: epsilon of one person's 2, 5 and 10 records
            together, at the same delta; where it is a person: of one at so many clients. None for a
            number: no bound is known.
        public_inputs: Data that count as public: encoders, public records, first weights, rows
            held out of the own data to measure the model. Each sentence says to whom nothing is
            promised because of it. None: there were none.
        failure: Why the training, although charged, counts as failed; None if it does not.
    """

    delta: float
    epsilon: Mapping[str, float]
    quoted: str
    epsilon_so_far: Mapping[str, float]
    budget: PrivacyBudget
    unit: str
    neighboring_relation: NeighboringRelation
    against: Against
    adversary: str
    trusted: str
    mechanism: str
    rule: str
    insecure: bool
    not_covered: tuple[str, ...]
    versions: Mapping[str, str]
    second_figure: SecondFigure
    shared_parameters: tuple[str, ...] | None = None
    public_inputs: tuple[str, ...] | None = None
    failure: str | None = None
    epsilon_of_several: Mapping[str, float | None] | None = None

    @property
    def best_epsilon(self) -> float:
        """The bound to quote; infinite if none is known."""
        return self.epsilon.get(self.quoted, math.inf)

    @property
    def guarantee(self) -> Guarantee:
        """The promise as every screen, page and picture shows it."""
        return Guarantee.stated(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, without optional parts that are None."""
        optional = {field.name for field in fields(self) if field.default is None}
        document: dict[str, Any] = {}
        for name, value in encode(self).items():
            if value is not None or name not in optional:
                document[name] = value
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the statement that `to_dict` wrote.

        Raises:
            ValueError: Something is missing, or no part of a statement.
        """
        statement: Self = decode(cls, document, "privacy statement")
        return statement


@dataclass(frozen=True, kw_only=True)
class RecordStatement(Promise):
    """Promise of DP-SGD inside clients to each record of each client.

    Attributes:
        composition: Why clients do not add up.
        noise_multiplier: Noise multiplier of each step.
        sampling_rate: Rate at which a step samples a client's records.
        clipping_norm: Bound on one record's gradient.
        steps: Number of steps in a client's round.
        participations: Most rounds that any client was asked for; None: unknown.
        participations_planned: A client's rounds that the noise is calibrated for.
        declared_gradients: Opacus' way of computing gradients, by declaration: right where rows of
            layers are records. None: each is computed from its record alone.
        enforcement: `NAMED_APP` where each node that may have been asked reported a gate that
            admits one app alone; None: the promise rests on the apps alone.
        rounds: Number of released rounds; None where the statement of clients has it.
    """

    neighbours: str
    composition: str
    noise_multiplier: float
    sampling_rate: float
    clipping_norm: float
    steps: int
    participations: int | None
    participations_planned: int
    num_clients: int
    declared_gradients: str | None = None
    enforcement: Enforcement | None = None
    rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class SecureSumClaims:
    """Promises of secure sums, each against another adversary.

    The statement's own epsilon is against the server and `colluding` nodes: a server that lies
    where nodes have a roster, else only one that follows the protocol.

    Attributes:
        nodes: Number of nodes of a sum.
        sampled: `record` or `person` where nodes add up such gradients, else `client`.
        least: Fewest repliers of a sum, if the server follows the protocol.
        guaranteed: Fewest nodes of any sum that a lying server can open; None without a roster.
        colluding: Number of nodes that may reveal their shares to the server.
        honest_shares: Shares of noise that the statement's epsilon counts.
        slack: Lambda, charged within epsilon: the distance of sums from Gaussians.
        epsilon_of_models: The promise against an adversary who sees released models alone, where
            all `least` shares are secret and clients and server follow the protocol.
    """

    nodes: int
    least: int
    guaranteed: int | None
    colluding: int
    honest_shares: int
    slack: float
    epsilon_of_models: float
    sampled: str = "client"


@dataclass(frozen=True, kw_only=True)
class OwnPromise:
    """Promise to the clients of one public group with its own budget.

    Attributes:
        budget: The group's epsilon budget.
        share: Its share of the declared clients.
        sampling_rate: Probability of each of its clients in a round.
        epsilon: The smallest known bound, at the statement's delta.
        noise_scale: Its own noise over that of the last group, where clients add it.
    """

    budget: float
    share: float
    sampling_rate: float
    epsilon: float
    noise_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class AccountClaims:
    """All trainings of a ledger's account together, for the statement's unit and neighbours.

    Attributes:
        name: The account's name.
        training: Name of the statement's own training.
        trainings: Number of trainings and other releases, this one included.
        epsilon: Sum of their budgets; None: one has no promise, or no bound is known.
        delta: Delta of the sum.
        cap: Largest epsilon that all trainings may have; None: no cap, or one on another unit.
    """

    name: str
    training: str
    trainings: int
    epsilon: float | None
    delta: float
    cap: float | None


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement(Promise):
    """A training's promise to each of its clients, computed from its ledger alone.

    Attributes:
        sampling: Law of cohorts, in words.
        sampling_rate: Expected share of the clients in a round.
        rounds: Number of charged rounds.
        rounds_committed: Number of rounds whose model was released.
        noise_multipliers: One for each charged round.
        most_rounds: Most rounds of one client; None: every round is charged.
        metrics: Clients' metrics released with the model.
        releases: Events that one unit is charged for, with counts.
        clipping_norm: Bound on one unit's whole update in the first round.
        denominator: Public divisor of sums.
        num_clients: Clients of the roster; records, where nodes add up their gradients.
        randomness: Sources of noise and coins.
        anchor: The ledger's last entry read.
        records: Another promise, to records; None if clients train without DP-SGD.
        secure_sums: Promises of noise in shares; None: one party adds the noise.
        own_budgets: Promise to each group with its own budget, the strictest first; the
            statement's epsilon is the last one's. None: one for all.
        enforcement: That of the promise, where each asked node reported a gate; None: the app, or
            a promise that trusts the server.
        hyper_parameters: How they were chosen, if the ledger knows; else None, and `not_covered`
            says so.
        account: The account that the training belongs to.
    """

    sampling: str
    sampling_rate: float | None
    rounds: int
    rounds_planned: int
    rounds_committed: int
    noise_multipliers: tuple[float, ...]
    most_rounds: int | None
    metrics: tuple[str, ...]
    releases: FrozenHistory
    clipping: Clipping
    clipping_norm: float
    denominator: float
    num_clients: int
    randomness: tuple[str, ...]
    ledger: str
    anchor: LedgerAnchor
    account: AccountClaims
    records: RecordStatement | None = None
    secure_sums: SecureSumClaims | None = None
    own_budgets: tuple[OwnPromise, ...] | None = None
    hyper_parameters: str | None = None
    enforcement: Enforcement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the anchor as its ledger looks for it."""
        document = super().to_dict()
        if self.records is not None:
            document["records"] = self.records.to_dict()
        del document["anchor"]
        return document | self.anchor.to_statement(self.ledger)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the statement that `to_dict` wrote; see `Promise.from_dict`."""
        anchor = LedgerAnchor.from_statement(document)
        if anchor is None:
            raise ValueError("the privacy statement was computed from no ledger")
        beside = anchor.to_statement("").keys() - {"ledger"}
        rest = {name: value for name, value in document.items() if name not in beside}
        return super().from_dict(rest | {"anchor": encode(anchor)})


@dataclass(frozen=True, kw_only=True)
class NoPromise:
    """Statement of a run without privacy.

    Attributes:
        rounds: Planned rounds.
    """

    rounds: int
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        failed = {} if self.failure is None else {"failure": self.failure}
        return {"quoted": "none", "epsilon": {}, "delta": 0.0, "rounds": self.rounds, **failed}
