"""Cells of a sweep: the trainings of an experiment, or of `key=a,b`.

    >>> _, cells = expand(["experiment=privacy_levels", "seed=0,1"])
    >>> cells[0].curve, cells[0].axis_value, cells[0].settings.seed
    ('none', 'inf', 0)

A digest of its settings identifies a cell, so no sweep mixes results of different settings.
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
from .overrides import ConfigError, check_values, missing_key, parsed
from .planning import make_selection, target_delta
from .schema import settings_document
from .settings import OPTIONS, CurveSettings, Settings, SweepSettings

# Where a training is written or computed changes nothing of its result.
_NOT_PINNED = ("output_dir", "run_name", "resume", "report", "simulation", "sweep")

# The cell's own settings: without it, each cell would be an experiment.
_ONE_TRAINING = "~sweep"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of a sweep.

    Attributes:
        curve: The experiment's curve, or the overrides that distinguish the training from its
            siblings, without the seed.
        axis_value: Position on the axis, as written; None without an axis.
        overrides: Overrides that compose `settings`.
    """

    curve: str
    axis_value: str | None
    overrides: tuple[str, ...]
    settings: Settings

    @property
    def digest(self) -> str:
        """A SHA-256 over its settings; see `digest_of`."""
        return digest_of(self.settings)


def digest_of(settings: Settings) -> str:
    """SHA-256, in hexadecimal, over all settings that a result can depend on.

    The run's folder, its report and the machine are left out: names of folders, `report`,
    `simulation`, and `sweep`.
    """
    document = settings_document(settings)
    pinned = {key: value for key, value in document.items() if key not in _NOT_PINNED}
    # The content of files is known only when the run starts; a cell is known before.
    del pinned["model"]["initial_digest"]
    pinned["features"].pop("digest", None)
    pinned["privacy"].pop("account", None)
    pinned["privacy"].pop("account_cap", None)
    if settings.task.data_dir is not None:
        pinned["task"]["data_dir"] = str(Path(settings.task.data_dir).expanduser().resolve())
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()


def expand(overrides: Sequence[str]) -> tuple[SweepSettings, list[Cell]]:
    """Expand the overrides of `fl-dp run -m`, such as `["seed=0,1", "rounds=20"]`, to cells.

    Overrides beside an experiment win. An axis value or seed replaces the experiment's; several
    values of another key multiply the curves; anything else holds for each cell.

    Returns:
        The experiment, empty for a plain sweep, and the cells, by curve, axis value, then seed.

    Raises:
        ConfigError: Settings are wrong, or two cells have the same.
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
    shared = set.intersection(*map(set, combinations))
    for overrides in combinations:
        title = [text for text in overrides if text not in shared and not text.startswith("seed=")]
        settings = compose_settings(overrides)
        _require_one(settings.sweep)
        yield Cell(
            curve=" ".join(title),
            axis_value=None,
            overrides=tuple(overrides),
            settings=settings,
        )


def _of_experiment(
    overrides: Sequence[str], sweep: SweepSettings, seeds: Sequence[int]
) -> Iterator[Cell]:
    axes = {sweep.axis_of(curve) for curve in sweep.chosen.values()} | {sweep.axis}
    replaced: dict[str, list[str]] = {}
    rest = []
    for text in overrides:
        key = _key(text)
        if key == "seed" or key in axes:
            replaced[key] = [override.partition("=")[2] for (override,) in expand_sweep([text])]
        elif key == "experiment" and len(expand_sweep([text])) > 1:
            _require_one(sweep)
        else:
            rest.append(text)
    if "seed" in replaced:
        seeds = [int(seed) for seed in replaced["seed"]]
    combinations = expand_sweep(rest)
    shared = set.intersection(*map(set, combinations))
    for combination in combinations:
        title = " ".join(text for text in combination if text not in shared)
        written = {_key(text) for text in combination}
        for name, curve in sweep.chosen.items():
            # Written beside the experiment, so it goes before the curve's own.
            own = [text for text in curve.overrides if _key(text) not in written]
            axis = sweep.axis_of(curve)
            values = _axis_values(sweep, curve, axis, replaced)
            for value, composed, settings in _along(curve, axis, values, [*own, *combination]):
                for seed in seeds:
                    yield Cell(
                        curve=f"{name} {title}".strip(),
                        axis_value=value,
                        overrides=(*composed, f"seed={seed}", _ONE_TRAINING),
                        settings=replace(settings, seed=seed),
                    )


def _require_one(sweep: SweepSettings) -> None:
    """Refuse a sweep over an experiment of many trainings."""
    if sweep.curves:
        raise ConfigError(
            f"an experiment of many trainings ({', '.join(sweep.curves)}) is a sweep of its own: "
            "write one experiment at a time",
            option="experiment",
        )


def _axis_values(
    sweep: SweepSettings,
    curve: CurveSettings,
    axis: str | None,
    replaced: Mapping[str, list[str]],
) -> Sequence[str | None]:
    if curve.at is not None:
        return [curve.at]
    if axis is None:
        return [None]
    for key in (axis, sweep.axis):
        if key is not None and key in replaced:
            return replaced[key]
    return curve.values or sweep.values or ()


def _along(
    curve: CurveSettings, axis: str | None, values: Iterable[str | None], overrides: list[str]
) -> Iterator[tuple[str | None, list[str], Settings]]:
    """Yield a curve's axis values with their overrides and settings, without the seed."""
    for value in values:
        at_value = overrides if axis is None or value is None else [*overrides, f"{axis}={value}"]
        settings = compose_settings([*at_value, _ONE_TRAINING])
        if curve.formula is not None and value is not None:
            noise = _noise_by(curve.formula, settings, float(value))
            at_value = [*overrides, "privacy.epsilon=null", f"privacy.noise_multiplier={noise!r}"]
            settings = compose_settings([*at_value, _ONE_TRAINING])
        yield value, at_value, settings


def settings_with(settings: Settings, key: str, value: str) -> Settings:
    """Settings with another value of one key, made without Hydra, which is slow.

    Raises:
        ConfigError: The key can't have that value.
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
        raise ConfigError(missing_key(key), option=key) from error
    except ValueError as error:
        raise ConfigError.of(error) from error
    assert isinstance(settled, Settings)
    return settled


def _noise_by(formula: str, settings: Settings, epsilon: float) -> float:
    """Each upload's noise multiplier by a formula of the literature."""
    if settings.privacy.noised_by != "clients":
        raise ConfigError(
            f"a curve with the formula '{formula}' sets the noise of each client's upload: write "
            f"privacy=local among its overrides, got privacy={settings.privacy.mode}",
            option="privacy",
        )
    rate, rounds, delta = settings.selection.sampling_rate, settings.rounds, target_delta(settings)
    if formula == "udp":
        return udp_sigma(epsilon, delta, participation_rate=rate, rounds=rounds)
    exposures = make_selection(settings).sampling.cap or rounds
    return exposures_noise_multiplier(epsilon, delta, exposures=exposures)


def _require_different(cells: Sequence[Cell]) -> None:
    """Check that no training stands under two names."""
    by_digest: dict[str, Cell] = {}
    for cell in cells:
        first = by_digest.setdefault(cell.digest, cell)
        if first is not cell:
            raise ConfigError(
                f"{_name(first)} and {_name(cell)} have the same settings: leave out what makes "
                "them alike"
            )


def _name(cell: Cell) -> str:
    at = "" if cell.axis_value is None else f" at {cell.axis_value}"
    return f"'{cell.curve or 'default'}'{at}, seed {cell.settings.seed},"


def _key(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]
