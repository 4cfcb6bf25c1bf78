"""One line of a sweep's results, for tests to change."""

from __future__ import annotations

from fl_dp.guarantee import Against, Guarantee
from fl_dp.terminal.results import Result

RESULT = Result(
    path="run-0",
    curve="local, gaussian",
    x="0.5",
    seed=0,
    accuracy=0.9,
    loss=0.25,
    measured_on="test",
    promise=Guarantee(
        epsilon=0.5, delta=1e-5, unit="client", neighbours="zero-out", against=Against.MODELS
    ),
    noise_multiplier=1.5,
    noise_of_mean=0.01,
    rounds=60,
    seconds=12.5,
    versions="python 3.12;numpy 2.0",
)
