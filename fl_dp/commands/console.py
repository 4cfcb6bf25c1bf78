"""Words that every command shares: its arguments, its output, its errors and exit statuses."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType

from .extras import with_its_extra

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def each_written_once(overrides: list[str] | None) -> list[str] | None:
    """Refuse a key that is written twice, of which the last would win in silence."""
    from fl_dp.app.overrides import require_once

    with failures_told():
        require_once(overrides or [])
    return overrides


# The help of arguments stands in the commands' own texts: not every version of click shows it.
Overrides = Annotated[
    list[str] | None, typer.Argument(show_default=False, callback=each_written_once)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@contextmanager
def failures_told(*, as_json: bool = False) -> Iterator[None]:
    """Turn what is wrong with the input of a command into one line and an exit status.

    2 for what somebody wrote or a file that is missing, 1 for a ledger that was altered.

    Args:
        as_json: Print the error as a document, too.
    """
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        said = with_its_extra(error)
        if as_json:
            print_json({"error": said})
        fail(said, status=2)
    except RuntimeError as error:
        from fl_dp.ledger import LedgerCorrupted

        if not isinstance(error, LedgerCorrupted):
            raise
        fail(str(error), status=1)


def shows_live(console: Console) -> bool:
    """Return whether a line can be written over: on a terminal that knows how.

    A notebook or a log may ask for colours by `FORCE_COLOR`, and rich takes it for a terminal then;
    a line that is written over would fill it.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


@contextmanager
def doing(what: str, *, plainly: bool = False) -> Iterator[Callable[[str], None]]:
    """Say what is being computed or loaded before it starts, on standard error.

    Args:
        what: For example `calibrating the noise`.
        plainly: Also where that is no terminal, as a line of its own.

    Yields:
        What says how far it is.
    """
    if shows_live(err):
        with err.status(what) as status:
            yield lambda far: status.update(f"{what}: {far}")
        return
    if plainly:
        err.print(what, soft_wrap=True, markup=False)
    yield lambda far: err.print(f"{what}: {far}", soft_wrap=True, markup=False)


class _Saying(logging.Handler):
    """Hands each line of a logger on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@contextmanager
def told_by(logger: logging.Logger, say: Callable[[str], None]) -> Iterator[None]:
    """Say what a logger says, and keep it from others."""
    handler = _Saying(say)
    level, passed_on = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = passed_on, level


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Turn Python's warnings into lines of ours, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        warn(text)


def finite(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with null for what JSON has no number for."""
    found: dict[str, Any] = json.loads(json.dumps(document), parse_constant=lambda _: None)
    return found


def print_json(document: dict[str, Any]) -> None:
    """Print the one document of `--json`."""
    typer.echo(json.dumps(finite(document), indent=2, allow_nan=False))


def print_plainly(console: Console, *lines: RenderableType) -> None:
    """Print tables, and sentences as they are: without markup, and no line is broken."""
    for line in lines:
        if isinstance(line, str):
            console.print(line, soft_wrap=True, markup=False)
        else:
            console.print(line)


def print_shown(document: dict[str, Any], lines: Sequence[RenderableType], as_json: bool) -> None:
    """Print a document for a program, or lines for a person: tables and sentences."""
    if as_json:
        print_json(document)
        return
    for line in lines:
        out.print(line, soft_wrap=isinstance(line, str))


def tell(text: str) -> None:
    """Print one sentence for a person, which the terminal may break and nothing may colour."""
    out.print(text, soft_wrap=True, markup=False)


def warn(text: str) -> None:
    """Print a caution; the command goes on."""
    err.print(f"warning: {text}", style="yellow", soft_wrap=True, markup=False)


def note(text: str) -> None:
    """Print what was decided where nobody said, on standard error."""
    err.print(text, soft_wrap=True, markup=False)


def require_one_of(option: str, value: str, known: Sequence[str]) -> str:
    """Return the value of an option, or exit with what it may be."""
    if value not in known:
        near = "".join(f": did you mean {name}?" for name in get_close_matches(value, known, 1))
        fail(f"{option} must be one of {', '.join(known)}, got '{value}'{near}", status=2)
    return value


def fail(text: str, *, status: int) -> NoReturn:
    """Print one line that says what was wrong, and exit."""
    err.print(f"error: {text}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(status)
