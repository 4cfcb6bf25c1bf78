"""The options of `dp_sgd=NAME`: DP-SGD inside each client, which protects its records."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from fl_dp.accounting import NeighboringRelation, PrivacyBudget
from fl_dp.guarantee import Guarantee
from fl_dp.option_errors import OptionError
from fl_dp.plan import RecordPlan

from .checks import AbsolutePath, Count, Positive, between_0_and_1, fraction
from .option import Option, key, made_by, option

_MOST_STEPS = 10_000_000


def _rate(name: str, value: float) -> None:
    fraction(
        name, value, "it is a probability, for example 0.1 for a tenth of a client's records a step"
    )


def record_plan(
    epochs: int,
    usual_participations: int,
    neighboring_relation: NeighboringRelation,
    within_budget: bool,
    unit: str,
    *,
    epsilon: Positive | None = 8.0,
    delta: Annotated[float, between_0_and_1] = 1e-5,
    noise_multiplier: Positive | None = None,
    clipping_norm: Positive = 1.0,
    sampling_rate: Annotated[float, _rate] = 0.1,
    steps: Count | None = None,
    participations: Count | None = None,
) -> RecordPlan:
    """Return the plan of DP-SGD inside clients.

    Args:
        epochs: Epochs of one round.
        usual_participations: Rounds that almost no client exceeds.
        neighboring_relation: Neighbours of the promise.
        within_budget: Whether noise that spends more than the budget is refused.
        unit: `record` or `person`.
        epsilon: Budget of each client's records over all that its node ever releases; None only
            with a noise multiplier.
        delta: Delta of that budget, below one over a client's records.
        noise_multiplier: Noise standard deviation on a step's sum of gradients over the clipping
            norm; None is calibrated.
        clipping_norm: L2 bound on the gradient of one record.
        sampling_rate: Probability of each record in each step, in (0, 1], the same for all clients.
        steps: Steps of one round; None is `client.epochs / sampling_rate`.
        participations: Rounds of one client that the noise is calibrated for; afterwards it
            contributes nothing. None: more than almost all clients have.

    Raises:
        ValueError: The rounds do not fit the budget.
    """
    steps = steps or max(1, round(epochs / sampling_rate))
    participations = participations or usual_participations
    if steps * participations > _MOST_STEPS:
        raise OptionError(
            f"{steps} steps in each of {participations} rounds of a client are too many: raise "
            "dp_sgd.sampling_rate, or lower dp_sgd.steps, dp_sgd.participations or "
            f"client.epochs, to {_MOST_STEPS:,} in all",
            option="dp_sgd.steps",
        )
    training: dict[str, Any] = {
        "sampling_rate": sampling_rate,
        "steps": steps,
        "participations": participations,
        "clipping_norm": clipping_norm,
        "neighboring_relation": neighboring_relation,
        "unit": unit,
    }
    if noise_multiplier is None:
        assert epsilon is not None  # the settings refuse both being null
        return RecordPlan.calibrate(PrivacyBudget(epsilon=epsilon, delta=delta), **training)
    spends = RecordPlan.from_noise_multiplier(noise_multiplier, delta=delta, **training)
    if epsilon is None or not within_budget:
        return spends
    if spends.budget.epsilon > epsilon:
        raise OptionError(
            f"{participations} rounds of a client at dp_sgd.noise_multiplier={noise_multiplier:g} "
            f"spend {Guarantee.of(spends)}, more than dp_sgd.epsilon={epsilon}: raise the budget, "
            "or leave the multiplier out and let it be calibrated",
            option="dp_sgd.noise_multiplier",
        )
    return replace(spends, budget=PrivacyBudget(epsilon=epsilon, delta=delta))


def record_steps(
    *,
    expected_batch_size: Positive | None = None,
    grad_sample_mode: str | None = None,
    physical_batch_size: Count | None = None,
    secure_randomness: bool = True,
) -> dict[str, Any]:
    """Return how a client computes its steps: arguments of `DPSGD`, which needs torch.

    Args:
        expected_batch_size: Public divisor of a step's sum; None is `sampling_rate` times the
            client's number of records, which is then public.
        grad_sample_mode: Gradients by `records` (each record alone), or Opacus' `hooks` or `ghost`,
            first compared with it. None: `records`.
        physical_batch_size: Most records in memory at once; None is what fits.
        secure_randomness: Draw noise and coins from the operating system; false takes torch's
            generator, for comparisons only.
    """
    return {
        "expected_batch_size": expected_batch_size,
        "grad_sample_mode": grad_sample_mode or "records",
        "physical_batch_size": physical_batch_size,
        "secure_randomness": secure_randomness,
    }


def ledgers(*, ledger_dir: AbsolutePath | None = None) -> str | None:
    """Return the folder of simulated nodes' ledgers.

    Args:
        ledger_dir: Absolute folder of simulated nodes' ledgers, for several runs; None is the run's
            folder. Real nodes name their own.
    """
    return ledger_dir


class DPSGDOption(Option):
    """Whether clients train by DP-SGD, and how."""

    enabled: ClassVar[bool]  # a field of each option

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.enabled and self.epsilon is None and self.noise_multiplier is None:
            raise OptionError(
                "dp_sgd.epsilon and dp_sgd.noise_multiplier are both null: write a budget, for "
                "example dp_sgd.epsilon=2",
                option="dp_sgd.epsilon",
            )


_BY_DP_SGD = (
    made_by(
        record_plan,
        epsilon=key(),
        delta=key(),
        noise_multiplier=key(),
        clipping_norm=key(),
        sampling_rate=key(),
        steps=key(),
        participations=key(),
    ),
    made_by(
        record_steps,
        expected_batch_size=key(),
        grad_sample_mode=key(choices=("records", "hooks", "ghost")),
        physical_batch_size=key(),
        secure_randomness=key(),
    ),
    made_by(ledgers, ledger_dir=key(tracked=False)),
)

DP_SGD: dict[str, type[DPSGDOption]] = {
    name: option(
        "dp_sgd", name, *makers, base=DPSGDOption, chosen_by="enabled", chosen=bool(makers)
    )
    for name, makers in (("off", ()), ("on", _BY_DP_SGD))
}
