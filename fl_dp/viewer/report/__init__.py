"""The report: one HTML file of one or several runs, for people who decide on a release.

It loads nothing: charts, styles and numbers are in the file, and its policy forbids the browser to
fetch anything or to run a script that is not one of ours.
"""

from .render import report_page

__all__ = ["report_page"]
