"""Shared by all commands: arguments, output, errors and exit statuses."""

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

from fl_dp.option_errors import OptionError
from fl_dp.terminal.live_console import shows_live

from .extras import with_its_extra

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def written_once(overrides: list[str] | None) -> list[str] | None:
    """Refuse a key that is written twice, of which the last would win without a word."""
    from fl_dp.app.overrides import require_once

    with exit_on_errors():
        require_once(overrides or [])
    return overrides


# The help of arguments is part of the commands' own texts: not every version of click shows it.
Overrides = Annotated[list[str] | None, typer.Argument(show_default=False, callback=written_once)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@contextmanager
def exit_on_errors(*, as_json: bool = False) -> Iterator[None]:
    """Turn an error in a command's input into one line and an exit status.

    Status 2 is for wrong input, a missing file or a spent budget, 1 for a ledger that was altered.

    Args:
        as_json: Whether to print the error, and the options that it is about, as a document as
            well.
    """
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        text = with_its_extra(error)
        if as_json:
            options = error.options if isinstance(error, OptionError) else ()
            print_json({"error": text, "options": list(options)})
        fail(text, status=2)
    except RuntimeError as error:
        from fl_dp.accounting import PrivacyBudgetExhausted
        from fl_dp.ledger import LedgerCorrupted

        if isinstance(error, PrivacyBudgetExhausted):
            fail(str(error), status=2)
        if not isinstance(error, LedgerCorrupted):
            raise
        fail(str(error), status=1)


@contextmanager
def doing(work: str, *, plainly: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is being computed, for example `calibrating the noise`.

    With `plainly` that is a line of its own where standard error is no terminal.

    Yields:
        A function that shows the progress.
    """
    if shows_live(err):
        with err.status(work) as status:
            yield lambda far: status.update(f"{work}: {far}")
        return
    if plainly:
        err.print(work, soft_wrap=True, markup=False)
    yield lambda far: err.print(f"{work}: {far}", soft_wrap=True, markup=False)


class _Redirect(logging.Handler):
    """Passes each line of a logger on."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


@contextmanager
def redirected_log(logger: logging.Logger, show: Callable[[str], None]) -> Iterator[None]:
    """Pass the lines of a logger to `show` alone."""
    handler = _Redirect(show)
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
    """Turn Python's warnings into lines of fl-dp, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        warn(text)


def finite(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with null in place of infinite and missing numbers, which JSON lacks."""
    cleaned: dict[str, Any] = json.loads(json.dumps(document), parse_constant=lambda _: None)
    return cleaned


def print_json(document: dict[str, Any]) -> None:
    """Print the one document of `--json`."""
    typer.echo(json.dumps(finite(document), indent=2, allow_nan=False))


def print_plainly(console: Console, *lines: RenderableType) -> None:
    """Print tables and sentences, without markup and without breaking lines."""
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
    """Print one sentence for a person, without markup."""
    out.print(text, soft_wrap=True, markup=False)


def warn(text: str) -> None:
    """Print a caution; the command continues."""
    err.print(f"warning: {text}", style="yellow", soft_wrap=True, markup=False)


def note(text: str) -> None:
    """Print a decision that no setting made, on standard error."""
    err.print(text, soft_wrap=True, markup=False)


def require_one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    """Return the value of an option, or exit with the allowed values."""
    if value not in allowed:
        near = "".join(f": did you mean {name}?" for name in get_close_matches(value, allowed, 1))
        fail(f"{option} must be one of {', '.join(allowed)}, got '{value}'{near}", status=2)
    return value


def fail(text: str, *, status: int) -> NoReturn:
    """Print one line that says what was wrong, and exit."""
    err.print(f"error: {text}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(status)
