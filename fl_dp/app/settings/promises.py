"""Settings of what is promised: to each client, and to each of its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fl_dp.option_errors import IncompatibleOptions, OptionError

from .checks import absolute, at_least, between_0_and_1, choices, fraction, positive


@dataclass(kw_only=True)
class PrivacySettings:
    """Promise to each client: where the noise is added, and how much may leak.

    Attributes:
        mode: `central`: the server clips, sums and adds the noise. `distributed`: each node adds a
            share of it, and the server sees nothing but sums. `local`: each client clips and
            adds noise itself, and sends nothing else. `none`: nothing is promised to clients; with
            `dp_sgd=on` their records are protected alone, without it nothing is private.
        scheme: The clients' noise in `local` mode: `gaussian`, `laplace` or `exponential`.
        unit: `client`, or `record`: one record; needs `replace-one`. In `distributed` mode a client
            adds up the clipped gradients of its records then, under any relation: each round is a
            step of DP-SGD on the records of all (`privacy=distributed_records`).
        epsilon: The budget of each client over the whole training; null only with a noise
            multiplier.
        delta: The probability with which epsilon may fail; null means `num_clients ** -1.1`.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise; null means calibrated to spend the budget.
        neighboring_relation: `zero-out`, `add-or-remove-one` (the same numbers) or `replace-one`
            (about twice the noise).
        noise: `independent` in each round; or, in `central` mode, later rounds subtract part of
            earlier noise, and clients rest in between (`spaced`, with `selection=public`) or take
            turns in public groups (`cyclic`, with secret coins); `auto` is the one that leaves the
            least error in the model at the same epsilon.
        separation: Least distance of two rounds of one client under `spaced`; null is as far as the
            roster allows.
        groups: Number of groups under `cyclic`, each of which has every such round.
        bands: Rounds that one draw of correlated noise reaches, at most the distance of two rounds
            of one client: the server keeps one vector less in memory. Null is that distance, or as
            many as fit into 1 GiB.
        contribution_check: End a run to which no client contributes. Each round also releases a
            noisy count of contributions, for at most 1 % more noise on updates (5 % with few
            clients or rounds).
        insecure_seed: For tests and simulations only: draw noise and coins from this number, which
            ledger and statement then report for good; null means secret randomness.
        witness_dir: Absolute folder on another disk, in which a file for each run knows how far its
            ledger has come; an older copy in its place is then refused. Null means none.
    """

    mode: str = "central"
    scheme: str = "gaussian"
    unit: str = "client"
    epsilon: float | None = 8.0
    delta: float | None = None
    noise_multiplier: float | None = None
    neighboring_relation: str = "zero-out"
    noise: str = "independent"
    separation: int | None = None
    groups: int | None = None
    bands: int | None = None
    contribution_check: bool = True
    insecure_seed: int | None = None
    witness_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        choices("privacy", self)
        at_least("privacy.insecure_seed", self.insecure_seed, 0)
        for key in ("separation", "groups", "bands"):
            at_least(f"privacy.{key}", getattr(self, key), 2)
        if self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "{privacy.epsilon} and {privacy.noise_multiplier} are both null: write a "
                "budget, for "
                "example {privacy.epsilon}=2"
            )
        positive("privacy.epsilon", self.epsilon)
        positive("privacy.noise_multiplier", self.noise_multiplier)
        between_0_and_1("privacy.delta", self.delta)
        absolute("privacy.witness_dir", self.witness_dir)


@dataclass(kw_only=True)
class DPSGDSettings:
    """DP-SGD inside each client, which protects its records under every `privacy.mode`.

    Attributes:
        enabled: Whether clients train by DP-SGD; `dp_sgd=on` turns it on.
        epsilon: The budget of each client's records over everything that its node ever releases;
            `dp_sgd=on` brings 8, null only with a noise multiplier.
        delta: The delta that goes with it; below one over a client's records.
        noise_multiplier: Noise standard deviation on a step's sum of gradients over the clipping
            norm; null means calibrated.
        clipping_norm: L2 bound on the gradient of one record.
        sampling_rate: Probability of each record in each step, in (0, 1]; the same for all clients.
        steps: Steps of one round; null means `client.epochs / sampling_rate`.
        participations: Rounds of one client that the noise is calibrated for, after which it
            contributes nothing; null means a number that almost all clients stay below, given
            `selection.sampling_rate`.
        expected_batch_size: Public constant that divides the sum of a step; null means
            `sampling_rate` times the client's number of records, which is then public.
        grad_sample_mode: How Opacus gets each record's gradient: `hooks` (fastest for most),
            `functorch` (any layer) or `ghost` (never in memory: for large models).
        physical_batch_size: Most records in memory at once; null means no limit.
        secure_randomness: Draw noise and coins from the operating system; false takes torch's
            generator, as plain Opacus does, for comparisons only.
        ledger_dir: Absolute folder of the simulated nodes' ledgers, which several runs can charge;
            null means inside the run's folder. Real nodes name their own.
    """

    enabled: bool = False
    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    clipping_norm: float = 1.0
    sampling_rate: float = 0.1
    steps: int | None = None
    participations: int | None = None
    expected_batch_size: float | None = None
    grad_sample_mode: str = "hooks"
    physical_batch_size: int | None = None
    secure_randomness: bool = True
    ledger_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.enabled and self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "{dp_sgd.epsilon} and {dp_sgd.noise_multiplier} are both null: write "
                "dp_sgd=on, which "
                "brings a budget, or one of your own, for example {dp_sgd.epsilon}=2"
            )
        for key in ("clipping_norm", "epsilon", "noise_multiplier", "expected_batch_size"):
            positive(f"dp_sgd.{key}", getattr(self, key))
        for key in ("steps", "participations", "physical_batch_size"):
            at_least(f"dp_sgd.{key}", getattr(self, key), 1)
        between_0_and_1("dp_sgd.delta", self.delta)
        fraction(
            "dp_sgd.sampling_rate",
            self.sampling_rate,
            "it is a probability, for example 0.1 for a tenth of a client's records a step",
        )
        choices("dp_sgd", self)
        absolute("dp_sgd.ledger_dir", self.ledger_dir)
        if not self.enabled:
            self.require_on(
                f"dp_sgd.{key}={getattr(self, key)}"
                for key, field_of in self.__dataclass_fields__.items()
                if getattr(self, key) != field_of.default
            )

    def require_on(self, asked: Iterable[str]) -> None:
        """Check that DP-SGD is on, if anything of it was asked for.

        Args:
            asked: The settings, each as `key=value`.

        Raises:
            ValueError: If it is off.
        """
        given = list(asked)
        if given and not self.enabled:
            # Closed by default: a budget that nothing keeps would look like protection.
            raise IncompatibleOptions(
                f"{', '.join(map('{{{}}}'.format, given))} is for DP-SGD inside clients, which "
                "is off: "
                "write {dp_sgd=on} too, or leave it out"
            )
