"""Papers of a run, generated from its statement; each says what a person must still fill in."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .files import PAPERS, write_paper
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["PAPERS", "write_paper"]
