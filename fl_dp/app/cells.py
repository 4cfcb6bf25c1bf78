"""Cells of a sweep: every training that an experiment, or `key=a,b`, stands for.

    >>> _, cells = expand(["experiment=privacy_levels", "seed=0,1"])
    >>> cells[0].curve, cells[0].place, cells[0].settings.seed
    ('none', 'inf', 0)

A cell is pinned by a digest of its settings, so that no sweep ever mixes results of different ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from fl_dp.accounting.gaussian_formulas import exposures_noise_multiplier, udp_sigma

from .compose import compose_settings, expand_sweep
from .keys import all_keys
from .overrides import ConfigError, check_values, missing_key, parsed
from .planning import make_selection, target_delta
from .schema import settings_document
from .settings import OPTIONS, CurveSettings, Settings, SweepSettings

# Where a training is written and where it is computed changes nothing of what it comes to.
_NOT_PINNED = ("output_dir", "run_name", "resume", "report", "simulation", "sweep")

# The cell's own settings: without it, each cell would be an experiment.
_ONE_TRAINING = "~sweep"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of a sweep.

    Attributes:
        curve: The curve that it lies on: that of an experiment, or the overrides that tell it from
            its siblings, but for the seed.
        place: Its place on the axis, as written; None where there is no axis.
        overrides: What composes its settings.
        settings: What they compose to.
    """

    curve: str
    place: str | None
    overrides: tuple[str, ...]
    settings: Settings

    @property
    def digest(self) -> str:
        """A SHA-256 over its settings; see `digest_of`."""
        return digest_of(self.settings)


def digest_of(settings: Settings) -> str:
    """Return a SHA-256 over all settings that a result can depend on, as hexadecimal text.

    Left out are the run's folder, its report and the machine: names of folders, `report`,
    `simulation`, and `sweep`.
    """
    document = settings_document(settings)
    pinned = {key: value for key, value in document.items() if key not in _NOT_PINNED}
    # What the files hold is found when the run starts; a cell is known before.
    del pinned["model"]["initial_digest"]
    pinned["features"].pop("digest", None)
    if settings.task.data_dir is not None:
        pinned["task"]["data_dir"] = str(Path(settings.task.data_dir).expanduser().resolve())
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()


def expand(overrides: Sequence[str]) -> tuple[SweepSettings, list[Cell]]:
    """Expand what `fl-dp run -m` was given to its cells.

    What somebody writes beside an experiment has the last word: a value of the axis or a seed
    replaces those of the experiment, everything else holds for each cell, and several values of
    another key multiply the curves.

    Args:
        overrides: For example `["experiment=schedules", "seed=0,1", "rounds=20"]`.

    Returns:
        The experiment, empty for a plain sweep, and the cells: curve by curve, place by place, seed
        by seed.

    Raises:
        ConfigError: If settings are wrong, or two cells have the same.
    """
    combinations = expand_sweep(overrides)
    first = compose_settings(combinations[0])
    sweep = first.sweep
    if sweep.curves:
        cells = list(_of_experiment(overrides, sweep, sweep.seeds or [first.seed]))
    else:
        cells = list(_of_combinations(combinations))
    _require_different(cells)
    return sweep, cells


def _of_combinations(combinations: Sequence[Sequence[str]]) -> Iterator[Cell]:
    # Titles of runs name what differs; every run would repeat the rest.
    shared = set.intersection(*(set(each) for each in combinations))
    for each in combinations:
        told = [one for one in each if one not in shared and not one.startswith("seed=")]
        settings = compose_settings(each)
        _require_one(settings.sweep)
        yield Cell(curve=" ".join(told), place=None, overrides=tuple(each), settings=settings)


def _of_experiment(
    overrides: Sequence[str], sweep: SweepSettings, seeds: Sequence[int]
) -> Iterator[Cell]:
    axes = {sweep.axis_of(curve) for curve in sweep.chosen.values()} | {sweep.axis}
    replaced: dict[str, list[str]] = {}
    rest = []
    for text in overrides:
        key = _key(text)
        if key == "seed" or key in axes:
            replaced[key] = [one.partition("=")[2] for (one,) in expand_sweep([text])]
        elif key == "experiment" and len(expand_sweep([text])) > 1:
            _require_one(sweep)
        else:
            rest.append(text)
    seeds = [int(seed) for seed in replaced["seed"]] if "seed" in replaced else seeds
    combinations = expand_sweep(rest)
    shared = set.intersection(*(set(each) for each in combinations))
    for each in combinations:
        told = " ".join(one for one in each if one not in shared)
        for name, curve in sweep.chosen.items():
            # Written beside the experiment, so it goes before the curve's own.
            written = {_key(one) for one in each}
            own = [one for one in curve.overrides if _key(one) not in written]
            axis = sweep.axis_of(curve)
            places = _places(sweep, curve, axis, replaced)
            for place, given, settings in _along(curve, axis, places, [*own, *each]):
                for seed in seeds:
                    yield Cell(
                        curve=f"{name} {told}".strip(),
                        place=place,
                        overrides=(*given, f"seed={seed}", _ONE_TRAINING),
                        settings=replace(settings, seed=seed),
                    )


def _require_one(sweep: SweepSettings) -> None:
    """Check that no experiment of many trainings is one of several that are swept over.

    Raises:
        ConfigError: If one is.
    """
    if sweep.curves:
        raise ConfigError(
            f"an experiment of many trainings ({', '.join(sweep.curves)}) is a sweep of its own: "
            "write one experiment at a time"
        )


def _places(
    sweep: SweepSettings,
    curve: CurveSettings,
    axis: str | None,
    replaced: Mapping[str, list[str]],
) -> Sequence[str | None]:
    """Return where a curve's cells lie on the axis."""
    if curve.at is not None:
        return [curve.at]
    if axis is None:
        return [None]
    for key in (axis, sweep.axis):
        if key is not None and key in replaced:
            return replaced[key]
    return curve.values or sweep.values or ()


def _along(
    curve: CurveSettings, axis: str | None, places: Iterable[str | None], overrides: list[str]
) -> Iterator[tuple[str | None, list[str], Settings]]:
    """Yield a curve's places with the overrides and the settings of each, but for the seed."""
    composed: Settings | None = None
    for place in places:
        given = overrides if axis is None or place is None else [*overrides, f"{axis}={place}"]
        if composed is None or axis not in all_keys() or place is None:
            composed = compose_settings([*given, _ONE_TRAINING])
        else:
            composed = moved(composed, axis, place)
        if curve.formula is None or place is None:
            yield place, given, composed
            continue
        noise = _noise_by(curve.formula, composed, float(place))
        given = [*overrides, "privacy.epsilon=null", f"privacy.noise_multiplier={noise!r}"]
        noisy = moved(composed, "privacy.noise_multiplier", repr(noise))
        yield place, given, moved(noisy, "privacy.epsilon", "null")


def moved(settings: Settings, key: str, value: str) -> Settings:
    """Return settings in which one key has another value, without Hydra, which is slow.

    Raises:
        ConfigError: If it can't have that value.
    """
    override = parsed(f"{key}={value}")
    check_values([override])
    changed = OmegaConf.structured(settings)
    try:
        if key in OPTIONS:
            changed[key] = OPTIONS[key][value]
        else:
            OmegaConf.update(changed, key, override.value())
        settled = OmegaConf.to_object(changed)
    except (ConfigAttributeError, ConfigKeyError) as error:
        raise ConfigError(missing_key(key)) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    assert isinstance(settled, Settings)
    return settled


def _noise_by(formula: str, settings: Settings, epsilon: float) -> float:
    """Return the noise multiplier of each upload that a formula of the literature asks for."""
    if settings.privacy.noised_by != "clients":
        raise ConfigError(
            f"a curve with the formula '{formula}' sets the noise of each client's upload: write "
            f"privacy=local among its overrides, got privacy={settings.privacy.mode}"
        )
    rate, rounds, delta = settings.selection.sampling_rate, settings.rounds, target_delta(settings)
    if formula == "udp":
        return udp_sigma(epsilon, delta, participation_rate=rate, rounds=rounds)
    exposures = make_selection(settings).sampling.cap or rounds
    return exposures_noise_multiplier(epsilon, delta, exposures=exposures)


def _require_different(cells: Sequence[Cell]) -> None:
    """Check that no two cells are the same training under two names.

    Raises:
        ConfigError: If two are.
    """
    seen: dict[str, Cell] = {}
    for cell in cells:
        first = seen.setdefault(cell.digest, cell)
        if first is not cell:
            raise ConfigError(
                f"{_name(first)} and {_name(cell)} have the same settings: leave out what makes "
                "them alike"
            )


def _name(cell: Cell) -> str:
    at = "" if cell.place is None else f" at {cell.place}"
    return f"'{cell.curve or 'default'}'{at}, seed {cell.settings.seed},"


def _key(text: str) -> str:
    """Return the key of an override."""
    return text.lstrip("+~").partition("=")[0]
