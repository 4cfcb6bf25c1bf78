"""Calibration: the noise, a schedule's scale or the rounds that spend a target.

Every search returns the safe end of its bracket: the result spends at most the target, at the
discretisation of reports. Above `VAST_EPSILON` it uses bounds in closed form, which are fast and
ask for a little more noise than distributions would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from scipy.optimize import brentq

from fl_dp.arguments import with_read_arguments
from fl_dp.mechanisms import ClientScheme, client_scheme
from fl_dp.option_errors import OptionError, require_positive, require_probability

from .bounds import tight_epsilon
from .budget import NeighboringRelation
from .calibration_cache import CachedCalibration, folder_of_calibrations
from .events import FrozenHistory, History, PoissonGaussianEvent, PrivacyEvent, freeze
from .loss_distributions import SEARCH_INTERVAL
from .noise_schedule import NoiseSchedule
from .renyi import renyi_epsilon

_LARGEST = 1e6
_SMALLEST = 1e-6  # below it no grid holds a vector
_RELATIVE_TOLERANCE = 1e-5
_MARGIN = 1e-9
_FAR = 0.01  # of the target: beyond it, one step along a slope is not trusted
_PROBES = (0.5, 1.0, 3.0)  # the releases at these noises identify a calibration
_CONSTANT = NoiseSchedule()


def schedule_history(
    schedule: NoiseSchedule, noise_multiplier: float, *, sampling_rate: float, rounds: int
) -> FrozenHistory:
    """A schedule's releases; its smallest noise multiplier is `noise_multiplier`."""
    releases: dict[PrivacyEvent, int] = {}
    for multiplier, count in Counter(schedule.multipliers(noise_multiplier, rounds)).items():
        event = PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=sampling_rate)
        releases[event] = count
    return freeze(releases)


@with_read_arguments()
def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    *,
    sampling_rate: float,
    rounds: int,
    schedule: NoiseSchedule = _CONSTANT,
    already_spent: History | None = None,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> float:
    """Return the smallest noise multiplier whose rounds spend at most the target.

    Args:
        target_epsilon: Positive and finite.
        target_delta: In (0, 1).
        sampling_rate: Each unit's probability per round, in (0, 1].
        rounds: Number of releases, at least 1.
        schedule: Change of the noise over the rounds; the returned multiplier is that of the rounds
            with the least noise.
        already_spent: Other releases under the same budget.
        neighboring_relation: Defines neighbours.

    Returns:
        Noise standard deviation on the sum over the clipping norm.

    Raises:
        ValueError: If an argument is out of range, or no multiplier is large enough.
    """
    return calibrate_noise(
        lambda z: schedule_history(schedule, z, sampling_rate=sampling_rate, rounds=rounds),
        target_epsilon,
        target_delta,
        already_spent=already_spent,
        neighboring_relation=neighboring_relation,
        context=f"in {rounds} rounds",
    )


def calibrate_noise(
    releases: Callable[[float], History],
    target_epsilon: float,
    target_delta: float,
    *,
    already_spent: History | None = None,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    context: str = "with these releases",
) -> float:
    """Return the smallest noise at which any releases spend at most the target.

    `releases` returns them at a noise, and spends less at more noise; `context` describes them in
    errors. The result is cached in the user's folder, and checked against the target before reuse:
    an edit there can only make the noise larger.

    Raises:
        ValueError: If an argument is out of range, or no noise is large enough.
    """
    require_positive(target_epsilon=target_epsilon)
    require_probability(target_delta=target_delta)
    before = freeze(already_spent or {})

    def total(noise: float) -> FrozenHistory:
        return freeze([*before, *freeze(releases(noise))])

    def excess(noise: float, interval: float | None) -> float:
        spent = tight_epsilon(
            total(noise),
            target_delta,
            neighboring_relation=neighboring_relation,
            interval=interval,
        )
        return spent - target_epsilon

    def fits(noise: float) -> bool:
        # A margin above rounding: the same plan must fit on another machine too.
        return excess(noise, None) <= -_MARGIN * target_epsilon

    cached: CachedCalibration | None = None
    noise: float | None = None
    if (folder := folder_of_calibrations()) is not None:
        probed = [total(probe) for probe in _PROBES]
        cached = CachedCalibration.of(
            folder, probed, target_epsilon, target_delta, neighboring_relation
        )
        noise = cached.read()
    if noise is not None and _SMALLEST <= noise <= 2.0 * _LARGEST and fits(noise):
        return noise

    def renyi_excess(noise: float) -> float:
        return renyi_epsilon(total(noise), target_delta, neighboring_relation) - target_epsilon

    def coarse_excess(noise: float) -> float:
        return excess(noise, SEARCH_INTERVAL)

    def fine_excess(noise: float) -> float:
        return excess(noise, None)

    # Renyi DP is quick and an upper bound: its root brackets the real one, and keeps the search
    # away from small noise, whose privacy-loss distributions are long and slow. But its finitely
    # many orders miss the smallest epsilons.
    by_renyi = True
    bracket = _bracket(renyi_excess)
    if bracket is None:
        by_renyi = False
        bracket = _bracket(coarse_excess)
    if bracket is None:
        on_top = " on top of what is spent already" if before else ""
        raise OptionError(
            f"no noise reaches epsilon {target_epsilon} at delta {target_delta} {context}{on_top}: "
            "allow a larger epsilon or fewer releases",
            option="epsilon",
        )
    low, high = bracket
    if low <= _SMALLEST:
        return high  # too small for any mechanism: not worth a search
    if by_renyi:
        low = float(brentq(renyi_excess, low, high, rtol=1e-4)) * (1.0 + 1e-3)
    low, high = _lowered(coarse_excess, low)
    root = float(brentq(coarse_excess, low, high, rtol=_RELATIVE_TOLERANCE))
    at_root = fine_excess(root)
    if at_root < coarse_excess(root) - _FAR * target_epsilon:
        # Each release spends so little that the coarse discretisation is most of it.
        low, high = _lowered(fine_excess, root)
        root = float(brentq(fine_excess, low, high, rtol=1e-4))
        at_root = fine_excess(root)
    # The fine discretisation spends a little less: follow the coarse curve's slope to it, once.
    step = 1e-3 * root
    slope = coarse_excess(root + step) - coarse_excess(root - step)
    fine = root
    if slope < 0.0:
        fine -= at_root / slope * 2.0 * step
    growth = 1e-7
    while not fits(fine):
        fine *= 1.0 + growth
        growth *= 2.0
    if cached is not None:
        cached.write(fine)
    return fine


def calibrate_client_scheme(
    name: str,
    target_epsilon: float,
    target_delta: float,
    *,
    participations: int,
    clipping_norm: float,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> ClientScheme:
    """The client scheme whose messages together spend the target.

    Privacy: for one client over at most `participations` messages, against the server, which sees
    each of them and its sender; sampling amplifies nothing here.

    Args:
        name: One of `fl_dp.mechanisms.schemes.SCHEMES`.
        target_epsilon: Positive and finite.
        target_delta: In (0, 1).
        participations: Cap on one client's messages.
        clipping_norm: Bound on each message before the noise, in the scheme's norm.
        neighboring_relation: Zero-out (against silence) or replace-one (against any other data).

    Raises:
        ValueError: If an argument is out of range.
    """
    if participations < 1:
        raise OptionError(
            f"participations must be at least 1, got {participations}", option="participations"
        )

    def build(noise_multiplier: float) -> ClientScheme:
        return client_scheme(name, noise_multiplier=noise_multiplier, clipping_norm=clipping_norm)

    noise_multiplier = calibrate_noise(
        lambda noise: {build(noise).event(): participations},
        target_epsilon,
        target_delta,
        neighboring_relation=neighboring_relation,
        context=f"in {participations} participations",
    )
    return build(noise_multiplier)


def _bracket(excess: Callable[[float], float]) -> tuple[float, float] | None:
    """Two noises, one double the other; only the larger fits.

    None if none up to the largest fits; a tiny lower one is not checked.
    """
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
        if high > _LARGEST:
            return None
    low = high / 2.0
    while low > _SMALLEST and excess(low) <= 0.0:
        high, low = low, low / 2.0
    return low, high


def _lowered(excess: Callable[[float], float], noise: float) -> tuple[float, float]:
    """A noise that does not fit and one close above that does, near `noise`."""
    low = high = noise
    while excess(low) <= 0.0:
        high, low = low, 0.85 * low
    while excess(high) > 0.0:
        low, high = high, high / 0.85
    return low, high


def affordable_rounds(
    history: History,
    event: PrivacyEvent,
    target_epsilon: float,
    target_delta: float,
    *,
    at_most: int,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> int:
    """How many more times `event` fits after `history`, up to `at_most`."""
    require_positive(target_epsilon=target_epsilon)
    require_probability(target_delta=target_delta)
    before = freeze(history)

    def fits(count: int) -> bool:
        total = [*before, (event, count)]
        spent = tight_epsilon(total, target_delta, neighboring_relation=neighboring_relation)
        return spent <= target_epsilon

    def surely_fits(count: int) -> bool:
        total = freeze([*before, (event, count)])
        return renyi_epsilon(total, target_delta, neighboring_relation) <= target_epsilon

    if surely_fits(at_most):
        return at_most
    # Renyi DP is quick and never fits more: the search by distributions starts from its answer.
    low = _largest(surely_fits, 0, at_most)
    return _largest(fits, low, at_most)


def _largest(fits: Callable[[int], bool], low: int, at_most: int) -> int:
    """The largest count up to `at_most` that fits; `low` does (or is 0)."""
    step = max(1, low // 4)
    high = low
    while True:
        high = min(at_most + 1, high + step)
        if high > at_most or not fits(high):
            break
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
