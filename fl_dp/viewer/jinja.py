"""Templates of the viewer, read by one set of rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(folder: Path, **options: Any) -> Environment:
    """A folder's templates: missing names are errors, and HTML is escaped.

    Options of Jinja add to these or replace them.

    Raises:
        ModuleNotFoundError: Without jinja2, which `pip install 'fl-dp[viewer]'` brings.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ModuleNotFoundError(
            "reports and papers need jinja2: pip install 'fl-dp[viewer]' brings it"
        ) from error
    usual: dict[str, Any] = {
        "autoescape": True,
        "undefined": StrictUndefined,
        "loader": FileSystemLoader(folder),
        "trim_blocks": True,
        "lstrip_blocks": True,
    }
    return Environment(**usual | options)
