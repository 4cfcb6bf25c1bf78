"""Parameters that are sent, and those that stay on the node: a filter before clipping.

    >>> part = SharedPart.of(["body.weight", "body.bias", "head.weight"], ["body.*"])
    >>> part.shared, part.personal
    (('body.weight', 'body.bias'), ('head.weight',))

Personal parameters are no part of the update: they use nothing of the clipping norm and get no
noise.

References:
    Arivazhagan et al. 2019, "Federated Learning with Personalization Layers".

    Pillutla et al. 2022, "Federated Learning with Partial Model Personalization".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:  # data sets match names by the same patterns, and settings know data sets
    from flwr.app import ArrayRecord

Values = TypeVar("Values")


@dataclass(frozen=True, kw_only=True)
class SharedPart:
    """Names of a model's parameters by their location, each in the model's order.

    Attributes:
        shared: Parameters that are sent.
        personal: Parameters that each unit trains and keeps.
        frozen: Parameters that no client trains: each has them from the first model.
    """

    shared: tuple[str, ...]
    personal: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        patterns: Sequence[str] | None,
        *,
        frozen: Collection[str] = (),
    ) -> Self:
        """The parts of a model.

        Args:
            names: Names of all its arrays, in order.
            patterns: Names to share, with `*` and `?` as in file names, case-sensitive. None: all
                that are not frozen.
            frozen: Those that no client trains; a pattern that matches one shares nothing.

        Raises:
            ValueError: There is no pattern, one matches nothing, or all together match everything.
        """
        trained = [name for name in names if name not in frozen]
        untrained = tuple(name for name in names if name in frozen)
        if patterns is None:
            return cls(shared=tuple(trained), frozen=untrained)
        if isinstance(patterns, str) or not patterns:
            example = trained[0] if trained else "body.*"
            raise ValueError(
                f"shared parameters must be a list of names or patterns, got {patterns!r}: write "
                f"for example ['{example}']"
            )
        idle = [pattern for pattern in patterns if not matching(trained, [pattern])]
        if idle:
            raise ValueError(
                f"shared parameters: '{idle[0]}' matches none of the parameters that are trained: "
                f"{', '.join(trained)}"
            )
        chosen = matching(trained, patterns)
        if len(chosen) == len(trained):
            raise ValueError(
                f"shared parameters: {', '.join(patterns)} match every parameter, so that nothing "
                "stays on the node: leave the patterns out, or name fewer"
            )
        personal = tuple(name for name in trained if name not in chosen)
        return cls(shared=tuple(chosen), personal=personal, frozen=untrained)

    def of_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays that are sent: the server's first model.

        Raises:
            ValueError: One is missing.
        """
        missing = [name for name in self.shared if name not in arrays]
        if missing:
            raise ValueError(f"'{missing[0]}' is shared, and the model has {', '.join(arrays)}")
        from flwr.app import ArrayRecord

        return ArrayRecord({name: arrays[name] for name in self.shared})

    def require_sent(self, names: Iterable[str]) -> None:
        """Check that a message has the shared parameters, in order, and nothing else.

        Raises:
            ValueError: It asks for more, for less, or for others.
        """
        sent = tuple(names)
        if sent != self.shared:
            other = sorted(set(sent) ^ set(self.shared)) or ["their order"]
            raise ValueError(
                f"the server's model does not have the parameters that this node shares; the "
                f"difference is {', '.join(other[:5])}"
            )


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that any of the patterns is or matches, in their order.

    A name may have brackets, as JAX writes them, which a pattern would read as a choice.
    """
    every = frozenset(patterns)
    return [name for name in names if name in every or any(fnmatchcase(name, p) for p in every)]


def values_in_order(names: Iterable[str], values: Mapping[str, Values]) -> list[Values]:
    """Values in the order of names."""
    return [values[name] for name in names]
