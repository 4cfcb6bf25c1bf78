"""An option of a group, for example `clipping=adaptive`: its keys are read off what makes it.

    >>> adaptive = option("clipping", "adaptive", made_by(AdaptiveClipping, norm=key()))
    >>> adaptive(norm=0.2).make().norm
    0.2

A class of the library, or a function, makes an option. Its signature has the types and defaults of
the keys, its docstring their help, its checks their errors. Only listed names are keys: another
field of the class is none.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass, replace
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from fl_dp.option_errors import OptionError

from .checks import choices, one_of, tracked
from .docstring_sentences import sentences_of

_OF_THE_MAKER: Any = object()
_FIRST_WORD = re.compile(r"[\w.]*")
_NULL = re.compile(r"\b(?:None|NaN)\b")
_Option = TypeVar("_Option", bound="Option")


@dataclass(frozen=True, kw_only=True)
class KeyRule:
    """What an option says of one key; its maker says the rest.

    Attributes:
        default: Default in place of the maker's.
        required: Whether null stands for a value that still has to be written.
        check: A check that the type does not bring.
        tracked: Whether trackers get the value.
        tunable: Whether a candidate of a choice may change it.
        choices: Its values, where it has a fixed set of names.
    """

    default: Any = _OF_THE_MAKER
    required: bool = False
    check: Callable[[str, Any], None] | None = None
    tracked: bool = True
    tunable: bool = False
    choices: tuple[str, ...] = ()


key = KeyRule


@dataclass(frozen=True)
class MadeBy:
    """A class or function, and those of its arguments that are keys."""

    maker: Callable[..., Any]
    keys: Mapping[str, KeyRule]

    def fields(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, type and `dataclasses.field` of each key, in the order listed."""
        signed = self.maker.func if isinstance(self.maker, functools.partial) else self.maker
        parameters, sentences = inspect.signature(signed).parameters, sentences_of(signed)
        hints = _hints(signed)
        for name, rule in self.keys.items():
            hint, is_nullable, checks = _plain(hints[name])
            if rule.check is not None:
                checks += (rule.check,)
            if rule.choices:
                checks += (functools.partial(one_of, allowed=rule.choices),)
            default = parameters[name].default if rule.default is _OF_THE_MAKER else rule.default
            metadata = dict(tracked(None, tunable=rule.tunable).metadata) if rule.tracked else {}
            help_text = _in_keys(sentences.get(name, ""))
            metadata |= {"help": help_text, "checks": checks, "choices": rule.choices}
            if inspect.isclass(default) and issubclass(default, Option):
                yield name, default, field(default_factory=default, metadata=metadata)
                continue
            default = _plain_default(default)
            metadata["takes_null"] = is_nullable
            hint = hint | None if is_nullable or default is None else hint
            yield name, hint, field(default=default, metadata=metadata)


def made_by(maker: Callable[..., Any], **keys: KeyRule) -> MadeBy:
    """Return a maker with the arguments that are keys; other arguments are none."""
    return MadeBy(maker, keys)


@dataclass(kw_only=True)
class Option:
    """Values of one option's keys; `option` makes a class for each option, with its keys."""

    group: ClassVar[str] = ""
    option: ClassVar[str] = ""
    makers: ClassVar[tuple[MadeBy, ...]] = ()
    checked_by: ClassVar[Mapping[str, Any] | None] = None  # `given` of a maker that checks early

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            """Take values by key; type checkers do not know the keys."""

        def __getattr__(self, key: str) -> Any:
            """Return a key's value."""

    def __str__(self) -> str:
        """Return the option."""
        return self.option

    def __post_init__(self) -> None:
        """Check the values; what makes the option does so once all of them are there."""
        for name, setting in type(self).__dataclass_fields__.items():
            for check in setting.metadata.get("checks", ()):
                check(f"{self.group}.{name}", getattr(self, name))
        choices(self.group, self)
        rules = {name: rule for made in self.makers for name, rule in made.keys.items()}
        if all(self.get(name) is not None for name, rule in rules.items() if rule.required):
            self.check()

    def check(self) -> None:
        """Check the values together, by what makes the option.

        Raises:
            OptionError: If a value is missing or out of range.
        """
        if self.checked_by is not None:
            self.make(**self.checked_by)

    def get(self, key: str) -> Any:
        """Return a key's value; None if the option has no such key."""
        return getattr(self, key, None)

    def with_values(self, **values: Any) -> Self:
        """Return the option with other values, checked anew."""
        return replace(self, **values)

    def has(self, maker: Callable[..., Any]) -> bool:
        """Tell whether a maker is one of the option's."""
        return any(made.maker is maker for made in self.makers)

    def make(self, **given: Any) -> Any:
        """Return what the option stands for.

        Args:
            given: Arguments that are no keys; those that the maker does not take are left out.

        Raises:
            OptionError: If a value is out of range; the text names its key.
        """
        return self.make_by(self.makers[0].maker, **given)

    def make_by(self, maker: Callable[..., Any], **given: Any) -> Any:
        """Return what one of the makers makes; see `make`."""
        arguments = self.arguments(maker)
        taken = given.keys() & inspect.signature(maker).parameters.keys()
        with self.named_as_keys(maker):
            return maker(**{name: given[name] for name in taken}, **arguments)

    def arguments(self, maker: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments of a maker that are keys; null is left out where it takes none."""
        arguments = {}
        for name in self._keys_of(maker):
            value, setting = getattr(self, name), type(self).__dataclass_fields__[name]
            if isinstance(value, Option):
                arguments[name] = value.make()
            elif value is not None or setting.metadata["takes_null"]:
                arguments[name] = tuple(value) if isinstance(value, list) else value
        return arguments

    @contextmanager
    def named_as_keys(self, maker: Callable[..., Any]) -> Iterator[None]:
        """Let an error that begins with an argument of a maker begin with its key, and carry it."""
        try:
            yield
        except OptionError as error:
            text = str(error)
            word = _FIRST_WORD.match(text)[0]  # type: ignore[index]  # it matches any text
            name = _FIRST_WORD.match(error.option or text)[0].rpartition(".")[2]  # type: ignore[index]  # as above
            if name in self._keys_of(maker):
                error.option = f"{self.group}.{name}"
                if f".{error.option}".endswith(f".{word}"):
                    text = f"{error.option}{text.removeprefix(word)}"
                error.args = (_in_keys(text),)
            raise

    def _keys_of(self, maker: Callable[..., Any]) -> Mapping[str, KeyRule]:
        return next(made.keys for made in self.makers if made.maker is maker)


def option(
    group: str,
    name: str,
    *makers: MadeBy,
    base: type[_Option],
    chosen_by: str = "name",
    chosen: str | bool | None = None,
    **own: Any,
) -> type[_Option]:
    """Return the class of an option.

    Args:
        group: For example `clipping`; of a group inside another one, with both names.
        name: Value of the group's own key; empty for a group without options.
        makers: What makes the option, one after the other.
        base: Its base class.
        chosen_by: Field that tells the option from the group's others.
        chosen: Its value; None: the name.
        own: Values of the base's class variables.
    """
    value = name if chosen is None else chosen
    fields: list[tuple[str, Any, Any]] = [(chosen_by, type(value), tracked(value))] if name else []
    for made in makers:
        fields += made.fields()
    namespace = {"group": group, "option": name, "makers": makers, **own}
    title = "".join(part.title() for part in f"{name}_{group}".replace(".", "_").split("_"))
    made_class = make_dataclass(title, fields, bases=(base,), namespace=namespace, kw_only=True)
    return typing.cast("type[_Option]", made_class)


def _hints(signed: Any) -> dict[str, Any]:
    """Types of arguments; that of the result may be one that nothing has imported yet."""
    if inspect.isclass(signed):
        return typing.get_type_hints(signed, include_extras=True)
    arguments = {name: hint for name, hint in signed.__annotations__.items() if name != "return"}
    of_arguments: Any = SimpleNamespace(__annotations__=arguments)
    return typing.get_type_hints(of_arguments, signed.__globals__, include_extras=True)


def _plain(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return a type of YAML's, whether it includes null, and the checks of its annotation."""
    parts = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else (hint,)
    )
    (kind,) = (part for part in parts if part is not type(None))
    checks: tuple[Any, ...] = ()
    if typing.get_origin(kind) is Annotated:
        kind, *checks_of_kind = typing.get_args(kind)
        checks = tuple(checks_of_kind)
    if typing.get_origin(kind) is tuple:
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]  # a type that is known at run time
    elif inspect.isclass(kind) and issubclass(kind, Enum):
        kind = str
    return kind, len(parts) > 1, checks


def _plain_default(default: Any) -> Any:
    """Return a default as YAML has it; null where there is none."""
    if default is inspect.Parameter.empty or (isinstance(default, float) and math.isnan(default)):
        return None
    return default.value if isinstance(default, Enum) else default


def _in_keys(sentence: str) -> str:
    """Return a sentence in YAML's words."""
    return _NULL.sub(
        lambda word: "null" if word.start() and sentence[word.start() - 2] not in ".:" else "Null",
        sentence,
    )
