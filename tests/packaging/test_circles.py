"""Imports between files run one way: no file imports itself by way of others.

An import counts wherever it stands: on top of a file, in a function, or for type checkers alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from source_imports import arrows


def circle(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """Return one circle of files; empty: there is none."""
    graph: dict[str, set[str]] = {}
    for module, target in arrows:
        graph.setdefault(module, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert circle([("a", "b"), ("b", "c")]) == []
    assert set(circle([("a", "b"), ("b", "c"), ("c", "a")])) == {"a", "b", "c"}


def test_parts_of_a_room_do_not_import_each_other_in_circles() -> None:
    """A folder is one part, with all its files; so is a file that stands beside it."""
    rooms = {module.rsplit(".", depth)[0] for module, _ in arrows() for depth in (1, 2)}
    assert {"fl_dp", "fl_dp.app", "fl_dp.app.settings", "fl_dp.lab"} <= rooms
    for room in rooms:
        inside = f"{room}."
        parts = {
            (module[len(inside) :].partition(".")[0], target[len(inside) :].partition(".")[0])
            for module, target in arrows()
            if module.startswith(inside) and target.startswith(inside)
        }
        assert (room, circle((part, other) for part, other in parts if part != other)) == (room, [])


def test_files_do_not_import_each_other_in_circles() -> None:
    found = arrows()
    assert len(found) > 1000
    assert ("fl_dp.strategies.dp_fedavg", "fl_dp.accounting.budget") in found  # by the package
    assert circle(found) == []
