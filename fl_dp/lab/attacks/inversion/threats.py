"""Threat models: the adversary's view of a client's training, and its cost in privacy.

Each uses fl-dp's own mechanisms. Epsilon is the attacked round's, without amplification: the
adversary knows that the client takes part.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyBudget,
    PrivacyEvent,
    epsilon,
)
from fl_dp.accounting.shared_noise import shared_noise_multiplier
from fl_dp.guarantee import Against
from fl_dp.mechanisms import (
    ClientScheme,
    GaussianMechanism,
    NoiseShare,
    SecureRandom,
    Segment,
    client_scheme,
    clip_by_norm,
)
from fl_dp.mechanisms.clipping import Norm
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import RecordPlan
from fl_dp.tasks.training import train_locally

from .inversion_attack import ClientRecords, KnownTraining, RoundObservation, flat_parameters

_SHARE_SCALE = 2.0**20  # grid steps of one share of noise: rounding is far below it
Updates: TypeAlias = list[NDArray[np.float64]]
"""Update of each client, `(d,)`."""

Clients: TypeAlias = Sequence[ClientRecords]
"""Clients of a round, the one that is attacked first."""

_NEVER_BINDING = PrivacyBudget(epsilon=1e12, delta=1e-5)


class View(NamedTuple):
    """The adversary's view of a round.

    Attributes:
        update: One client's update, or the mean of several, float64 `(d,)`.
        clients: Clients whose updates are in it.
        clipping_norm: L2 bound on one client's update; None: none, or several are in it.
    """

    update: NDArray[np.float64]
    clients: Sequence[ClientRecords]
    clipping_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class ThreatModel(ABC):
    """An adversary's view of one round of a client, the first of the participants.

    Your own threat model computes it in `view` from the clients' updates.

    Attributes:
        training: Training of each client.
    """

    training: KnownTraining
    unit: ClassVar[str] = "client"
    neighbours: ClassVar[NeighboringRelation] = NeighboringRelation.ZERO_OUT
    against: ClassVar[Against] = Against.SERVER

    def observe(
        self,
        model: nn.Module,
        clients: Clients,
        *,
        seed: int,
        rng: SecureRandom | None = None,
    ) -> RoundObservation:
        """Train each client from the public model, and return what the adversary sees.

        The public model is on the CPU and not changed; the attacked client is the first. `seed` is
        for record orders and dropout, which a client would draw itself. `rng` draws the protecting
        noise; None: a fresh secure one.

        Raises:
            ValueError: If there are fewer clients than the threat needs, at least one.
        """
        least = self._takes or 1
        if len(clients) < least:
            raise ValueError(
                f"{type(self).__name__} is about {least} clients or more, got {len(clients)}"
            )
        taken, random = clients[: self._takes], rng or SecureRandom()
        updates = [
            self._update(model, records, seed + index, random)
            for index, records in enumerate(taken)
        ]
        view = self.view(updates, taken, random)
        return RoundObservation(
            model=model,
            update=torch.from_numpy(view.update),
            training=self.training,
            records=sum(map(len, view.clients)),
            clipping_norm=view.clipping_norm,
        )

    @abstractmethod
    def view(self, updates: Updates, clients: Clients, rng: SecureRandom) -> View:
        """The adversary's view of the updates of all clients in the threat.

        `clients` has the same order; `rng` draws the protecting noise.
        """

    @property
    def _takes(self) -> int | None:
        """Number of clients whose updates enter the view; None: all."""
        return 1

    def releases(self) -> tuple[PrivacyEvent, int] | None:
        """The event charged for the view, and its count; None: no promise."""
        return None

    def epsilon(self, delta: float) -> float:
        """The round's epsilon for `unit`, infinite where nothing is promised."""
        charge = self.releases()
        if charge is None:
            return math.inf
        return epsilon(dict([charge]), delta, neighboring_relation=self.neighbours).best

    def _update(
        self, model: nn.Module, records: ClientRecords, seed: int, rng: SecureRandom
    ) -> NDArray[np.float64]:
        """One client's update, `(d,)`."""
        del rng
        trained = copy.deepcopy(model)
        # Dropout draws from torch's global generator, which stays as it was.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            train_locally(
                trained,
                records.features,
                records.labels,
                learning_rate=self.training.learning_rate,
                epochs=self.training.epochs,
                batch_size=self.training.batch_size or max(1, len(records)),
                seed=seed,
            )
        return _difference(trained, model)


@dataclass(frozen=True, kw_only=True)
class RawUpdate(ThreatModel):
    """A server that gets each client's model as it is, or clipped by the client.

    Attributes:
        clipping_norm: L2 bound on the update; None: none. Clipping alone promises nothing.
    """

    clipping_norm: float | None = None

    def view(self, updates: Updates, clients: Clients, rng: SecureRandom) -> View:
        """The client's update. See `ThreatModel.view`."""
        del rng
        [update] = updates
        if self.clipping_norm is not None:
            update = clip_by_norm(update, self.clipping_norm)
        return View(update, clients, self.clipping_norm)


@dataclass(frozen=True, kw_only=True)
class NoisyUpdate(ThreatModel):
    """A server that gets each update with the client's own noise (`privacy=local`).

    Attributes:
        clipping_norm: Bound on the update, in the scheme's norm.
        noise_multiplier: Noise multiplier of the scheme.
        scheme: A name in `fl_dp.mechanisms.schemes.SCHEMES`.
    """

    clipping_norm: float
    noise_multiplier: float
    scheme: str = "gaussian"

    def view(self, updates: Updates, clients: Clients, rng: SecureRandom) -> View:
        """Return what the client sends. See `ThreatModel.view`."""
        [update] = updates
        scheme = self._mechanism
        l2_bound = self.clipping_norm if scheme.clipping is Norm.L2 else None
        return View(scheme.privatize(update, rng), clients, l2_bound)

    def releases(self) -> tuple[PrivacyEvent, int]:
        """The charge of one message."""
        return self._mechanism.event(), 1

    @property
    def _mechanism(self) -> ClientScheme:
        return client_scheme(
            self.scheme,
            noise_multiplier=self.noise_multiplier,
            clipping_norm=self.clipping_norm,
        )


@dataclass(frozen=True, kw_only=True)
class ReleasedModel(ThreatModel):
    """An adversary that gets the released model, with a trusted server's noise.

    Attributes:
        clipping_norm: L2 bound on each client's update.
        noise_multiplier: Noise on the sum of updates over `clipping_norm`.
        knows_others: Whether the adversary knows everything of all other clients, as epsilon
            supposes, and subtracts their updates.
    """

    clipping_norm: float
    noise_multiplier: float
    knows_others: bool = False
    against: ClassVar[Against] = Against.MODELS

    def view(self, updates: Updates, clients: Clients, rng: SecureRandom) -> View:
        """The released model's mean update. See `ThreatModel.view`."""
        mechanism = GaussianMechanism(
            noise_multiplier=self.noise_multiplier, clipping_norm=self.clipping_norm
        )
        encoded = [mechanism.encode(update) for update in updates]
        total = np.sum(encoded, axis=0)
        released = mechanism.release(total, mechanism.noise(total.size, rng))
        if self.knows_others:
            others: NDArray[np.float64] | float = 0.0
            if encoded[1:]:
                others = np.sum(encoded[1:], axis=0) * mechanism.grid
            return View(released - others, clients[:1], self.clipping_norm)
        return View(released / len(clients), clients)

    @property
    def _takes(self) -> None:
        return None

    def releases(self) -> tuple[PrivacyEvent, int]:
        """The charge of one round."""
        return GaussianEvent(noise_multiplier=self.noise_multiplier), 1


@dataclass(frozen=True, kw_only=True)
class UpdateSum(ThreatModel):
    """A server that sees the sum of all clients' values alone (`privacy=distributed`).

    Masks cancel out in the sum, so the server sees the sum of the shares.

    Attributes:
        clipping_norm: L2 bound on each client's update.
        noise_multiplier: Noise on the sum over `clipping_norm`, of all clients' shares together;
            None: no noise, and nothing is promised.
        cohort: Number of clients in the sum, at least 2.
    """

    clipping_norm: float
    noise_multiplier: float | None = None
    cohort: int
    against: ClassVar[Against] = Against.HONEST_SERVER

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the cohort is below 2: a sum of one client hides nothing.
        """
        if self.cohort < 2:
            raise ValueError(f"cohort must be at least 2, got {self.cohort}: one client is no sum")

    def view(self, updates: Updates, clients: Clients, rng: SecureRandom) -> View:
        """The sum over all clients, divided by their number. See `ThreatModel.view`."""
        clipped = [clip_by_norm(update, self.clipping_norm) for update in updates]
        if self.noise_multiplier is None:
            return View(np.sum(clipped, axis=0) / self.cohort, clients)
        share = self._share(updates[0].size, self.noise_multiplier)
        total = np.zeros(share.size, dtype=np.int64)
        for update in clipped:
            total = total + share.encode([update], rng)
        [opened] = share.decode(total)
        return View(opened / self.cohort, clients)

    @property
    def _takes(self) -> int:
        return self.cohort

    def releases(self) -> tuple[PrivacyEvent, int] | None:
        """The charge of one sum; the server knows none of its shares."""
        if self.noise_multiplier is None:
            return None
        share = self._share(1, self.noise_multiplier)
        multiplier = shared_noise_multiplier(share.noise_scale, share.sensitivity, self.cohort)
        return GaussianEvent(noise_multiplier=multiplier), 1

    def _share(self, size: int, noise_multiplier: float) -> NoiseShare:
        noise_of_client = noise_multiplier * self.clipping_norm / math.sqrt(self.cohort)
        scale = _SHARE_SCALE / noise_of_client
        cap = scale * self.clipping_norm
        segment = Segment("updates", size, scale, cap, self.clipping_norm)
        return NoiseShare(segments=(segment,), noise_scale=_SHARE_SCALE)


@dataclass(frozen=True, kw_only=True)
class DPSGDUpdate(ThreatModel):
    """A server that gets the model of a client that trains by DP-SGD (`privacy=dp_sgd`).

    Every step takes all records: sampling, with probability 1, hides nothing.

    Attributes:
        clipping_norm: L2 bound on one record's gradient.
        noise_multiplier: Noise on a step's sum of gradients over `clipping_norm`.
    """

    clipping_norm: float
    noise_multiplier: float
    unit: ClassVar[str] = "record"

    def view(self, updates: Updates, clients: Clients, rng: SecureRandom) -> View:
        """The client's update. See `ThreatModel.view`."""
        del rng
        [update], [records] = updates, clients
        alone = len(records) == self.training.epochs == 1  # then the update is one clipped gradient
        bound = self.training.learning_rate * self.clipping_norm if alone else None
        return View(update, clients, bound)

    def _update(
        self, model: nn.Module, records: ClientRecords, seed: int, rng: SecureRandom
    ) -> NDArray[np.float64]:
        del seed
        from fl_dp.clients.per_record.dp_sgd import (  # with Opacus, slow to load
            DPSGD,
            train_with_dp_sgd,
        )

        rate = self.training.learning_rate
        how = DPSGD(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
            expected_batch_size=float(len(records)),
        )
        plan = RecordPlan(
            budget=_NEVER_BINDING,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=1.0,
            steps=self.training.epochs,
            participations=1,
            clipping_norm=self.clipping_norm,
        )
        trained = copy.deepcopy(model)
        loader = DataLoader(TensorDataset(records.features, records.labels))
        train_with_dp_sgd(trained, loader, plan=plan, how=how, rng=rng)
        return _difference(trained, model)

    def releases(self) -> tuple[PrivacyEvent, int]:
        """The charge of the round's steps."""
        event = PoissonGaussianEvent(noise_multiplier=self.noise_multiplier, sampling_rate=1.0)
        return event, self.training.epochs


def _difference(trained: nn.Module, model: nn.Module) -> NDArray[np.float64]:
    """The trainable parameters' change, float64 `(d,)`: what a server computes."""
    change: Tensor = flat_parameters(trained) - flat_parameters(model)
    update: NDArray[np.float64] = change.numpy()
    return update
