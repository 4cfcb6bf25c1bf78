"""The error of options that are fine alone and can't go together."""

from __future__ import annotations


class IncompatibleOptions(ValueError):
    """Options exclude each other; the text says why, and what to write instead.

    Whoever knows the reason raises it, once. Every place that does has a row in the table of
    `docs/configuration.md`, which a test sees to.
    """
