"""Time at which every node with secret coins answers a sum, so that it does not show them.

The last part of it is for noise and masks alone, which cost everybody the same. Else a lying server
could set a time that ends within the work of those who train, and see who is late.
"""

from __future__ import annotations

from fl_dp.option_errors import OptionError

_RESERVED = 0.25  # of the time
_LEAST_RESERVE = 1.0  # seconds
# Some four times what they take on a slow processor.
_RESERVE_A_MILLION = 0.5


def work_ends(reply_after: float) -> float:
    """Return the seconds after which a node's work must be done, or the node sends nothing."""
    return (1.0 - _RESERVED) * reply_after


def require_time(reply_after: float, size: int) -> None:
    """Check that noise and masks are done by then, whatever a node did before.

    Args:
        reply_after: Seconds.
        size: Coordinates of the sum.

    Raises:
        ValueError: If not.
    """
    least = (_LEAST_RESERVE + _RESERVE_A_MILLION * size * 1e-6) / _RESERVED
    if reply_after < least:
        raise OptionError(
            f"{{secure_sum.reply_after}} of {reply_after:g} s is too little for noise and masks "
            f"of {size} "
            f"coordinates, which would show whose coins came up: at least {least:.3g} s"
        )
