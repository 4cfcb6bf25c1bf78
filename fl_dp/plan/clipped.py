"""Bounds on updates, for kinds of plans: any rule, with metrics beside it, or one fixed norm."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.mechanisms import Clipping, FixedClipping, ScalarMetric
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.option_errors import OptionError, require_positive

from .plan_base import Plan
from .release import Release


@dataclass(frozen=True, kw_only=True)
class RuleClippedPlan(Plan):
    """A kind that bounds updates by any rule, and may release metrics beside them.

    Attributes:
        metrics: Clients' metrics that each round releases; see `Release`.
        scalar_noise_std: Noise standard deviation on the sum of each metric and of adaptive
            clipping's bits; see `Release`.
        Others: See `Plan`.
    """

    clipping: Clipping = DEFAULT_CLIPPING
    metrics: tuple[ScalarMetric, ...] = ()
    scalar_noise_std: float | None = None

    def __post_init__(self) -> None:
        """Validate. See `Plan`."""
        super().__post_init__()
        if self.scalar_noise_std is not None:
            require_positive(scalar_noise_std=self.scalar_noise_std)

    @property
    def release(self) -> Release:
        """A round's release."""
        # Whether its noise is enough depends on the multiplier, which a draft does not have.
        scalar_noise_std = None if self.is_draft else self.scalar_noise_std
        return Release(
            clipping=self.clipping,
            metrics=self.metrics,
            scalar_noise_std=scalar_noise_std,
            contribution_check=self.contribution_check,
        )


@dataclass(frozen=True, kw_only=True)
class NormClippedPlan(Plan):
    """A kind that bounds updates by one norm, the same in every round.

    Fields: see `Plan`.
    """

    clipping: FixedClipping

    @property
    def release(self) -> Release:
        """One bounded sum, with at most a count beside it."""
        if not isinstance(self.clipping, FixedClipping):
            raise OptionError(
                f"a {self.kind} plan clips to one fixed norm: take fixed clipping, got "
                f"{self.clipping}",
                option="clipping",
            )
        return Release(clipping=self.clipping, contribution_check=self.contribution_check)
