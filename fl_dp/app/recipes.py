"""Settings that fit a task with a model, and a promise, where nobody wrote others.

    >>> recipe_of(["task=fashion_mnist", "rounds=20"]).overrides
    ('client.learning_rate=0.1', 'client.epochs=2', 'selection.sampling_rate=0.1')

`conf/recipes.yaml` has them, as overrides. Whatever somebody wrote beside them or an experiment
says wins: they are composed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from .overrides import config_folder, parsed
from .settings import OPTIONS
from .settings.fitting import GROUPS

_LEARNING_RATE = "client.learning_rate"  # what no two tasks have in common

# What of the settings that were tuned for privacy=central fits another promise: keys that begin so.
_FITS = {
    **dict.fromkeys(("central", "correlated", "buffered", "grouped", "none"), ""),
    **dict.fromkeys(("local", "distributed"), "client."),
}
_WITHOUT_CLIENT_STEPS = "distributed_records"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What goes with overrides.

    Attributes:
        overrides: To be composed before those that somebody wrote.
        told: What to say before anything starts, a line each.
        assumed: Defaults that `told` warns of, as overrides: who sends them has said it.
    """

    overrides: tuple[str, ...]
    told: tuple[str, ...]
    assumed: tuple[str, ...] = ()


def recipe_of(overrides: Sequence[str]) -> Recipe:
    """Return what goes with overrides.

    Args:
        overrides: What somebody wrote: of keys that there are, and without several values.

    Raises:
        ConfigError: If one can't be read.
    """
    written = _written(overrides)
    # A run goes on with the settings that it has, and a statistic trains nothing.
    if written.get("resume") is not None or written.get("statistic.query") is not None:
        return Recipe(overrides=(), told=())
    chosen = dict(entries("config")) | written
    # By options of groups alone: a candidate that changes `model.name` is another model, not
    # another training.
    task, model, privacy = (chosen[group] for group in ("task", "model", "privacy"))
    recipes = _read("recipes")
    known, fitting = recipes["tuned"].get(task, {}).get(model), recipes["fitting"].get(privacy, [])
    if chosen["features"] != "none":
        known = None  # what was tuned for pixels does not suit vectors
    fits = _FITS.get(privacy)
    tuned = (
        None if known is None or fits is None else [one for one in known if one.startswith(fits)]
    )
    taken = {key.partition(".")[0] for key in written}  # a choice of one's own is not mixed with
    brought = {_key(each): each for each in tuned or () if _group(each) not in written}
    brought |= {_key(each): each for each in fitting if _group(each) not in taken}
    left = tuple(each for key, each in brought.items() if key not in written)
    pair, told = f"task={task} with model={model}", []
    whose = f"{pair} under privacy={privacy}" if fitting or fits is None else pair
    assumed: tuple[str, ...] = ()
    steps = privacy != _WITHOUT_CLIENT_STEPS
    if tuned is None and steps and not written.keys() & {_LEARNING_RATE, "tune.candidates"}:
        assumed = (f"{_LEARNING_RATE}={chosen[_LEARNING_RATE]}",)
        told.append(
            f"{whose} has no tuned settings: {assumed[0]} is what "
            "suits digits under privacy=central; `fl-dp tune` pays for a better one"
        )
    if left:
        told.append(f"{whose} brings {' '.join(left)}; what you write wins")
    return Recipe(overrides=left, told=tuple(told), assumed=assumed)


def with_recipe(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return overrides that say what goes with them: whatever follows them brings nothing more.

    Args:
        overrides: As for `recipe_of`.

    Raises:
        ConfigError: As `recipe_of`.
    """
    recipe = recipe_of(overrides)
    return (*fitting_options(overrides), *recipe.overrides, *recipe.assumed, *overrides)


def fitting_options(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the first options that a promise has, of groups of which nobody chose one.

    Args:
        overrides: As for `recipe_of`.

    Raises:
        ConfigError: As `recipe_of`.
    """
    written = _written(overrides)
    chosen = dict(entries("config")) | written
    fitting = OPTIONS["privacy"][chosen["privacy"]].fitting
    options = {group: getattr(fitting, group) for group in GROUPS if group not in written}
    return tuple(
        f"{group}={known[0]}" for group, known in options.items() if chosen[group] not in known
    )


@cache
def brought_keys() -> frozenset[str]:
    """Return the keys of which recipes have values: no single default is theirs."""
    recipes = _read("recipes")
    tuned = (lines for models in recipes["tuned"].values() for lines in models.values())
    return frozenset(
        _key(each) for lines in [*tuned, *recipes["fitting"].values()] for each in lines
    )


def _written(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what somebody chose, by key and group, an experiment's choices among it."""
    written = {each.key_or_group: each.value() for each in map(parsed, overrides)}
    experiment = written.get("experiment")
    if experiment is None:
        return written
    return dict(entries(f"experiment/{experiment}")) | written


@cache
def _read(name: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(config_folder() / f"{name}.yaml"), resolve=False)


def entries(name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a file of `conf/` chooses: options of groups, and values of keys."""
    read = dict(_read(name))
    for each in read.pop("defaults", ()):
        if isinstance(each, Mapping):
            yield from ((group.removeprefix("override /"), one) for group, one in each.items())
    for key, value in read.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield key, value


def _key(override: str) -> str:
    return override.partition("=")[0]


def _group(override: str) -> str:
    return _key(override).rpartition(".")[0] or _key(override)
