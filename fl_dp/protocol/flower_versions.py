"""Tested versions of Flower, and the error of another: a file of its own, as it needs no Flower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

TESTED = ("1.41", "1.42")
"""Versions of Flower that the whole suite runs with, before every release."""


class FlowerChanged(ImportError):
    """The installed Flower lacks something that fl-dp needs."""


@contextmanager
def parts_of_flower() -> Iterator[None]:
    """Import parts of Flower that its makers may move: those that its documentation leaves out.

    Raises:
        FlowerChanged: If an import of the block fails; names the versions that were tested.
    """
    try:
        yield
    except ImportError as error:
        raise FlowerChanged(
            f"flwr {version('flwr')} lacks something that fl-dp needs ({error}); fl-dp was tested "
            f"with flwr {' and '.join(TESTED)}: pip install 'flwr=={TESTED[-1]}.*'"
        ) from error
