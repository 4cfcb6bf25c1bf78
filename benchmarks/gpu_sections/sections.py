"""All sections in the order of their worth, what each runs, and its limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench


@dataclass(frozen=True, kw_only=True)
class Section:
    """What is measured in one process.

    Attributes:
        name: As the rows have it.
        most_s: Seconds after which it is ended.
        function: `file.function` of this folder; a process imports what its section needs.
        options: Its arguments besides the bench.
    """

    name: str
    most_s: float
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, bench: Bench) -> None:
        """Measure it in this process."""
        file, _, name = self.function.partition(".")
        getattr(import_module(f"{__package__}.{file}"), name)(bench, **self.options)


def _rounds(name: str, most_s: float, framework: str, **options: Any) -> Section:
    options = {"framework": framework, "private": True} | options
    return Section(name=name, most_s=most_s, function="cifar.rounds", options=options)


def _dp_sgd(model: str, most_s: float) -> Section:
    return Section(
        name=f"DP-SGD, {model}", most_s=most_s, function="dp_sgd.steps", options={"model": model}
    )


SECTIONS = (
    Section(name="noise", most_s=45, function="noise.noise"),
    _rounds("CIFAR-10, fl-dp", 50, "fl-dp"),
    _rounds("CIFAR-10, pfl-research", 50, "pfl-research"),
    _rounds("CIFAR-10, fl-dp, Ray", 75, "fl-dp", engine="flower"),
    _dp_sgd("small CNN", 45),
    _dp_sgd("ResNet-18", 75),
    _dp_sgd("transformer", 60),
    Section(name="CIFAR-10, pfl-research, processes", most_s=90, function="cifar.processes"),
    Section(name="units", most_s=50, function="units.units"),
    Section(name="users", most_s=60, function="cifar.users"),
    Section(name="tests", most_s=75, function="device_tests.tests"),
    _rounds("CIFAR-10, train_private", 50, "fl-dp", engine="train_private"),
    _rounds("CIFAR-10, fl-dp, no privacy", 50, "fl-dp", private=False),
    _rounds("CIFAR-10, pfl-research, no privacy", 50, "pfl-research", private=False),
    _rounds("CIFAR-10, fl-dp, Ray, no privacy", 75, "fl-dp", private=False, engine="flower"),
)
