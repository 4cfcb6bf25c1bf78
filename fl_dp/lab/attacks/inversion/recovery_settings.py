"""The group of keys `recovery`: images or text recovered from what training shows.

Only settings composed with the lab have it; else the defaults hold.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from fl_dp.app.settings import Settings
from fl_dp.app.settings.checks import at_least, between_0_and_1, distinct, one_of, positive
from fl_dp.option_errors import OptionError

from .registry import ATTACKS, THREATS

_NOISE = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 1.0)


@dataclass(kw_only=True)
class RecoverySettings:
    """Images recovered from updates, in place of a training: `experiment=data_recovery`.

    Attributes:
        attacks: Some of `analytic`, `dlg`, `idlg` and `inverting_gradients`, or of text
            `token_spans` (`experiment=text_recovery`); null trains.
        threats: What the adversary sees, some of `raw`, `local_steps` (after `client.epochs`
            steps), `clipped`, `secure_sum`, `client_noise`, `released`, `released_others_known`,
            `secure_sum_noise` and `dp_sgd`; null means all.
        noise_multipliers: Noise multipliers of each threat with noise; null is 0.0001, 0.001, 0.01,
            0.03, 0.1 and 1.
        images: Clients that are attacked, for each seed.
        records: Images of a client.
        cohort: Clients of a released model and of a secure sum.
        seeds: Repetitions with other images, weights and first guesses, from `seed` on.
        steps: Steps of an attack's search.
        resistance: Also measure, without noise, larger batches, more local epochs, dropout and
            batch statistics.
        delta: Delta at which each noise's epsilon is given.
    """

    attacks: list[str] | None = None
    threats: list[str] | None = None
    noise_multipliers: list[float] | None = None
    images: int = 4
    records: int = 1
    cohort: int = 8
    seeds: int = 3
    steps: int = 300
    resistance: bool = True
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Check the values."""
        _some_of("recovery.attacks", self.attacks, tuple(ATTACKS))
        _some_of("recovery.threats", self.threats, THREATS)
        for key in ("images", "records", "seeds", "steps"):
            at_least(f"recovery.{key}", getattr(self, key), 1)
        at_least("recovery.cohort", self.cohort, 2)
        between_0_and_1("recovery.delta", self.delta)
        if self.noise_multipliers is not None and not self.noise_multipliers:
            raise OptionError(
                "recovery.noise_multipliers is empty: leave it out, or write [0.01, 1]"
            )
        for noise in self.noise_multipliers or ():
            positive("recovery.noise_multipliers", noise)
        if self.attacks is None:
            self._require_defaults()

    def _require_defaults(self) -> None:
        unused = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                unused.append(f"recovery.{field.name}={value}")
        if unused:
            raise ValueError(
                f"{', '.join(unused)} is for an attack, and none is asked for: write "
                "experiment=data_recovery too, or leave it out"
            )

    @property
    def noise(self) -> tuple[float, ...]:
        """The noise multipliers, rising."""
        return tuple(sorted(set(self.noise_multipliers or _NOISE)))


def recovery_settings_of(settings: Settings) -> RecoverySettings:
    """The group `recovery` of a run's settings."""
    group = getattr(settings, "recovery", None)
    return group if isinstance(group, RecoverySettings) else RecoverySettings()


def _some_of(key: str, names: list[str] | None, choices: tuple[str, ...]) -> None:
    distinct(key, names, least=1)
    for name in names or ():
        one_of(key, name, choices)
