"""The picture of membership attacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fl_dp.accounting import epsilon_delta_trade_off, gaussian_trade_off
from fl_dp.lab.membership_view import RocCurve, plot_roc


def test_attacks_are_drawn_below_what_is_allowed(tmp_path: Path) -> None:
    rates = np.linspace(0.0, 1.0, 50)
    curves = {
        "loss threshold": RocCurve(fpr=rates, tpr=rates**0.8, points=[(0.01, 0.03, 0.01, 0.06)]),
        "lira online": RocCurve(fpr=rates, tpr=rates**0.5),
    }
    allowed = {
        "allowed by epsilon 2": epsilon_delta_trade_off(2.0, 1e-5),
        "allowed by all": gaussian_trade_off(1.0),
    }
    target = tmp_path / "roc.png"
    assert plot_roc(curves, allowed, target, title="Membership of a record", least=5e-4)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert plot_roc(curves, {}, target, title="Nothing is promised", least=5e-4)
