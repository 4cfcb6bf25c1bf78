"""The distinguishing game on a strategy itself: worst-case neighbours, many rounds, one verdict.

    >>> report = audit_strategy(FlDp(noise_multiplier=0.25), rounds=1000, alpha=1e-6, delta=1e-5)
    >>> report.stands
    True

In each game two federations differ in what one client does. The strategy plays rounds with either;
its releases bound a round's privacy loss from below, beside the noise multiplier's claim. With
little noise a thousand rounds show nine tenths of the claim: a multiplier of 1/4 is exactly 4-GDP.

The adversary sees the released models, chooses what the other clients send, and does not see who
took part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from game_subjects import FlDp, Replies, Sent, Subject, direction
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.lab.audit.cohorts import COHORTS, cohorts_are_poisson
from fl_dp.lab.audit.lower_bounds import gaussian_epsilon_of, most_that_clopper_pearson_shows
from fl_dp.lab.audit.noise_findings import (
    NEW_COORDINATES,
    NEW_NOISE,
    SIZE_OF_NOISE,
    coordinates_are_new,
    deviation_of,
    noise_has_one_size,
    noise_is_new,
    size_pvalue,
)
from fl_dp.lab.audit.scores import bounds_of_scores
from fl_dp.lab.audit.verdict import AuditReport, Finding

_FEWER = 10  # games that a broken strategy loses clearly need a tenth of the rounds
_RATE, _NODES, _COHORTS = 0.3, 10, 400


_LONG = Sent(first=3.0)  # clipped, so that a norm that adapts falls
_OTHER = {1: _LONG}
_OPPOSITE = {1: Sent(first=-3.0)}
_HARDLY_THERE = {0: Sent(first=1e-9)}


@dataclass(frozen=True, kw_only=True)
class Game:
    """Two neighbouring federations; updates in clipping norms.

    Attributes:
        name: Their difference.
        with_unit: Replies with the unit's contribution, by client.
        without: Replies without it.
        full: Whether all rounds are played, or a tenth.
        spread: Whether updates lie along all coordinates alike, or along the first.
        distance: Largest distance of the two sums, in clipping norms.
    """

    name: str
    with_unit: Replies
    without: Replies = field(default_factory=lambda: _HARDLY_THERE | _OTHER)
    nodes: int = 2
    full: bool = False
    spread: bool = False
    distance: float = 1.0


GAMES = (
    Game(name="one client moves the sum", with_unit={0: Sent(first=1.0)} | _OTHER, full=True),
    Game(
        name="one update is zero",
        without={0: Sent(first=0.0)} | _OPPOSITE,
        with_unit={0: Sent(first=1.0)} | _OPPOSITE,
    ),
    Game(name="one update is long", with_unit={0: Sent(first=2e6)} | _OTHER),
    Game(
        name="one client is silent",
        without={n: Sent(first=-1.0) for n in (1, 2, 3)},
        with_unit={0: Sent(first=1.0)} | {n: Sent(first=-1.0) for n in (1, 2, 3)},
        nodes=4,
    ),
    Game(
        name="one client claims a billion records",
        without=_HARDLY_THERE | {1: Sent(first=-1.0)},
        with_unit={0: Sent(first=1.0, examples=10**9), 1: Sent(first=-1.0)},
    ),
    Game(name="one update is not finite", with_unit={0: Sent(first=math.nan)} | _OTHER),
    Game(
        name="one update is long in every coordinate",
        with_unit={0: Sent(first=2e6)} | _OTHER,
        spread=True,
    ),
    Game(
        name="one client's update is replaced",
        without={0: Sent(first=-2e6)} | _OTHER,
        with_unit={0: Sent(first=2e6)} | _OTHER,
        distance=2.0,
    ),
)


SENT = "noise has one size whatever is sent"
SILENCE = "noise tells nothing of who is silent"
COHORT_SIZE = "noise and denominator are the same whatever the cohort"


def names_of(subject: Subject) -> tuple[str, ...]:
    """The names of the tests in `audit_strategy`."""
    names = [game.name for game in GAMES]
    noise = [SIZE_OF_NOISE, NEW_NOISE, NEW_COORDINATES]
    cohorts = [COHORT_SIZE, COHORTS] if isinstance(subject, FlDp) else []
    return (*names[:1], *noise, *names[1:], SENT, SILENCE, *cohorts)


def audit_strategy(
    subject: Subject,
    *,
    rounds: int,
    alpha: float,
    delta: float,
    only: Container[str] | None = None,
) -> AuditReport:
    """Play every game and test the noise.

    The longest game takes `rounds` with each federation, others a tenth. A strategy that keeps its
    claim, at `delta`, is accused with probability `alpha`, over all tests. `only` names the tests
    to make; None: all of `names_of(subject)`.
    """
    names = names_of(subject)
    level = alpha / len(names)
    plays = _Plays(subject, rounds)
    tests: dict[str, Callable[[], Finding]] = {
        SIZE_OF_NOISE: lambda: _noise_has_its_size(subject, plays.idle, level, delta),
        NEW_NOISE: lambda: noise_is_new(plays.idle, alpha=level),
        NEW_COORDINATES: lambda: coordinates_are_new(plays.idle, alpha=level),
        SENT: lambda: _replies_leave_noise_alone(plays, level),
        SILENCE: lambda: _silence_leaves_noise_alone(subject, _fewer(rounds), level),
        COHORT_SIZE: lambda: _cohorts_leave_noise_alone(subject, plays, level),
        COHORTS: lambda: cohorts_are_poisson(plays.cohorts[1], _RATE, alpha=level),
    }
    for game in GAMES:
        tests[game.name] = partial(_finding_of_game, subject, game, plays, level, delta)
    findings = [tests[name]() for name in names if only is None or name in only]
    return AuditReport(
        subject=f"{subject.name}; noise multiplier {subject.noise_multiplier:g}",
        findings=tuple(findings),
        notes=(
            f"{rounds} rounds with and without one client; the adversary sees every release",
            "a strategy passes if no test contradicts it; that proves no privacy",
        ),
    )


def _fewer(rounds: int) -> int:
    return max(_FEWER, rounds // _FEWER)


@dataclass(frozen=True, kw_only=True)
class _Play:
    """A game's releases along its direction, in clipping norms of the sum.

    `idle` has those across the direction, first without and then with the unit: noise alone, one
    row per round.
    """

    without: NDArray[np.float64]
    with_unit: NDArray[np.float64]
    idle: NDArray[np.float64]


@dataclass(frozen=True)
class _FailedPlay:
    """A game that released no finite model: the adversary learns who took part."""

    reason: str


class _Plays:
    """A subject's plays; each game is played once for all tests."""

    def __init__(self, subject: Subject, rounds: int) -> None:
        self._subject = subject
        self._rounds = rounds
        self._plays: dict[str, _Play | _FailedPlay] = {}

    def of(self, game: Game) -> _Play | _FailedPlay:
        """A game's releases, or how it failed."""
        if game.name not in self._plays:
            self._plays[game.name] = self._play(game)
        return self._plays[game.name]

    @property
    def idle(self) -> NDArray[np.float64]:
        """The longest game's noise where it hides nothing; no rows if the game failed."""
        longest = self.of(GAMES[0])
        return np.empty((0, 0)) if isinstance(longest, _FailedPlay) else longest.idle

    def _play(self, game: Game) -> _Play | _FailedPlay:
        rounds = self._rounds if game.full else _fewer(self._rounds)
        try:
            without, with_unit = play_game(self._subject, game, rounds)
        except Exception as error:  # of any class: the adversary sees that there is no model
            return _FailedPlay(
                f"the round fails ({type(error).__name__}), which tells who was there"
            )
        if not (np.isfinite(without).all() and np.isfinite(with_unit).all()):
            return _FailedPlay("a released model is not finite, which tells who was there")
        return _Play(
            without=without[:, 0],
            with_unit=with_unit[:, 0],
            idle=np.concatenate([without[:, 1:], with_unit[:, 1:]]),
        )

    @cached_property
    def cohorts(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Releases of rounds with drawn cohorts, and who was asked; half of the nodes send zero.

        In clipping norms of the sum, which is turned to the first coordinate.
        """
        subject, senders = self._subject, _NODES // 2
        replies = dict.fromkeys(range(senders), _LONG)
        replies |= dict.fromkeys(range(senders, _NODES), Sent(first=0.0))
        released, asked = subject.play(
            _scaled(replies, subject, spread=True), nodes=_NODES, rounds=_COHORTS, rate=_RATE
        )
        sums = _turned(released, direction(spread=True))
        sums *= _RATE * _NODES / subject.clipping_norm
        return sums, asked


def play_game(
    subject: Subject, game: Game, rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Play a game; return the releases without the unit and with it, each `(rounds, size)`.

    Means are multiplied by the number of clients, divided by the clipping norm and turned: the
    first coordinate is the game's direction.
    """
    nodes = game.nodes + subject.crowd
    crowd = dict.fromkeys(range(game.nodes, nodes), _LONG)

    def sums(replies: Replies) -> NDArray[np.float64]:
        scaled = _scaled({**replies, **crowd}, subject, spread=game.spread)
        means, _ = subject.play(scaled, nodes=nodes, rounds=rounds)
        return _turned(means * (nodes / subject.clipping_norm), direction(spread=game.spread))

    return sums(game.without), sums(game.with_unit)


def _turned(rows: NDArray[np.float64], towards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reflect rows: a direction of length 1 becomes the first coordinate."""
    normal = towards - direction(spread=False)
    square = float(normal @ normal)
    if not square:
        return rows
    return rows - np.outer(rows @ normal, 2.0 / square * normal)


def _scaled(replies: Replies, subject: Subject, *, spread: bool = False) -> Replies:
    return {
        node: replace(sent, first=sent.first * subject.clipping_norm, spread=spread)
        for node, sent in replies.items()
    }


def _finding_of_game(
    subject: Subject, game: Game, plays: _Plays, alpha: float, delta: float
) -> Finding:
    play = plays.of(game)
    claimed = game.distance / subject.noise_multiplier
    claim = gaussian_epsilon_of(claimed, delta=delta)
    finding = Finding(name=game.name, alpha=alpha, claim=claim, delta=delta)
    if isinstance(play, _FailedPlay):
        return replace(finding, caught=True, observed=play.reason)
    without, with_unit = play.without, play.with_unit
    mu = _mu_of_shift(without, with_unit, play.idle, alpha=alpha / 2.0)
    scored = bounds_of_scores(without, with_unit, alpha=alpha / 2.0, delta=delta)
    half = len(without) // 2
    most = most_that_clopper_pearson_shows(half, half, alpha=alpha / 4.0, delta=delta)
    # What shifts the bound beyond the claim in 19 of 20 audits.
    needed = claimed + (norm.isf(alpha / 4.0) + norm.isf(0.05)) * math.sqrt(2.0 / len(without))
    return replace(
        finding,
        bounds={
            "gaussian": gaussian_epsilon_of(mu, delta=delta),
            "clopper_pearson": scored.epsilon,
        },
        observed=f"mu at least {mu:.3g}, {claimed:.3g} is claimed",
        power=f"catches noise below {claimed / needed:.0%} of what is claimed, 19 times of "
        f"20; Clopper-Pearson shows epsilon {most:.3g} at most",
    )


def _mu_of_shift(
    without: NDArray[np.float64],
    with_secret: NDArray[np.float64],
    idle: NDArray[np.float64],
    *,
    alpha: float,
) -> float:
    """A lower bound on mu for Gaussian noise that a secret shifts, 0 if nothing is shown.

    It is the distance of the means over the noise's deviation, less its error. So it uses every
    digit of the scores, not only their side of a threshold. Infinity without noise.

    `idle` has independent draws of the same noise, mean zero, where nothing is hidden. The bound
    is too large with probability `alpha`.
    """
    # Var(mean_1 - mean_0) = 1/n_0 + 1/n_1 in deviations of the noise.
    # One half of alpha for the mean's error, the other for the deviation's.
    largest = deviation_of(idle, alpha=alpha)[1]
    apart = abs(float(with_secret.mean() - without.mean()))
    if largest == 0.0:
        return math.inf if apart > 0.0 else 0.0
    error = float(norm.isf(alpha / 2.0)) * math.sqrt(1.0 / len(without) + 1.0 / len(with_secret))
    return max(0.0, apart / largest - error)


def _noise_has_its_size(
    subject: Subject, idle: NDArray[np.float64], alpha: float, delta: float
) -> Finding:
    """The epsilon of the measured noise, by the chi-square law of its squares.

    Too little noise bounds epsilon from below. Too much is reported: it is for nothing.
    """
    z = subject.noise_multiplier
    claim = gaussian_epsilon(z, delta)
    finding = Finding(name=SIZE_OF_NOISE, alpha=alpha, claim=claim, delta=delta)
    if not idle.size:
        return replace(finding, observed="no round was released")
    smallest, largest = deviation_of(idle, alpha=alpha)
    least_ratio, mu = 1.0, math.inf
    if largest > 0.0:
        least_ratio, mu = smallest / largest, 1.0 / largest
    surplus = "; more than the claim needs" if smallest > z else ""
    return replace(
        finding,
        bounds={"gaussian": gaussian_epsilon_of(mu, delta=delta)},
        observed=(
            f"multiplier between {smallest:.4g} and {largest:.4g}, {z:.4g} is claimed{surplus}"
        ),
        power=f"catches {1.0 - least_ratio:.1%} too little",
    )


def _replies_leave_noise_alone(plays: _Plays, alpha: float) -> Finding:
    """Compare the two federations' noise in each game that did not fail."""
    released = [play for play in map(plays.of, GAMES) if isinstance(play, _Play)]
    idle = [play.idle for play in released]
    if not idle:
        return Finding(name=SENT, alpha=alpha, observed="no round was released")
    least, ratios = 1.0, []
    for rows in idle:
        energies, half = np.square(rows).sum(axis=1), len(rows) // 2
        least = min(least, size_pvalue(energies, rows.shape[1], np.arange(len(rows)) < half))
        ratios.append(math.sqrt(float(energies[:half].sum() / max(energies[half:].sum(), 1e-300))))
    fewest = min(rows.size for rows in idle) // 2
    return Finding(
        name=SENT,
        alpha=alpha,
        caught=least < alpha / len(idle),
        observed=f"between {min(ratios):.3g} and {max(ratios):.3g} times as large without the "
        f"contribution as with it in {len(idle)} games",
        power=f"catches {norm.isf(alpha / (2.0 * len(idle))) / math.sqrt(fewest):.0%} in each game",
    )


def _silence_leaves_noise_alone(subject: Subject, rounds: int, alpha: float) -> Finding:
    """Compare the noise of rounds that none, half or all clients answered."""
    nodes = 4 + subject.crowd
    energies = []
    for answering in (0, nodes // 2, nodes):
        replies = {node: Sent(first=0.2 * subject.clipping_norm) for node in range(answering)}
        try:
            released, _ = subject.play(replies, nodes=nodes, rounds=rounds)
        except Exception as error:  # as above
            reason = f"with {answering} replies the round fails ({type(error).__name__})"
            return Finding(name=SILENCE, alpha=alpha, caught=True, observed=reason)
        noise = released[:, 1:] * nodes / subject.clipping_norm
        energies.append(np.square(noise).sum(axis=1))
    draws, rows = released.shape[1] - 1, np.concatenate(energies)
    sizes = [math.sqrt(float(squares.mean()) / draws) for squares in energies]
    group = np.repeat(np.arange(3), rounds)
    least = min(size_pvalue(rows, draws, group == number) for number in range(3))
    listed = ", ".join(f"{size:.3g}" for size in sizes)
    return Finding(
        name=SILENCE,
        alpha=alpha,
        caught=least < alpha / 3.0,
        observed=f"multiplier {listed}: none, half, all reply",
        power=f"catches {norm.isf(alpha / 6.0) / math.sqrt(rounds * draws):.0%}",
    )


def _cohorts_leave_noise_alone(subject: Subject, plays: _Plays, alpha: float) -> Finding:
    """Compare rounds' noise with the number of drawn nodes, and with what they sent.

    A long update may add any amount up to one clipping norm, but the same in each round.
    """
    sums, asked = plays.cohorts
    drawn, sending = asked.sum(axis=1), asked[:, : _NODES // 2].sum(axis=1)
    size = noise_has_one_size(sums[:, 1:], alpha=alpha / 3.0, cohorts=drawn)
    # Given the cohorts, Gaussians around `added * sending`: nothing is left that a constant or the
    # number of those drawn explains, but a chi-square of two degrees of freedom.
    along, senders = sums[:, 0] / subject.noise_multiplier, sending[:, None].astype(np.float64)
    regressors = np.column_stack([senders, np.ones(len(drawn)), drawn])
    added = np.linalg.lstsq(senders, along, rcond=None)[0]
    explained = np.square(regressors @ np.linalg.lstsq(regressors, along, rcond=None)[0])
    surplus = max(0.0, float(explained.sum() - np.square(senders @ added).sum()))
    error = 1.0 / max(float(np.linalg.norm(senders)), 1e-300)
    beyond = (float(added[0]) - 1.0 / subject.noise_multiplier) / error
    most, chance = float(chi2.isf(alpha / 3.0, 2)), float(norm.isf(alpha / 3.0))
    return replace(
        size,
        name=COHORT_SIZE,
        alpha=alpha,
        caught=size.caught or surplus > most or beyond > chance,
        observed=f"{size.observed}; of what is not the sum, a constant and the number of those "
        f"drawn explain {surplus:.2g} squared deviations, {most:.2g} may be chance",
        power=f"{size.power}, and a denominator of the replies, the drawn or the updates",
    )
