"""The flat keywords of a plan's one-line doors, sorted into the objects that own them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Required, TypedDict, get_type_hints

from fl_dp.accounting import (
    History,
    NeighboringRelation,
    NoiseSchedule,
    PlateauSchedule,
    PoissonSampling,
    Sampling,
    VisibleSampling,
    freeze,
)
from fl_dp.accounting.shared_noise import usual_colluding
from fl_dp.mechanisms import Clipping, FixedClipping, ScalarMetric
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.option_errors import IncompatibleOptions, OptionError

from .arguments import require_known, require_types
from .correlation import Banded
from .distributed_noise import DistributedNoise, SecureSum
from .hosting import Hosting
from .noise import CentralNoise, ClientNoise, Noise
from .release import Release


class PlanArguments(TypedDict, total=False):
    """Keywords of a plan's doors: rounds and roster, sampling and clipping, and the options.

    `sampling_rate` is short for a `PoissonSampling`, and `clipping_norm` for a `FixedClipping`. The
    others are attributes of `PrivacyPlan`, `Release`, `Hosting` or the noise: `CentralNoise`,
    `ClientNoise` if `client_scheme` is given, or `DistributedNoise` if `secure_sum` is.
    """

    rounds: Required[int]
    num_clients: Required[int]
    sampling_rate: float | None
    sampling: Sampling | None
    clipping_norm: float | None
    clipping: Clipping | None
    neighboring_relation: NeighboringRelation
    schedule: NoiseSchedule
    plateau: PlateauSchedule | None
    correlation: Banded | None
    participation_cap: int | None
    other_releases: History
    metrics: tuple[ScalarMetric, ...]
    scalar_noise_std: float | None
    total_weight: float | None
    capped_denominator: bool
    client_scheme: str | None
    secure_sum: SecureSum | None
    unit: str
    units_per_node: int
    coins_at_nodes: bool
    nodes: int | None
    contribution_check: bool


def plan_fields(
    *,
    noise_multiplier: float,
    sampling_rate: float | None = None,
    sampling: Sampling | None = None,
    clipping_norm: float | None = None,
    clipping: Clipping | None = None,
    client_scheme: str | None = None,
    secure_sum: SecureSum | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of `PrivacyPlan` that flat keywords stand for.

    Args:
        noise_multiplier: Of the noise.
        sampling_rate: Short for `sampling=PoissonSampling(sampling_rate=...)`.
        sampling: How each cohort is sampled.
        clipping_norm: Short for `clipping=FixedClipping(norm=...)`.
        clipping: What bounds an update; `DEFAULT_CLIPPING` if both are left out.
        client_scheme: Each client adds noise of this scheme itself; None: the server adds it.
        secure_sum: Each node adds a share of the noise under masks; None: the server adds it.
        **options: Fields of a plan and of its parts.

    Raises:
        ValueError: If two of them say the same, or an option is of another kind of noise.
    """
    options |= {"clipping": _one_clipping(clipping_norm, clipping, client_scheme)}
    of_noise = _taken(options, CentralNoise) | {"multiplier": noise_multiplier}
    if "other_releases" in options:
        options["other_releases"] = freeze(options["other_releases"])
    hosting = Hosting(**_taken(options, Hosting))
    sampled = _one_sampling(sampling_rate, sampling)
    if secure_sum is None:
        noise = _noise(of_noise, client_scheme)
    else:
        noise = _shared_noise(of_noise, client_scheme, secure_sum, sampled, hosting, options)
    return {
        "release": Release(**_taken(options, Release)),
        "hosting": hosting,
        "noise": noise,
        "sampling": sampled,
        **options,
    }


def require_plan_arguments(given: Mapping[str, Any], *, of: str) -> None:
    """Refuse an argument that a plan does not have, or of the wrong type.

    Raises:
        TypeError: With the nearest right name, or what to write.
    """
    hints = get_type_hints(PlanArguments)
    require_known(given, hints, of=of)
    # A clipping rule is checked by `Release`, whose error says where rules are described.
    require_types({name: each for name, each in given.items() if name != "clipping"}, hints)


def _taken(options: dict[str, Any], owner: type) -> dict[str, Any]:
    """Take out the options that are fields of `owner`."""
    names = {each.name for each in fields(owner)}
    return {name: options.pop(name) for name in list(options) if name in names}


def _noise(given: Mapping[str, Any], client_scheme: str | None) -> Noise:
    if client_scheme is None:
        return CentralNoise(**given)
    others = dict(given)
    own = _taken(others, ClientNoise)
    for name, value in others.items():
        if value is not None:
            raise IncompatibleOptions(
                f"{{{name}}} needs noise at the server: leave {{client_scheme}} out"
            )
    return ClientNoise(**own, scheme=client_scheme)


def _shared_noise(
    given: Mapping[str, Any],
    client_scheme: str | None,
    secure_sum: SecureSum,
    sampling: Sampling,
    hosting: Hosting,
    options: Mapping[str, Any],
) -> Noise:
    if client_scheme is not None:
        raise IncompatibleOptions(
            "{client_scheme} and {secure_sum} are two answers to who adds the noise: leave one out"
        )
    others = dict(given)
    own = _taken(others, Noise)
    if others.pop("correlation", None) is not None:
        raise IncompatibleOptions(
            "correlated noise takes earlier noise away, which nobody knows where it is in shares: "
            "leave {correlation} or {secure_sum} out"
        )
    for name, value in others.items():
        if value is not None:
            raise IncompatibleOptions(
                f"{{{name}}} chooses noise from what was released, and shares are fixed before: "
                "leave {secure_sum} out"
            )
    units: int = options["num_clients"]
    if isinstance(sampling, VisibleSampling):
        if secure_sum.roster and secure_sum.colluding is None:
            # A server that lies chooses the cohort, and all who collude may be in it.
            usual = usual_colluding(hosting.nodes_of(units))
            if sampling.cohort < usual + 2:
                raise OptionError(
                    f"of {units} nodes {usual} may collude, and a server that lies would put them "
                    f"all into one cohort: write {{sampling=VisibleSampling(cohort={usual + 2})}} "
                    f"or more, got {sampling.cohort}, or {{secure_sum.colluding=...}}"
                )
            secure_sum = replace(secure_sum, colluding=usual)
        units = sampling.cohort
    return DistributedNoise(
        **own,
        nodes=hosting.nodes_of(units),
        units_in_sum=hosting.most_drawn(sampling),
        sums=options["rounds"] + sum(count for _, count in options.get("other_releases", ())),
        secure_sum=secure_sum,
    )


def _one_sampling(rate: float | None, sampling: Sampling | None) -> Sampling:
    if (rate is None) == (sampling is None):
        raise IncompatibleOptions("give either {sampling_rate} or {sampling}")
    return sampling if sampling is not None else PoissonSampling(sampling_rate=rate or 0.0)


def _one_clipping(
    norm: float | None, clipping: Clipping | None, client_scheme: str | None
) -> Clipping:
    if norm is not None and clipping is not None:
        raise IncompatibleOptions(
            f"give either {{clipping_norm}} or {{clipping}}, got {{clipping_norm={norm}}} and "
            f"{clipping}"
        )
    if clipping is not None:
        return clipping
    if norm is not None:
        return FixedClipping(norm=norm)
    if client_scheme is not None:
        raise IncompatibleOptions(
            "{clipping_norm} can't be left out with noise at the clients ({client_scheme}): nobody "
            "sees how many updates a norm clips, so none can be found during training; write "
            "{clipping_norm=...}, docs/choosing_a_clipping_norm.md tells which"
        )
    return DEFAULT_CLIPPING
