"""The report: one HTML file of one or several runs, for people who decide on a release.

It loads nothing: charts, styles and numbers are in the file, and its policy forbids the browser to
fetch anything or to run a script that is not one of ours.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .render import report_page
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["report_page"]
