"""Tested versions of Flower, and the error of another; it uses no part of Flower that may move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import flwr

TESTED = ("1.41", "1.42")
"""Versions of Flower that CI tests; `requirements.lock` has the last of them."""


class FlowerChanged(ImportError):
    """The installed Flower lacks something that fl-dp needs."""

    def __init__(self, lacking: object) -> None:
        """Name the installed version, what it lacks, and what to install.

        `lacking` is the missing part in words, or the error that names it.
        """
        super().__init__(
            # Not that of a package's metadata: nightly versions are another package.
            f"flwr {flwr.__version__} lacks something that fl-dp needs ({lacking}); fl-dp was "
            f"tested with flwr {' and '.join(TESTED)}: pip install 'flwr=={TESTED[-1]}.*'"
        )


@contextmanager
def parts_of_flower() -> Iterator[None]:
    """Import parts of Flower that may move: its documentation leaves them out.

    Raises:
        FlowerChanged: An import in the block fails; the text names the tested versions.
    """
    try:
        yield
    except ImportError as error:
        raise FlowerChanged(error) from error
