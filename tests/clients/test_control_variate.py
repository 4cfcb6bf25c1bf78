"""A control variate brings clients that pull apart to what all of them want."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from fl_dp.clients.control_variate import ControlVariate

STEPS, RATE = 10, 0.05
CURVATURES, WANTED = (1.0, 6.0), (4.0, -1.0)  # of two clients' quadratic losses
BEST = np.average(WANTED, weights=CURVATURES)  # of their sum


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def variate(kept: Context, model: NDArray[Any], number: int, **more: Any) -> ControlVariate:
    asked = {"unit": 0, "server_round": number, "pace": STEPS * RATE, **more}
    return ControlVariate(kept, sent={"x": model}, **asked)


def trained(
    model: NDArray[Any], curvature: float, wanted: float, correction: NDArray[Any]
) -> NDArray[Any]:
    for _ in range(STEPS):
        model = model - RATE * (curvature * (model - wanted) + correction)
    return model


def federation(*, corrected: bool, gain: float = 1.0, sitting_out: int = 0) -> float:
    """Return where rounds without noise end; the first client sits out all but some rounds."""
    clients = [context(), context()]
    model = np.zeros(1)
    for number in range(1, 400):
        after = []
        for place, kept in enumerate(clients):
            if place == 0 and number % (sitting_out + 1):
                after.append(model)  # its update is zero
                continue
            own = variate(kept, model, number, gain=gain)
            step = own.correction["x"] if corrected else np.zeros(1)
            after.append(trained(model, CURVATURES[place], WANTED[place], step))
            own.keep({"x": after[-1]})
        model = model + gain * (np.mean(after, axis=0) - model)
    return float(model[0])


def test_clients_that_pull_apart_meet_where_their_sum_is_least() -> None:
    assert federation(corrected=True) == pytest.approx(BEST, abs=1e-3)
    assert abs(federation(corrected=False) - BEST) > 0.5  # what it is for


def test_a_server_that_moves_further_is_reckoned_with() -> None:
    assert federation(corrected=True, gain=1.5) == pytest.approx(BEST, abs=1e-3)


def test_the_first_round_is_not_corrected() -> None:
    assert not variate(context(), np.ones(3), 1).correction["x"].any()


def test_rounds_that_were_sat_out_share_the_way() -> None:
    kept = context()
    first = variate(kept, np.zeros(2), 3)
    first.keep({"x": np.zeros(2)})
    second = variate(kept, np.array([1.0, -2.0]), 7, gain=2.0)
    assert second.correction["x"] == pytest.approx(np.array([-1.0, 2.0]) / (4 * STEPS * RATE * 2.0))


def test_a_round_that_is_asked_again_divides_by_no_zero() -> None:
    kept = context()
    variate(kept, np.zeros(2), 3).keep({"x": np.zeros(2)})
    assert np.isfinite(variate(kept, np.ones(2), 3).correction["x"]).all()


def test_units_of_a_node_are_kept_apart() -> None:
    kept = context()
    variate(kept, np.zeros(2), 1).keep({"x": np.ones(2)})
    assert variate(kept, np.zeros(2), 2).correction["x"].any()
    assert not variate(kept, np.zeros(2), 2, unit=1).correction["x"].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_kept(bad: float, caplog: pytest.LogCaptureFixture) -> None:
    kept = context()
    variate(kept, np.zeros(2), 1).keep({"x": np.ones(2)})
    before = variate(kept, np.zeros(2), 2).correction["x"]
    variate(kept, np.zeros(2), 2).keep({"x": np.array([bad, 0.0])})
    assert "not finite" in caplog.text
    assert variate(kept, np.zeros(2), 2).correction["x"] == pytest.approx(before)


def test_another_model_begins_anew() -> None:
    kept = context()
    variate(kept, np.zeros(2), 1).keep({"x": np.ones(2)})
    assert not variate(kept, np.zeros(3), 2).correction["x"].any()
    other = ControlVariate(kept, unit=0, sent={"y": np.zeros(2)}, server_round=2, pace=1.0)
    assert not other.correction["y"].any()
