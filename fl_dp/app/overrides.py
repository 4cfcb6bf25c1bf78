"""Overrides as written, checked before Hydra is imported and while it reads them.

Hydra's and OmegaConf's errors name their own classes. Errors here name, in one line, the key, the
value, what is allowed and the nearest existing key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fl_dp.option_errors import OptionError

from .keys import all_keys, either, nearest_keys
from .schema import groups
from .settings import OPTIONS
from .settings.fitting import GROUPS
from .settings.options import chosen_by
from .settings.promises import PROMISES

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_OVERRIDE = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<key>[^=]*)(=(?P<value>.*))?", re.DOTALL)

_GONE = {"selection=dp_utility": "selection=poisson, or selection=exponential to choose by reports"}
"""Options that earlier versions had, and what to write instead."""

_PLAIN = re.compile(r"[\w./~-]+")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


class ConfigError(OptionError):
    """The configuration can't be composed or holds a wrong value."""

    @classmethod
    def of(cls, error: Exception) -> ConfigError:
        """Return the error of a value as one of the configuration: same text, same options."""
        return cls(str(error), options=error.options if isinstance(error, OptionError) else ())


def config_folder() -> Path:
    """Folder of the YAML groups: inside the package in a wheel, beside it elsewhere."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"fl-dp's own conf/ folder is missing beside {package}")


@cache
def group_options() -> dict[str, tuple[str, ...]]:
    """Options of each group: classes of settings and files of `conf/`."""
    options_of = {group: list(options) for group, options in OPTIONS.items()}
    for path in sorted(config_folder().glob("*/*.yaml")):
        options_of.setdefault(path.parent.name, []).append(path.stem)
    return {group: tuple(options) for group, options in options_of.items()}


def check_keys(overrides: Sequence[str]) -> None:
    """Check that every override names an existing key, or an existing option of a group.

    Raises:
        ConfigError: One does not; the text names the nearest that exists.
    """
    for index, text in enumerate(overrides):
        parts = _OVERRIDE.fullmatch(text)
        assert parts is not None  # it matches any text
        mark, key, value = parts["mark"] or "", parts["key"], parts["value"]
        if value is not None and value.count("[") > value.count("]"):
            raise ConfigError(
                f"'{text}' opens a list that does not end: where it has blanks, put quotes around "
                f"all of it, {_as_list(key, ' '.join([value, *overrides[index + 1 :]]))}",
                option=key,
            )
        if value is None and mark != "~":
            raise ConfigError(
                f"'{text}' is no override: write KEY=VALUE, for example {_example(key)}",
                option=key,
            )
        if key in group_options():
            if re.fullmatch(r"[\w-]+", value or "") is not None:  # else Hydra has to read it
                check_option(key, value)
        elif key not in all_keys() and key not in groups():
            raise ConfigError(_unknown(key), option=key)
        elif mark == "+":
            raise ConfigError(
                f"'{key}' is there already: write {key}={value}, without the +", option=key
            )


def check_values(overrides: Sequence[Override]) -> None:
    """Check that every override's value has the type of its key, which must exist.

    Raises:
        ConfigError: A value has another type, or is several values: a sweep.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from .schema import new_schema

    schema = new_schema()
    for override in overrides:
        key, text = override.key_or_group, str(override.input_line)
        written = text.partition("=")[2]
        if override.is_sweep_override():
            is_list = key in all_keys() and all_keys()[key].kind.startswith("a list")
            instead = f", or write {key}=[{written}] for a list" if is_list else ""
            if _DECIMAL_COMMA.fullmatch(written):
                instead += f", or {key}={written.replace(',', '.')} for one number"
            raise ConfigError(
                f"{text} is several values: add -m to run with each{instead}", option=key
            )
        if override.is_delete():
            continue
        if key in group_options():
            check_option(key, str(override.value()))
            continue
        try:
            _add_option_of(key, schema)
            OmegaConf.update(schema, key, override.value())
        except OmegaConfBaseException as error:
            wrong = str(error.full_key or key)
            raise ConfigError(wrong_value(wrong, written), option=wrong) from error


def parsed(text: str) -> Override:
    """An override as Hydra reads it.

    Raises:
        ConfigError: Hydra can't read it.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = text.partition("=")
    if not value.isascii() and _PLAIN.fullmatch(value):  # Hydra takes other letters in quotes alone
        text = f"{key}={quoted(value)}"
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        if value.startswith("["):
            raise ConfigError(
                f"'{text}' can't be read: quotes around each item of a list, and around all of it, "
                f"are {_as_list(key, value)}",
                option=key,
            ) from error
        raise ConfigError(
            f"'{text}' can't be read: a value with spaces or any of ,:=()[]{{}}$\\ stands in "
            f"quotes of its own, like '{key}={quoted(value)}'",
            option=key,
        ) from error
    except (ValueError, RecursionError) as error:  # digits or brackets without an end
        raise ConfigError(f"'{text[:40]}...' can't be read: {error}", option=key) from error


def require_once(overrides: Sequence[str]) -> None:
    """Check that nothing is written twice: the last one would silently win.

    Raises:
        ConfigError: A key or a group is written twice.
    """
    written: dict[str, str] = {}
    for text in overrides:
        parts = _OVERRIDE.fullmatch(text)
        assert parts is not None  # it matches any text
        key = parts["key"]
        if parts["value"] is None:
            continue  # no override
        if key in written:
            raise ConfigError(
                f"{key} is written twice: leave out '{written[key]}' or '{text}'", option=key
            )
        written[key] = text


def _as_list(key: str, value: str) -> str:
    """The override meant by a list without quotes around its items."""
    texts = [item.strip(" '\"") for item in value.partition("]")[0].lstrip("[").split(",")]
    items = []
    for text in filter(None, texts):
        items.append(text if _PLAIN.fullmatch(text) else quoted(text))
    inside = ",".join(items)
    return f"'{key}=[{inside}]'"


def quoted(value: str) -> str:
    """A value in quotes, inside which any character may stand."""
    # Hydra reads a backslash literally unless quotes follow, and would interpolate a dollar sign.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value)
    escaped = escaped.replace("${", "\\${")
    return f'"{escaped}"'


def missing_key(name: str) -> str:
    """Error text for a key that does not exist under the chosen options."""
    matching = [key for key in all_keys().values() if f"{key.name}.".startswith(f"{name}.")]
    if not matching or not matching[0].of_options:
        return _unknown(name)
    key = matching[0]
    text = f"{name} is a key of {key.of_options}, which is not chosen: "
    promises = _promises_with(key.group, key.options)
    if promises:
        text += f"write privacy={either(promises)}, which brings it"
    else:
        text += "write that too"
    of_records = f"dp_sgd.{name.rpartition('.')[2]}"
    if key.group == "privacy" and of_records in all_keys():
        text += f", or {of_records} for records"
    return text + ", or leave the key out"


def _promises_with(group: str, options: Sequence[str]) -> list[str]:
    """Promises that bring one of these options; none if the default promise does."""
    if group not in GROUPS or set(options) & set(getattr(PROMISES["central"].fitting, group)):
        return []
    return [
        name for name, promise in PROMISES.items() if getattr(promise.fitting, group)[0] in options
    ]


def wrong_value(key: str, written: str | None) -> str:
    """Error text for a value of the wrong type, or for a key inside a plain value.

    Args:
        key: The key with its group; a list's item has the list's key.
        written: The value as text; None if unknown.
    """
    name = re.sub(r"\[.*", "", key)
    if name in groups():
        return f"{name} is a group of keys: write for example {_example(name)}"
    if name not in all_keys():
        return _unknown(name)
    text = f"{name} must be {all_keys()[name].allowed}"
    if written == "null":
        return f"{text}, got null"
    if written is None:
        return text
    return f"{text}, got {written!r}"


def _add_option_of(key: str, schema: DictConfig) -> None:
    """Choose in a schema the first option that has a key, if not every option has it."""
    setting = all_keys().get(key)
    if setting is not None and setting.options:
        schema[setting.group] = OPTIONS[setting.group][setting.options[0]]


def check_option(group: str, option: str) -> None:
    """Check that a group has an option.

    Raises:
        ConfigError: It does not; the text names the nearest.
    """
    options = group_options()[group]
    if option in options:
        return
    instead = _GONE.get(f"{group}={option}")
    if instead is not None:
        raise ConfigError(f"{group}={option} is gone: write {instead}", option=group)
    near = get_close_matches(option, options, 1, 0.6)
    hint = f": did you mean {group}={near[0]}?" if near else ""
    raise ConfigError(
        f"there is no {group}={option}{hint} ({group} is one of {', '.join(options)})",
        option=group,
    )


def _unknown(key: str) -> str:
    group, _, name = key.replace("/", ".").partition(".")
    if group in OPTIONS and name == chosen_by(group):
        choices = either(group_options()[group])
        return f"{group}.{name} is chosen by the group: write {group}={choices}"
    near = nearest_keys(key)
    if near:
        return f"there is no key '{key}': did you mean {either(near)}?"
    if group in groups():
        inside = [setting.name for setting in all_keys().values() if setting.group == group]
        return f"there is no key '{key}': `fl-dp config {group}` lists {', '.join(inside)}"
    return f"there is no key '{key}': `fl-dp config` lists them all"


def _example(key: str) -> str:
    setting = all_keys().get(key)
    if setting is None:
        of_group = [candidate for candidate in all_keys().values() if candidate.group == key]
        setting = of_group[0] if of_group else all_keys()["privacy.epsilon"]
    value = "..." if setting.default is None else setting.default_text
    return f"{setting.name}={value}"
