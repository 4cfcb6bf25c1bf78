"""Parameters that travel, and those that stay on the node: a filter before clipping.

    >>> part = SharedPart.of(["body.weight", "body.bias", "head.weight"], ["body.*"])
    >>> part.shared, part.personal
    (('body.weight', 'body.bias'), ('head.weight',))

What stays has no place in the update, so it takes nothing of the clipping norm and gets no noise.

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
    """Names of a model's parameters by where they live.

    Attributes:
        shared: Those that travel, in the model's order.
        personal: Those that each unit trains and keeps, in the model's order.
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
        """Return the parts of a model.

        Args:
            names: Of all its arrays, in order.
            patterns: Names of the parameters to share, with `*` and `?` as in file names; a capital
                is a capital. None: all that are not frozen.
            frozen: Names of those that no client trains; a pattern that matches one shares nothing.

        Raises:
            ValueError: If there is no pattern, one matches nothing, or all together match
                everything.
        """
        trained = [name for name in names if name not in frozen]
        kept = tuple(name for name in names if name in frozen)
        if patterns is None:
            return cls(shared=tuple(trained), frozen=kept)
        if isinstance(patterns, str) or not patterns:
            raise ValueError(
                f"shared parameters must be a list of names or patterns, got {patterns!r}: write "
                f"for example ['{trained[0] if trained else 'body.*'}']"
            )
        idle = [each for each in patterns if not matching(trained, [each])]
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
        return cls(shared=tuple(chosen), personal=personal, frozen=kept)

    def of_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the arrays that travel: what a server starts with.

        Raises:
            ValueError: If one is missing.
        """
        missing = [name for name in self.shared if name not in arrays]
        if missing:
            raise ValueError(f"'{missing[0]}' is shared, and the model has {', '.join(arrays)}")
        from flwr.app import ArrayRecord

        return ArrayRecord({name: arrays[name] for name in self.shared})

    def require_sent(self, names: Iterable[str]) -> None:
        """Check that a message has the shared parameters, in order, and nothing else.

        Raises:
            ValueError: If it asks for more, for less, or for others.
        """
        sent = tuple(names)
        if sent != self.shared:
            other = sorted(set(sent) ^ set(self.shared)) or ["their order"]
            raise ValueError(
                f"the server's model does not have the parameters that this node shares; the "
                f"difference is {', '.join(other[:5])}"
            )


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that any of the patterns matches, in their order."""
    asked = tuple(patterns)
    return [name for name in names if any(fnmatchcase(name, each) for each in asked)]


def in_order(names: Iterable[str], values: Mapping[str, Values]) -> list[Values]:
    """Return values in the order of names."""
    return [values[name] for name in names]
