"""Objects of a plan, made of flat keywords, and its noise, read from JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict, get_type_hints

from fl_dp.accounting import (
    History,
    NeighboringRelation,
    NoiseSchedule,
    PoissonSampling,
    Sampling,
    VisibleSampling,
    freeze,
)
from fl_dp.accounting.shared_noise import usual_colluding
from fl_dp.documents import known_kind
from fl_dp.mechanisms import Clipping, FixedClipping, ScalarMetric
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.option_errors import IncompatibleOptions, OptionError

from .argument_checks import require_known, require_types
from .correlation import Banded
from .distributed_noise import DistributedNoise, SecureSum
from .hosting import Hosting
from .noise import CentralNoise, ClientNoise, Noise
from .release import Release

NOISE_KINDS: dict[str, type[Noise]] = {
    each.kind: each for each in (CentralNoise, ClientNoise, DistributedNoise)
}
"""Every kind of noise, by the name that it is written with."""


class _Required(TypedDict):
    rounds: int
    num_clients: int


class PlanArguments(_Required, total=False):
    """Keywords that the classmethods of `PrivacyPlan` take; editors and type checkers know them.

    `sampling_rate` is short for a `PoissonSampling`, and `clipping_norm` for a `FixedClipping`. The
    others are attributes of `PrivacyPlan`, `Release`, `Hosting` or the noise: `CentralNoise`,
    `ClientNoise` if `client_scheme` is given, or `DistributedNoise` if `secure_sum` is.
    """

    sampling_rate: float | None
    sampling: Sampling | None
    clipping_norm: float | None
    clipping: Clipping | None
    neighboring_relation: NeighboringRelation
    schedule: NoiseSchedule
    correlation: Banded | None
    participation_cap: int | None
    other_releases: History
    metrics: tuple[ScalarMetric, ...]
    scalar_noise_std: float | None
    total_weight: float | None
    client_scheme: str | None
    secure_sum: SecureSum | None
    unit: str
    units_per_node: int
    coins_at_nodes: bool
    nodes: int | None
    contribution_check: bool


def require_plan_arguments(given: PlanArguments, *, of: str) -> None:
    """Refuse what a type checker would: without one, a wrong type fails far from where it is.

    Raises:
        TypeError: With the nearest right name, or what to write.
    """
    hints = get_type_hints(PlanArguments)
    require_known(given, hints, of=of)
    for name in sorted(PlanArguments.__required_keys__ - given.keys()):
        raise TypeError(f"{of} needs {name}: write {name}=...")
    # A clipping rule is checked by `Release`, whose error says where rules are described.
    require_types({name: each for name, each in given.items() if name != "clipping"}, hints)


def sampling_of(given: PlanArguments) -> Sampling:
    """Return how each cohort is sampled.

    Raises:
        ValueError: Unless one of `sampling_rate` and `sampling` is given.
    """
    rate, sampling = given.get("sampling_rate"), given.get("sampling")
    if (rate is None) == (sampling is None):
        raise IncompatibleOptions("give either {sampling_rate} or {sampling}")
    return sampling if sampling is not None else PoissonSampling(sampling_rate=rate or 0.0)


def hosting_of(given: PlanArguments) -> Hosting:
    """Return how units lie on nodes."""
    return Hosting(
        units_per_node=given.get("units_per_node", Hosting.units_per_node),
        coins_at_nodes=given.get("coins_at_nodes", Hosting.coins_at_nodes),
        nodes=given.get("nodes"),
    )


def release_of(given: PlanArguments) -> Release:
    """Return what a round publishes; what bounds an update is `DEFAULT_CLIPPING` if left out.

    Raises:
        ValueError: If `clipping_norm` and `clipping` are both given, or neither where one has to.
    """
    return Release(
        clipping=_clipping_of(given),
        metrics=given.get("metrics", Release.metrics),
        scalar_noise_std=given.get("scalar_noise_std"),
        total_weight=given.get("total_weight"),
        contribution_check=given.get("contribution_check", Release.contribution_check),
    )


def noise_of(given: PlanArguments, multiplier: float) -> Noise:
    """Return who adds the noise, and how much.

    Raises:
        ValueError: If an argument is of another kind of noise.
    """
    schedule = given.get("schedule", Noise.schedule)
    correlation, scheme = given.get("correlation"), given.get("client_scheme")
    secure_sum = given.get("secure_sum")
    if secure_sum is not None:
        return _shared_noise(given, secure_sum, multiplier, schedule)
    if scheme is None:
        return CentralNoise(multiplier=multiplier, schedule=schedule, correlation=correlation)
    if correlation is not None:
        raise IncompatibleOptions(
            "{correlation} needs noise at the server: leave {client_scheme} out"
        )
    return ClientNoise(multiplier=multiplier, schedule=schedule, scheme=scheme)


def noise_from_dict(fields: Mapping[str, Any]) -> Noise:
    """Return the noise that `to_dict` described.

    Raises:
        ValueError: If the kind is unknown to this version.
    """
    given = dict(fields)
    kind = known_kind(NOISE_KINDS, given.pop("kind"), of="noise")
    given["schedule"] = NoiseSchedule.from_dict(given["schedule"])
    if given.get("correlation") is not None:
        given["correlation"] = Banded.from_dict(given["correlation"])
    if "secure_sum" in given:
        given["secure_sum"] = SecureSum(**given["secure_sum"])
        del given["slack"]  # follows from the rest
    return kind(**given)


def _shared_noise(
    given: PlanArguments, secure_sum: SecureSum, multiplier: float, schedule: NoiseSchedule
) -> DistributedNoise:
    if given.get("client_scheme") is not None:
        raise IncompatibleOptions(
            "{client_scheme} and {secure_sum} are two answers to who adds the noise: leave one out"
        )
    if given.get("correlation") is not None:
        raise IncompatibleOptions(
            "{correlation} needs noise at the server, which remembers it: leave {secure_sum} out"
        )
    sampling, hosting, units = sampling_of(given), hosting_of(given), given["num_clients"]
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
    others = freeze(given.get("other_releases", ()))
    return DistributedNoise(
        multiplier=multiplier,
        schedule=schedule,
        nodes=hosting.nodes_of(units),
        units_in_sum=hosting.most_drawn(sampling),
        sums=given["rounds"] + sum(count for _, count in others),
        secure_sum=secure_sum,
    )


def _clipping_of(given: PlanArguments) -> Clipping:
    norm, clipping = given.get("clipping_norm"), given.get("clipping")
    if norm is not None and clipping is not None:
        raise IncompatibleOptions(
            f"give either {{clipping_norm}} or {{clipping}}, got {{clipping_norm={norm}}} and "
            f"{clipping}"
        )
    if clipping is not None:
        return clipping
    if norm is not None:
        return FixedClipping(norm=norm)
    if given.get("client_scheme") is not None:
        raise IncompatibleOptions(
            "{clipping_norm} can't be left out with noise at the clients ({client_scheme}): the "
            "server can't count how many updates a norm clips, so it can't find one; write "
            "{clipping_norm=...}, docs/choosing_a_clipping_norm.md tells which"
        )
    return DEFAULT_CLIPPING
