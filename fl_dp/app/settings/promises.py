"""Settings of what is promised to each client, a class for each `privacy=NAME`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, between_0_and_1, choices, positive, told
from .secure_sum import SecureSumSettings


@dataclass(kw_only=True)
class PrivacySettings:
    """Promise to each client; `none` promises nothing, and `dp_sgd=on` protects records alone then.

    Attributes:
        mode: Option of the group.
        neighboring_relation: `zero-out`, `add-or-remove-one` (the same numbers) or `replace-one`
            (about twice the noise).
        insecure_seed: For tests and simulations only: draw noise and coins from this number, which
            ledger and statement then report for good; null means secret randomness.
    """

    noised_by: ClassVar[str] = "nobody"  # or "server", "nodes" by shares, "clients" each
    mode: str = told("none")
    neighboring_relation: str = told("zero-out")
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        choices("privacy", self)
        at_least("privacy.insecure_seed", self.insecure_seed, 0)

    def __str__(self) -> str:
        """Return the option."""
        return self.mode

    @property
    def unit(self) -> str:
        """What one promise is about: `client` or `record`."""
        return "client"

    @property
    def epsilon(self) -> float | None:
        """The budget of a unit; None: there is none, or a noise multiplier says it."""
        return None

    @property
    def delta(self) -> float | None:
        """The probability with which epsilon may fail; None: what suits the number of units."""
        return None

    @property
    def noise_multiplier(self) -> float | None:
        """Noise standard deviation over the clipping norm; None: calibrated, or no noise."""
        return None

    @property
    def contribution_check(self) -> bool:
        """Whether a run to which no client contributes is ended."""
        return False

    @property
    def witness_dir(self) -> str | None:
        """Folder that knows how far each run's ledger has come; None: there is none."""
        return None

    @property
    def scheme(self) -> str | None:
        """Noise that the clients add; None: they add none of their own."""
        return None

    @property
    def sums(self) -> SecureSumSettings | None:
        """Secure sums, by which each node adds a share of the noise; None: there are none."""
        return None


@dataclass(kw_only=True)
class CentralPrivacySettings(PrivacySettings):
    """The server clips, sums and adds the noise.

    Attributes:
        unit: `client`, or `record`: one record; needs `replace-one`, but not under
            `privacy=distributed_records`.
        epsilon: The budget of each client over the whole training; null only with a noise
            multiplier.
        delta: The probability with which epsilon may fail; null means `num_clients ** -1.1`.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise; null means calibrated to spend the budget.
        contribution_check: End a run to which no client contributes. Each round also releases a
            noisy count of contributions, for at most 1 % more noise on updates (5 % with few
            clients or rounds).
        witness_dir: Absolute folder on another disk, in which a file for each run knows how far its
            ledger has come; an older copy in its place is then refused. Null means none.
    """

    noised_by = "server"
    mode: str = told("central")
    unit: str = told("client")
    epsilon: float | None = told(8.0)
    delta: float | None = told(None)
    noise_multiplier: float | None = told(None)
    contribution_check: bool = told(True)
    witness_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "{privacy.epsilon} and {privacy.noise_multiplier} are both null: write a "
                "budget, for example {privacy.epsilon}=2"
            )
        positive("privacy.epsilon", self.epsilon)
        positive("privacy.noise_multiplier", self.noise_multiplier)
        between_0_and_1("privacy.delta", self.delta)
        absolute("privacy.witness_dir", self.witness_dir)


@dataclass(kw_only=True)
class DistributedPrivacySettings(CentralPrivacySettings):
    """Each node adds a share of the noise, and the server sees nothing but sums.

    Attributes:
        unit: `client`, or `record`: a client adds up the clipped gradients of its records then,
            under any relation: each round is a step of DP-SGD on the records of all
            (`privacy=distributed_records`).
    """

    noised_by = "nodes"
    mode: str = told("distributed")
    secure_sum: SecureSumSettings = field(default_factory=SecureSumSettings)

    @property
    def sums(self) -> SecureSumSettings:
        """Secure sums, by which each node adds a share of the noise."""
        return self.secure_sum


@dataclass(kw_only=True)
class LocalPrivacySettings(CentralPrivacySettings):
    """Each client clips and adds noise itself, and sends nothing else.

    Attributes:
        scheme: The clients' noise: `gaussian`, `laplace` or `exponential`.
    """

    noised_by = "clients"
    mode: str = told("local")
    scheme: str = told("gaussian")


PROMISES: tuple[PrivacySettings, ...] = (
    CentralPrivacySettings(),
    DistributedPrivacySettings(),
    LocalPrivacySettings(),
    PrivacySettings(),
)
"""What `privacy=NAME` chooses among, besides the presets of conf/privacy."""
