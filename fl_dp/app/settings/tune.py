"""Settings of a paid choice of hyper-parameters before a training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fl_dp.option_errors import OptionError

from .checks import at_least, distinct, one_of

_IDLE = {
    "vote": ("mean_runs", "shape"),
    "stopping": ("share", "rounds"),
    "public": ("share", "mean_runs", "shape"),
}
_BY = tuple(_IDLE)


@dataclass(kw_only=True)
class TuneSettings:
    """Choice of hyper-parameters, which `fl-dp tune` makes, and what pays for it.

    Attributes:
        by: `vote` (by clients, on their own data), `stopping` (the best of a random number of
            trainings) or `public` (on public test rows, uncharged).
        candidates: Settings to choose among, which `fl-dp tune KEY=A,B` writes. Null: none.
        share: Part of `privacy.epsilon` that a vote costs, in (0, 1).
        rounds: Most rounds of a trial. If the run has more, each round of a trial gets more noise.
        mean_runs: Expected number of trainings, for `stopping`.
        shape: Shape of that number's law, a truncated negative binomial: 1 is geometric, 0
            logarithmic (cheaper, more varied).
        chosen: The chosen candidate, which a run writes for itself: leave it out.
    """

    by: str = field(default="vote", metadata={"choices": _BY})
    candidates: list[str] | None = None
    share: float = 0.1
    rounds: int = 20
    mean_runs: float = 5.0
    shape: float = 1.0
    chosen: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        one_of("tune.by", self.by, _BY)
        distinct("tune.candidates", self.candidates, least=2)
        if not 0.0 < self.share < 1.0:
            raise OptionError(
                f"tune.share must lie in (0, 1), got {self.share}: write for example 0.1, a "
                "tenth of privacy.epsilon",
                option="tune.share",
            )
        at_least("tune.rounds", self.rounds, 1)
        if not 1.0 < self.mean_runs <= 1000.0:
            raise OptionError(
                f"tune.mean_runs must be above 1 and at most 1000, got {self.mean_runs}: "
                "write for example 5",
                option="tune.mean_runs",
            )
        if not 0.0 <= self.shape <= 100.0:
            raise OptionError(
                f"tune.shape must lie in [0, 100], got {self.shape}: write for example 1, the "
                "geometric law",
                option="tune.shape",
            )
        self._require_used()

    def _require_used(self) -> None:
        """Refuse a key that this way of choosing ignores: a paid choice must not be misspelt."""
        changed = {
            field.name for field in fields(self) if getattr(self, field.name) != field.default
        }
        if self.candidates is None and changed:
            raise OptionError(
                f"tune.{min(changed)} is for a choice among candidates: write `fl-dp tune "
                "KEY=A,B`, or leave it out",
                option=f"tune.{min(changed)}",
            )
        if self.chosen is not None and self.chosen not in (self.candidates or ()):
            raise OptionError(
                f"tune.chosen is none of tune.candidates, got '{self.chosen}'", option="tune.chosen"
            )
        for key in _IDLE[self.by]:
            if key in changed:
                raise OptionError(
                    f"tune.{key} has no part in tune.by={self.by}: leave it out",
                    option=f"tune.{key}",
                )

    @property
    def pending(self) -> bool:
        """Whether there is something to choose that was not chosen yet."""
        return self.candidates is not None and self.chosen is None
