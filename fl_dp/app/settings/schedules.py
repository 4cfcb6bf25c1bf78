"""The options of `schedule=NAME`: how the rounds share the budget."""

from __future__ import annotations

from functools import partial

from fl_dp.accounting.noise_schedule import SHAPES, NoiseSchedule

from .option import KeyRule, Option, key, made_by, option


def _schedule(name: str, **keys: KeyRule) -> type[Option]:
    made = made_by(partial(NoiseSchedule, name=name), **keys)
    return option("schedule", name, made, base=Option, checked_by={})


SCHEDULES: dict[str, type[Option]] = {
    "constant": _schedule("constant"),
    **{
        name: _schedule(name, spend=key(choices=("early", "late")), floor=key(), levels=key())
        for name in SHAPES
        if name != "constant"
    },
    "custom": _schedule("custom", weights=key(required=True), levels=key()),
}
