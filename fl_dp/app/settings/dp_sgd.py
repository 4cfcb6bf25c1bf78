"""Settings of DP-SGD inside clients: `dp_sgd=on`."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, between_0_and_1, choices, fraction, positive, tracked


@dataclass(kw_only=True)
class DPSGDSettings:
    """DP-SGD inside each client, which protects its records under every `privacy.mode`.

    Attributes:
        enabled: Option of the group: whether clients train by DP-SGD.
    """

    enabled: bool = tracked(False)

    def __str__(self) -> str:
        """Return the option."""
        return "on" if self.enabled else "off"


@dataclass(kw_only=True)
class DPSGDOnSettings(DPSGDSettings):
    """Training of clients by DP-SGD.

    Attributes:
        epsilon: Budget of each client's records over all that its node ever releases; null only
            with a noise multiplier.
        delta: Delta of that budget, below one over a client's records.
        noise_multiplier: Noise standard deviation on a step's sum of gradients over the clipping
            norm; null is calibrated.
        clipping_norm: L2 bound on the gradient of one record.
        sampling_rate: Probability of each record in each step, in (0, 1], the same for all clients.
        steps: Steps of one round; null is `client.epochs / sampling_rate`.
        participations: Rounds of one client that the noise is calibrated for; afterwards it
            contributes nothing. Null: more than almost all clients have.
        expected_batch_size: Public divisor of a step's sum; null is `sampling_rate` times the
            client's number of records, which is then public.
        grad_sample_mode: Gradients by `records` (each record alone), or Opacus' `hooks` or `ghost`,
            first compared with it. Null: `records`.
        physical_batch_size: Most records in memory at once; null is what fits.
        secure_randomness: Draw noise and coins from the operating system; false takes torch's
            generator, for comparisons only.
        ledger_dir: Absolute folder of simulated nodes' ledgers, for several runs; null is the run's
            folder. Real nodes name their own.
    """

    enabled: bool = tracked(True)
    epsilon: float | None = tracked(8.0)
    delta: float = tracked(1e-5)
    noise_multiplier: float | None = tracked(None)
    clipping_norm: float = tracked(1.0)
    sampling_rate: float = tracked(0.1)
    steps: int | None = tracked(None)
    participations: int | None = tracked(None)
    expected_batch_size: float | None = tracked(None)
    grad_sample_mode: str | None = tracked(None)
    physical_batch_size: int | None = tracked(None)
    secure_randomness: bool = tracked(True)
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
"""The options of `dp_sgd=off` and `dp_sgd=on`."""
