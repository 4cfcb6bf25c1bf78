"""The report: one HTML file on one or several runs, for people who decide on a release.

Charts, styles and numbers are in the file. Its policy allows no fetch and no foreign script.
"""

from .page_file import write_report
from .render import report_page

__all__ = ["report_page", "write_report"]
