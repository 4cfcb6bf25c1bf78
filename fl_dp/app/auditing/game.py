"""The distinguishing game on a strategy itself: worst-case neighbours, many rounds, one verdict.

    >>> report = audit_strategy(FlDp(noise_multiplier=0.25), rounds=1000, alpha=1e-6, delta=1e-5)
    >>> report.stands
    True

In each game two federations differ in what one client does. The strategy plays rounds with either;
from what it releases we bound how private a round can be at most, and compare with what its noise
multiplier claims. With little noise a thousand rounds tell nine tenths of it from all of it, so the
game has a noise multiplier of its own, by default 1/4: exactly 4-GDP.

The adversary sees the released models. It chooses what the other clients send, and does not see
who took part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2, norm

from fl_dp.accounting import gaussian_epsilon
from fl_dp.audit.bounds import gaussian_epsilon_of, most_that_clopper_pearson_shows
from fl_dp.audit.scores import bounds_of_scores, mu_of_shift
from fl_dp.audit.verdict import AuditReport, Finding

from .subjects import FlDp, Replies, Sent, Subject

GAME_MULTIPLIER = 0.25
_FEWER = 10  # games that a broken strategy loses by far need a tenth of the rounds
_RATE, _NODES, _COHORTS = 0.3, 10, 400


@dataclass(frozen=True, kw_only=True)
class Game:
    """Two neighbouring federations; updates in clipping norms.

    Attributes:
        name: What differs.
        without: Who replies what without the unit's contribution.
        with_unit: Who replies what with it.
        nodes: How many clients there are.
        full: Whether all rounds are played, or a tenth.
    """

    name: str
    without: Replies
    with_unit: Replies
    nodes: int
    full: bool = False


_LONG = Sent(first=3.0)  # clipped, so that a norm that adapts falls
_OTHER = {1: _LONG}

GAMES = (
    Game(
        name="one client moves the sum",
        without={0: Sent(first=1e-9)} | _OTHER,
        with_unit={0: Sent(first=1.0)} | _OTHER,
        nodes=2,
        full=True,
    ),
    Game(
        name="one update is zero",
        without={0: Sent(first=0.0)} | _OTHER,
        with_unit={0: Sent(first=1.0)} | _OTHER,
        nodes=2,
    ),
    Game(
        name="one update is long",
        without={0: Sent(first=1e-9)} | _OTHER,
        with_unit={0: Sent(first=2e6)} | _OTHER,
        nodes=2,
    ),
    Game(
        name="one client is silent",
        without={n: Sent(first=-1.0) for n in (1, 2, 3)},
        with_unit={n: Sent(first=1.0 if n == 0 else -1.0) for n in range(4)},
        nodes=4,
    ),
    Game(
        name="one client claims a billion records",
        without={0: Sent(first=1e-9), 1: Sent(first=-1.0)},
        with_unit={0: Sent(first=1.0, examples=10**9), 1: Sent(first=-1.0)},
        nodes=2,
    ),
    Game(
        name="one update is not finite",
        without={0: Sent(first=1e-9)} | _OTHER,
        with_unit={0: Sent(first=math.nan)} | _OTHER,
        nodes=2,
    ),
)


SIZE_OF_NOISE = "size of the noise"
NEW_NOISE = "noise is new in each round"
SILENCE = "noise tells nothing of who is silent"
COHORTS = "cohorts are the Poisson samples that are charged"


def names_of(subject: Subject) -> tuple[str, ...]:
    """Return the names of the tests that `audit_strategy` makes of a subject."""
    names = [game.name for game in GAMES]
    cohorts = [COHORTS] if isinstance(subject, FlDp) else []
    return (*names[:1], SIZE_OF_NOISE, NEW_NOISE, *names[1:], SILENCE, *cohorts)


def audit_strategy(
    subject: Subject,
    *,
    rounds: int,
    alpha: float,
    delta: float,
    only: Container[str] | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> AuditReport:
    """Play every game and look at the noise.

    Args:
        subject: What is audited.
        rounds: Of the longest game, in each of its two federations; others take a tenth.
        alpha: Probability that a strategy that keeps its claim is accused, over all tests.
        delta: Of the claim.
        only: Names of the tests to make; None: all of `names_of(subject)`.
        on_done: Called after each test.
    """
    names = names_of(subject)
    each = alpha / len(names)
    findings: list[Finding] = []
    idle: NDArray[np.float64] = np.empty((0, 0))  # what hides nothing in the longest game
    for name in names:
        if only is not None and name not in only:
            continue
        if name in (SIZE_OF_NOISE, NEW_NOISE) and not idle.size:
            idle = _played(subject, GAMES[0], rounds, each, delta)[1]
        if name == SIZE_OF_NOISE:
            finding = _noise_has_its_size(subject, idle, each, delta)
        elif name == NEW_NOISE:
            finding = _noise_is_new(idle, each)
        elif name == SILENCE:
            finding = _silence_is_not_seen(subject, _fewer(rounds), each)
        elif name == COHORTS:
            finding = _cohorts_are_binomial(subject, each)
        else:
            game = next(game for game in GAMES if game.name == name)
            finding, hidden = _played(subject, game, rounds, each, delta)
            idle = hidden if game.full else idle
        findings.append(finding)
        on_done()
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


def play_game(
    subject: Subject, game: Game, rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is released without the unit and with it, each of shape `(rounds, size)`.

    Released means are multiplied by the number of clients and divided by the clipping norm.
    """
    nodes = game.nodes + subject.crowd
    crowd = dict.fromkeys(range(game.nodes, nodes), _LONG)
    without, with_unit = (
        subject.play(_scaled({**replies, **crowd}, subject), nodes=nodes, rounds=rounds)[0]
        * (nodes / subject.clipping_norm)
        for replies in (game.without, game.with_unit)
    )
    return without, with_unit


def _scaled(replies: Replies, subject: Subject) -> Replies:
    return {
        node: Sent(first=sent.first * subject.clipping_norm, examples=sent.examples)
        for node, sent in replies.items()
    }


def _played(
    subject: Subject, game: Game, rounds: int, alpha: float, delta: float
) -> tuple[Finding, NDArray[np.float64]]:
    """Return what one game finds, and the coordinates of its releases that hide nothing."""
    rounds = rounds if game.full else _fewer(rounds)
    z = subject.noise_multiplier
    claim = gaussian_epsilon(z, delta)
    known = Finding(name=game.name, alpha=alpha, claim=claim, delta=delta)
    try:
        without, with_unit = play_game(subject, game, rounds)
    except Exception as error:  # of whatever class: an adversary sees that there is no model
        seen = f"the round fails ({type(error).__name__}), which tells who was there"
        return replace(known, caught=True, seen=seen), np.empty((0, 0))
    if not (np.isfinite(without).all() and np.isfinite(with_unit).all()):
        seen = "a released model is not finite, which tells who was there"
        return replace(known, caught=True, seen=seen), np.empty((0, 0))
    idle = np.concatenate([without[:, 1:], with_unit[:, 1:]])
    out, there = without[:, 0], with_unit[:, 0]
    mu = mu_of_shift(out, there, idle, alpha=alpha / 2.0)
    scored = bounds_of_scores(out, there, alpha=alpha / 2.0, delta=delta)
    half = rounds // 2
    most = most_that_clopper_pearson_shows(half, half, alpha=alpha / 4.0, delta=delta)
    # What shifts the bound beyond the claim in 19 of 20 audits.
    needed = 1.0 / z + (norm.isf(alpha / 4.0) + norm.isf(0.05)) * math.sqrt(2.0 / rounds)
    return (
        replace(
            known,
            bounds={
                "gaussian": gaussian_epsilon_of(mu, delta=delta),
                "clopper_pearson": scored.epsilon,
            },
            seen=f"mu at least {mu:.3g}, {1.0 / z:.3g} is claimed",
            power=f"catches noise below {1.0 / (z * needed):.0%} of what is claimed, 19 times of "
            f"20; Clopper-Pearson shows epsilon {most:.3g} at most",
        ),
        idle,
    )


def _noise_has_its_size(
    subject: Subject, idle: NDArray[np.float64], alpha: float, delta: float
) -> Finding:
    """Return the epsilon of the noise that is really there, by the chi-square law of its squares.

    Too little is a lower bound on epsilon; too much is noise for nothing, and said.
    """
    z = subject.noise_multiplier
    claim = gaussian_epsilon(z, delta)
    known = Finding(name=SIZE_OF_NOISE, alpha=alpha, claim=claim, delta=delta)
    if not idle.size:
        return replace(known, seen="no round was released")
    squares = float(np.square(idle).sum())
    largest = math.sqrt(squares / chi2.ppf(alpha / 2.0, idle.size))
    smallest = math.sqrt(squares / chi2.isf(alpha / 2.0, idle.size))
    return replace(
        known,
        bounds={"gaussian": gaussian_epsilon_of(1.0 / largest, delta=delta)},
        seen=f"multiplier between {smallest:.4g} and {largest:.4g}, {z:.4g} is claimed"
        + ("; more than the claim needs" if smallest > z else ""),
        power=f"catches {1.0 - smallest / largest:.1%} too little",
    )


def _noise_is_new(idle: NDArray[np.float64], alpha: float) -> Finding:
    """Correlate each round's noise with the next one's: zero, or one where it is used again."""
    if not idle.size:
        return Finding(name=NEW_NOISE, alpha=alpha, seen="no round was released")
    worst = 0.0
    halves = np.split(idle, 2)  # of the two federations
    pairs = [(each[:-1].ravel(), each[1:].ravel()) for each in halves]
    pairs.append((halves[0].ravel(), halves[1].ravel()))
    for before, after in pairs:
        size = math.sqrt(float((before**2).sum() * (after**2).sum()))
        worst = max(worst, abs(float((before * after).sum())) / size if size else 1.0)
    allowed = norm.isf(alpha / 6.0) / math.sqrt(idle.size // 2 - idle.shape[1])
    return Finding(
        name=NEW_NOISE,
        alpha=alpha,
        caught=worst > allowed,
        seen=f"correlation {worst:.3g} between rounds, {allowed:.3g} may be chance",
        power=f"catches a correlation of {2.0 * allowed:.2g} between rounds or federations",
    )


def _silence_is_not_seen(subject: Subject, rounds: int, alpha: float) -> Finding:
    """Compare the noise of rounds that nobody, half or all of four clients answered."""
    nodes = 4 + subject.crowd
    sizes = []
    for answering in (0, nodes // 2, nodes):
        replies = {node: Sent(first=0.2 * subject.clipping_norm) for node in range(answering)}
        try:
            released, _ = subject.play(replies, nodes=nodes, rounds=rounds)
        except Exception as error:  # as above
            seen = f"with {answering} replies the round fails ({type(error).__name__})"
            return Finding(name=SILENCE, alpha=alpha, caught=True, seen=seen)
        noise = released[:, 1:] * nodes / subject.clipping_norm
        sizes.append(math.sqrt(float(np.square(noise).mean())))
    count = rounds * (released.shape[1] - 1)
    low, high = chi2.ppf(alpha / 6.0, count) / count, chi2.isf(alpha / 6.0, count) / count
    mean = sum(size**2 for size in sizes) / len(sizes)
    return Finding(
        name=SILENCE,
        alpha=alpha,
        caught=not all(low <= size**2 / mean <= high for size in sizes),
        seen="multiplier " + ", ".join(f"{size:.3g}" for size in sizes) + ": none, half, all reply",
        power=f"catches noise that changes by {high - low:.0%} of its variance",
    )


def _cohorts_are_binomial(subject: Subject, alpha: float) -> Finding:
    """Count who is asked: a Poisson sample's sizes are binomial, those of k of N are one number."""
    _, asked = subject.play({}, nodes=_NODES, rounds=_COHORTS, rate=_RATE)
    expected = binom.pmf(np.arange(_NODES + 1), _NODES, _RATE) * _COHORTS
    common = expected >= 5
    counts = np.bincount(asked, minlength=_NODES + 1)
    cells = np.append(expected[common], expected[~common].sum())
    seen = np.append(counts[common], counts[~common].sum())
    pvalue = float(chi2.sf(((seen - cells) ** 2 / cells).sum(), len(cells) - 1))
    return Finding(
        name=COHORTS,
        alpha=alpha,
        caught=pvalue < alpha,
        seen=f"sizes of {_COHORTS} cohorts of {_NODES} clients, chi-square p = {pvalue:.2g}",
        power="catches k of N",
    )
