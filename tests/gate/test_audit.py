"""An audit of what leaves a gate: neighbouring sites are told apart no better than charged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gated_site import adding

from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms.mechanism_events import GaussianEvent

ANSWERS = 200
CHARGED = 1.0  # noise multiplier
MODEL = {"w": np.zeros(2)}
# Of the estimate of a Gaussian mechanism's mu: two means of so many draws each.
DEVIATION = np.sqrt(2.0 / ANSWERS)
ALARM = 4.5  # deviations: a right gate is rejected once in 3e5 runs


def lower_bound(site: Any, name: str, multiplier: float) -> float:
    """Return a lower bound on mu, by the answers of a site with all of its data and with none."""
    means, deviations = [], []
    for data, update in (("with", np.array([1e6, 0.0])), ("without", 0.0)):
        policy = {"dp-gate-noise-multiplier": multiplier, "dp-max-epsilon": 1e9}
        here = site(adding(update), f"{name} {data}", **policy)
        drawn = [arrived.arrays["w"][0] for arrived in here.answers(MODEL, rounds=ANSWERS)]
        means.append(np.mean(drawn))
        deviations.append(np.std(drawn))
        with NodeLedger.read(here.ledger) as ledger:
            [spending] = ledger.spendings
        assert spending.releases == {GaussianEvent(noise_multiplier=multiplier): ANSWERS}
    return float((means[0] - means[1]) / np.mean(deviations) - ALARM * DEVIATION)


@pytest.mark.nightly
def test_neighbouring_sites_are_told_apart_no_better_than_charged_and_half_the_noise_is_found(
    site: Any,
) -> None:
    assert lower_bound(site, "right", CHARGED) < 1.0 / CHARGED
    # A gate that adds half of what it charges for is found; missed once in 1e7 runs.
    assert lower_bound(site, "half", CHARGED / 2.0) > 1.0 / CHARGED
