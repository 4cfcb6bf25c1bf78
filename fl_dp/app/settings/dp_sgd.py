"""Settings of DP-SGD inside clients: `dp_sgd=on`."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, between_0_and_1, choices, fraction, positive, told


@dataclass(kw_only=True)
class DPSGDSettings:
    """DP-SGD inside each client, which protects its records under every `privacy.mode`.

    Attributes:
        enabled: Option of the group: whether clients train by DP-SGD.
    """

    enabled: bool = told(False)


@dataclass(kw_only=True)
class DPSGDOnSettings(DPSGDSettings):
    """How clients train by DP-SGD.

    Attributes:
        epsilon: The budget of each client's records over everything that its node ever releases;
            null only with a noise multiplier.
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
        grad_sample_mode: How each record's gradient is computed: `vmap` (from that record alone),
            or by Opacus' `hooks` or `ghost` (never in memory: for large models), which are compared
            with it first; null means the fastest that a test has shown equal for the model.
        physical_batch_size: Most records in memory at once; null means what fits.
        secure_randomness: Draw noise and coins from the operating system; false takes torch's
            generator, as plain Opacus does, for comparisons only.
        ledger_dir: Absolute folder of the simulated nodes' ledgers, which several runs can charge;
            null means inside the run's folder. Real nodes name their own.
    """

    enabled: bool = told(True)
    epsilon: float | None = told(8.0)
    delta: float = told(1e-5)
    noise_multiplier: float | None = told(None)
    clipping_norm: float = told(1.0)
    sampling_rate: float = told(0.1)
    steps: int | None = told(None)
    participations: int | None = told(None)
    expected_batch_size: float | None = told(None)
    grad_sample_mode: str | None = told(None)
    physical_batch_size: int | None = told(None)
    secure_randomness: bool = told(True)
    ledger_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "dp_sgd.epsilon and dp_sgd.noise_multiplier are both null: write a budget, for "
                "example dp_sgd.epsilon=2"
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


DP_SGD: tuple[DPSGDSettings, ...] = (DPSGDSettings(), DPSGDOnSettings())
"""What `dp_sgd=off` and `dp_sgd=on` choose."""
