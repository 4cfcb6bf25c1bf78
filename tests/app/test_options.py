"""An option is one class: keys, defaults, help and errors are those of what makes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Annotated, Any

import pytest

import fl_dp.app.settings
from fl_dp.app.compose import compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import ConfigError
from fl_dp.app.settings.checks import positive
from fl_dp.app.settings.data import TASK
from fl_dp.app.settings.docstring_sentences import sentences_of
from fl_dp.app.settings.optimizers import CLIENT
from fl_dp.app.settings.option import Option, key, made_by, option
from fl_dp.app.settings.options import OPTIONS
from fl_dp.app.settings.statistic import STATISTIC
from fl_dp.mechanisms import AdaptiveClipping
from fl_dp.option_errors import OptionError
from fl_dp.strategies import BufferedSelection, ExponentialSelection

MADE = ("privacy", "dp_sgd", "selection", "clipping", "schedule", "server_optimizer")


@dataclass(frozen=True, kw_only=True)
class WiderClipping(AdaptiveClipping):
    """A class of the library that has got one more field.

    Attributes:
        surprise: Of no use.
    """

    surprise: int = 3


def rate(*, speed: Annotated[float, positive] | None = 2.0, named: tuple[str, ...] = ()) -> float:
    """Return a speed.

    Args:
        speed: Metres in a second; None
            stands still.
        named: Names.
    """
    return speed or 0.0


def test_a_new_field_of_a_library_class_is_no_key_until_it_is_listed() -> None:
    wider = option("clipping", "wider", made_by(WiderClipping, norm=key()), base=Option)
    assert [field.name for field in fields(wider)] == ["name", "norm"]
    assert wider(norm=0.3).make() == WiderClipping(norm=0.3)
    with pytest.raises(TypeError, match="surprise"):
        wider(surprise=4)


def test_every_key_of_an_option_is_listed_at_what_makes_it() -> None:
    made_options = [type(chosen) for group in MADE for chosen in OPTIONS[group].values()]
    for chosen in (*made_options, CLIENT, STATISTIC, TASK):
        listed = [name for made in chosen.makers for name in made.keys]
        keys = [field.name for field in fields(chosen)]
        assert keys[len(keys) - len(listed) :] == listed
        assert len(keys) - len(listed) == bool(chosen.option)  # the group's own key
        assert len(set(listed)) == len(listed)


def test_a_key_has_the_default_the_null_and_the_sentence_of_its_argument() -> None:
    made = option("schedule", "quick", made_by(rate, speed=key(), named=key()), base=Option)
    speed, named = fields(made)[1:]
    assert (speed.default, speed.type) == (2.0, float | None)
    assert speed.metadata["help"] == "Metres in a second; null stands still."
    assert named.type == list[str]
    assert made(speed=None).make() == 0.0
    with pytest.raises(OptionError, match=r"^schedule\.speed must be positive") as refused:
        made(speed=-1.0)
    assert refused.value.option == "schedule.speed"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("clipping=adaptive clipping.target_quantile=1", "clipping.target_quantile"),
        ("schedule=step schedule.floor=2", "schedule.floor"),
        ("privacy=distributed privacy.secure_sum.bits=3", "privacy.secure_sum.bits"),
        ("selection.participation_cap=0", "selection.participation_cap"),
        ("privacy.witness_dir=near", "privacy.witness_dir"),
    ],
)
def test_an_error_of_what_makes_an_option_carries_its_whole_key(overrides: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} must") as refused:
        compose_settings(overrides.split())
    cause = refused.value.__cause__
    assert isinstance(cause, OptionError)
    assert cause.option == named


@pytest.mark.parametrize(
    ("name", "selection"), [("buffered", BufferedSelection), ("exponential", ExponentialSelection)]
)
def test_a_selection_s_keys_have_the_defaults_of_its_class(name: str, selection: Any) -> None:
    """The class knows Flower, which a worker without use for it does not import."""
    of_class = inspect.signature(selection).parameters
    for field in fields(OPTIONS["selection"][name]):
        if field.name in of_class and of_class[field.name].default is not inspect.Parameter.empty:
            assert field.default == of_class[field.name].default


def library_classes() -> Iterator[type[Any]]:
    """Every dataclass of the library that has fields."""
    for room in ("accounting", "mechanisms", "plan", "updates", "statistics", "tasks.datasets"):
        package = import_module(f"fl_dp.{room}")
        for module in walk_packages(package.__path__, f"fl_dp.{room}."):
            for _, cls in inspect.getmembers(import_module(module.name), inspect.isclass):
                if is_dataclass(cls) and cls.__module__ == module.name:
                    yield cls


def settings_classes() -> Iterator[type[Any]]:
    """Every written class of settings."""
    for module in walk_packages(fl_dp.app.settings.__path__, "fl_dp.app.settings."):
        for _, cls in inspect.getmembers(import_module(module.name), inspect.isclass):
            if is_dataclass(cls) and cls.__module__ == module.name and cls.__doc__:
                yield cls


def own_names(cls: type[Any]) -> set[str]:
    """Names of a class's fields, without groups of keys."""
    return {field.name for field in fields(cls) if field.default_factory is MISSING}


def test_no_settings_class_says_again_what_a_library_class_has() -> None:
    """Three names in common, and half of the library's: then it is the same thing twice."""
    twice = {
        (settings.__name__, library.__name__)
        for settings in settings_classes()
        for library in library_classes()
        if len(both := own_names(settings) & own_names(library)) >= 3
        and 2 * len(both) > len(own_names(library))
    }
    assert twice == set()


def test_help_is_read_of_classes_with_their_bases_and_of_functions() -> None:
    assert set(sentences_of(WiderClipping)) >= {"norm", "target_quantile", "surprise"}
    assert sentences_of(rate)["named"] == "Names."
    assert all_keys()["privacy.secure_sum.bits"].help.startswith("Bits of each summed coordinate; ")
    assert MISSING not in {known.default for known in all_keys().values() if known.options}
