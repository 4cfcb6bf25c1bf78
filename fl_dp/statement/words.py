"""Words and figures that statements share, built from the sentences."""

from __future__ import annotations

from collections.abc import Mapping

from fl_dp.accounting import NeighboringRelation, PrivacyEvent
from fl_dp.accounting.events import RandomStoppingEvent
from fl_dp.accounting.second_figure import TOLERANCE, SecondFigure
from fl_dp.promise import rounded_up

from .sentences import EVENTS, NEIGHBOURS, SECOND_FIGURE, UNITS


def neighbours_in_words(unit: str, relation: NeighboringRelation) -> str:
    """Return the neighbouring data in words, by a unit's words and a relation."""
    return NEIGHBOURS[unit_of_words(unit)][relation]


def unit_of_words(words: str) -> str:
    """Return the unit that a statement describes, a key of `UNITS`; `client` if it is none."""
    return next((unit for unit, described in UNITS.items() if described == words), "client")


def describe_event(event: PrivacyEvent) -> str:
    """Return one line on a release, for a person."""
    slots = dict(vars(event))
    if isinstance(event, RandomStoppingEvent):
        lines = [f"{count} x {describe_event(release)}" for release, count in event.releases]
        slots["run"] = ", ".join(lines)
    return EVENTS[event.kind].format(**slots)


def second_figure_in_words(second: SecondFigure) -> str:
    """Return a page's sentences on dp-accounting's figure."""
    if second.epsilon is None or second.ours is None:
        return SECOND_FIGURE["none"].format(how=second.how)
    if second.above_ours:
        verdict, percent = "above", 100.0 * second.difference
    elif second.difference < -TOLERANCE:
        verdict, percent = "below", -100.0 * second.difference
    else:
        verdict, percent = "equal", 100.0 * TOLERANCE
    return SECOND_FIGURE[verdict].format(
        how=second.how,
        theirs=rounded_up(second.epsilon),
        ours=rounded_up(second.ours),
        percent=percent,
    )


def figure_of(second: SecondFigure) -> str:
    """Return the second figure's epsilon, rounded up; empty where there is none."""
    return "" if second.epsilon is None else rounded_up(second.epsilon)


def not_covered_of(
    sentences: Mapping[str, str], holds: Mapping[str, bool], **slots: object
) -> list[str]:
    """Return the sentences that hold, in order, with slots filled.

    Sentences that `holds` does not name always hold.
    """
    return [text.format(**slots) for name, text in sentences.items() if holds.get(name, True)]
