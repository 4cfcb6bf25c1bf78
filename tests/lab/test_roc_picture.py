"""The picture of membership attacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fl_dp.accounting import epsilon_delta_trade_off, gaussian_trade_off
from fl_dp.lab.attacks.membership.roc import Roc, plot_roc


def test_attacks_are_drawn_below_what_is_allowed(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rocs = {
        name: Roc(draws.normal(shift, 1.0, 500), draws.normal(0.0, 1.0, 500))
        for name, shift in (("loss threshold", 0.2), ("lira online", 1.0))
    }
    allowed = {
        "allowed by epsilon 2": epsilon_delta_trade_off(2.0, 1e-5),
        "allowed by all": gaussian_trade_off(1.0),
    }
    target = tmp_path / "roc.png"
    for curves in (allowed, {}):  # what is promised, and nothing
        drawn = plot_roc(rocs, curves, target, title="A record", rates=(0.001, 0.01), alpha=0.05)
        assert drawn
        assert target.read_bytes().startswith(b"\x89PNG")
