"""Settings of `fl-dp attack inversion`: images or text recovered from what training shows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fl_dp.option_errors import OptionError

from .checks import at_least, between_0_and_1, distinct, one_of, positive

WITHOUT_NOISE = ("raw", "local_steps", "clipped", "secure_sum")
WITH_NOISE = (
    "client_noise",
    "released_others_known",
    "released",
    "secure_sum_noise",
    "dp_sgd",
)
THREATS = (*WITHOUT_NOISE, *WITH_NOISE)
"""Views of the adversary, in the order in which they are shown."""

_NOISE = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 1.0)


@dataclass(kw_only=True)
class RecoverySettings:
    """Images recovered from updates, by `fl-dp attack inversion experiment=data_recovery`.

    Attributes:
        attacks: Some of `analytic`, `dlg`, `idlg` and `inverting_gradients`, or of text
            `token_spans` (`experiment=text_recovery`); needed by `fl-dp attack inversion`.
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
        distinct("recovery.attacks", self.attacks, least=1)
        distinct("recovery.threats", self.threats, least=1)
        for name in self.threats or ():
            one_of("recovery.threats", name, THREATS)
        for key in ("images", "records", "seeds", "steps"):
            at_least(f"recovery.{key}", getattr(self, key), 1)
        at_least("recovery.cohort", self.cohort, 2)
        between_0_and_1("recovery.delta", self.delta)
        if self.noise_multipliers is not None and not self.noise_multipliers:
            raise OptionError(
                "recovery.noise_multipliers is empty: leave it out, or write [0.01, 1]",
                option="recovery.noise_multipliers",
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
            raise OptionError(
                f"{', '.join(unused)} is for an attack, and none is asked for: write "
                "experiment=data_recovery too, or leave it out",
                options=[text.partition("=")[0] for text in unused],
            )

    @property
    def noise(self) -> tuple[float, ...]:
        """The noise multipliers, rising."""
        return tuple(sorted(set(self.noise_multipliers or _NOISE)))

    def require_none(self) -> None:
        """Check that a training is meant, not an attack on one.

        Raises:
            ValueError: If it is an attack; the text names its command.
        """
        if self.attacks is not None:
            raise OptionError(
                f"recovery.attacks={','.join(self.attacks)} attacks updates and trains nothing: "
                "give `fl-dp attack inversion` these settings",
                option="recovery.attacks",
            )
