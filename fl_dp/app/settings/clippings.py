"""The options of `clipping=NAME`: the bound on one client's update."""

from __future__ import annotations

from collections.abc import Callable

from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, PerLayerClipping

from .checks import Positive
from .option import KeyRule, MadeBy, Option, key, made_by, option


def per_layer(
    num_arrays: Callable[[], int], *, norm: Positive = 0.5, norms: tuple[float, ...] | None = None
) -> PerLayerClipping:
    """Return a bound for each floating-point array.

    Args:
        num_arrays: Counts the floating-point arrays of the model, which it has to build.
        norm: Joint L2 bound, shared evenly.
        norms: One bound per floating-point array; None shares `norm` evenly.
    """
    if norms is not None:
        return PerLayerClipping(norms=norms)
    return PerLayerClipping.evenly(norm, num_arrays())


def _clipping(name: str, made: MadeBy) -> type[Option]:
    return option("clipping", name, made, base=Option, checked_by={"num_arrays": lambda: 1})


_NORM = KeyRule(tunable=True)

CLIPPINGS: dict[str, type[Option]] = {
    "fixed": _clipping("fixed", made_by(FixedClipping, norm=key(default=0.5, tunable=True))),
    "adaptive": _clipping(
        "adaptive",
        made_by(AdaptiveClipping, norm=_NORM, target_quantile=key(), learning_rate=key()),
    ),
    "per_layer": _clipping("per_layer", made_by(per_layer, norm=_NORM, norms=key())),
}
