"""Settings that fit a task, model and promise, where nobody wrote others.

    >>> recipe_of(["task=fashion_mnist", "rounds=20"]).overrides
    ('client.learning_rate=0.1', 'client.epochs=2', 'selection.sampling_rate=0.1')

`conf/recipes.yaml` holds them as overrides, composed first: what a user or experiment writes wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fl_dp.tasks.datasets import OWN_DATA
from fl_dp.tasks.datasets.schema_file import SCHEMA_FILE
from fl_dp.tasks.fit import ON_NUMBERS

from .overrides import config_folder, parsed
from .settings import OPTIONS
from .settings.fitting import GROUPS

# They differ from task to task.
_LEARNING_RATE, _SERVER_RATE = "client.learning_rate", "server_optimizer.learning_rate"

# Settings that were tuned for privacy=central; of them, these prefixes fit the other promises.
_FITS = {
    **dict.fromkeys(("central", "correlated", "buffered", "grouped", "none"), ""),
    **dict.fromkeys(("local", "distributed"), "client."),
}
_OF_RECORDS = "distributed_records"  # without client steps


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What goes with overrides.

    Attributes:
        overrides: To be composed before the written ones.
        notes: Lines to show before anything starts.
        assumed: Defaults that `notes` warns of, as overrides: their sender has seen it.
    """

    overrides: tuple[str, ...]
    notes: tuple[str, ...]
    assumed: tuple[str, ...] = ()


def recipe_of(overrides: Sequence[str]) -> Recipe:
    """What goes with overrides of existing keys, each with one value.

    Raises:
        ConfigError: One can't be read.
    """
    written = written_values(overrides)
    # A run goes on with the settings that it has, and a statistic trains nothing.
    if written.get("resume") is not None or written.get("statistic.query") is not None:
        return Recipe(overrides=(), notes=())
    chosen = dict(entries("config")) | written
    # By options of groups alone: a candidate that changes `model.name` is another model, not
    # another training.
    task, model, privacy = (chosen[group] for group in ("task", "model", "privacy"))
    recipes = _read("recipes")
    table = "schema" if schema_beside(chosen) is not None else task
    known_pair = recipes["tuned"].get(table, {}).get(model)
    fitting = recipes["fitting"].get(privacy, [])
    if chosen["features"] != "none":
        known_pair = None  # what was tuned for pixels does not suit vectors
    prefix = _FITS.get(privacy)
    tuned: list[str] | None = None
    if known_pair is not None and prefix is not None:
        tuned = [line for line in known_pair if line.startswith(prefix)]
    if tuned is not None:
        tuned += recipes.get(privacy, {}).get(table, {}).get(model, [])
    if privacy == _OF_RECORDS:
        of_records = recipes["records"]
        models = of_records.get(chosen["features"]) or of_records.get(table, {})
        tuned = _of_records(models.get(model), written)
    brought = {_key(line): line for line in tuned or () if _group(line) not in written}
    # A group in which somebody chose a key is not mixed with what fits the promise.
    written_groups = {key.partition(".")[0] for key in written}
    brought |= {_key(line): line for line in fitting if _group(line) not in written_groups}
    if model in ON_NUMBERS and "features" not in written_groups and task in recipes["features"]:
        brought["features"] = recipes["features"][task]
    unwritten = tuple(line for key, line in brought.items() if key not in written)
    pair = f"task={task} with model={model}"
    subject = f"{pair} under privacy={privacy}" if fitting or prefix is None else pair
    notes = []
    assumed: tuple[str, ...] = ()
    rate, advice = _LEARNING_RATE, "`fl-dp tune` pays for a better one"
    if privacy == _OF_RECORDS:
        rate, advice = _SERVER_RATE, "try others on public data of the same kind"
        optimizer = OPTIONS["server_optimizer"][chosen["server_optimizer"]]
        chosen.setdefault(rate, getattr(optimizer, "learning_rate", None))
    chooses_rate = bool(written.keys() & {rate, "tune.candidates"}) or chosen[rate] is None
    if tuned is None and not chooses_rate:
        assumed = (f"{rate}={chosen[rate]}",)
        notes.append(
            f"{subject} has no tuned settings: {assumed[0]} is what "
            f"suits digits under privacy=central; {advice}"
        )
    if unwritten:
        notes.append(f"{subject} brings {' '.join(unwritten)}; what you write wins")
    return Recipe(overrides=unwritten, notes=tuple(notes), assumed=assumed)


def _of_records(lines: list[str] | None, written: Mapping[str, Any]) -> list[str] | None:
    """A recipe whose keys were measured together, if nobody wrote one of them; else None."""
    steps = [line for line in lines or () if not line.startswith(("privacy.", "rounds="))]
    if written.get("task.label_range") is not None:  # a number has other gradients
        return None
    if any(_key(line) in written or _group(line) in written for line in steps):
        return None
    return lines


def with_recipe(overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides with what goes with them; a second call adds nothing. Raises as `recipe_of`."""
    recipe = recipe_of(overrides)
    return (*fitting_options(overrides), *recipe.overrides, *recipe.assumed, *overrides)


def fitting_options(overrides: Sequence[str]) -> tuple[str, ...]:
    """A promise's first allowed option, for each group nobody chose whose default is not allowed.

    Raises as `recipe_of`.
    """
    written = written_values(overrides)
    chosen = dict(entries("config")) | written
    fitting = OPTIONS["privacy"][chosen["privacy"]].fitting
    options = []
    for group in GROUPS:
        allowed = getattr(fitting, group)
        if group not in written and chosen[group] not in allowed:
            options.append(f"{group}={allowed[0]}")
    return tuple(options)


def schema_beside(written: Mapping[str, Any]) -> Path | None:
    """The schema in the folder of the user's own data; None if columns are written instead."""
    folder = written.get("task.data_dir")
    if written.get("task") not in OWN_DATA or not isinstance(folder, str):
        return None
    file = Path(folder).expanduser() / SCHEMA_FILE
    return file if "task.columns" not in written and file.is_file() else None


def written_values(overrides: Sequence[str]) -> dict[str, Any]:
    """The user's choices by key or group, with those of an experiment."""
    written = {override.key_or_group: override.value() for override in map(parsed, overrides)}
    experiment = written.get("experiment")
    if experiment is None:
        return written
    return dict(entries(f"experiment/{experiment}")) | written


@cache
def _read(name: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(config_folder() / f"{name}.yaml"), resolve=False)


def entries(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the choices of a file of `conf/`: an option by its group, a value by its key."""
    content = dict(_read(name))
    for default in content.pop("defaults", ()):
        if isinstance(default, Mapping):
            for group, option in default.items():
                yield group.removeprefix("override /"), option
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield key, value


def _key(override: str) -> str:
    return override.partition("=")[0]


def _group(override: str) -> str:
    return _key(override).rpartition(".")[0] or _key(override)
