"""A gate that clips alone: the server adds the noise, and the ledger says that it was relied on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from gated_site import adding, replying

from fl_dp.codec import encode_text
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import ConsentRevoked, Use
from fl_dp.protocol.failures import kind_in
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.updates.arrays import narrowed, plain_array, values_of

CLIP: dict[str, Any] = {
    "dp-gate-promise": "clip",
    "dp-gate-noise-multiplier": None,
    "dp-max-epsilon": None,
    "dp-gate-clipping-norm": 0.5,
}
MODEL: dict[str, Any] = {"w": np.zeros(4), "b": np.ones(3, np.float32)}
USE = Use(run=5, purpose="train", app="hospital/heart==1.4.0@3f2a9c01")


@pytest.mark.parametrize(("update", "norm"), [(0.01, 0.02), (7.0, 0.5), (np.nan, 0.0)])
def test_an_update_is_bounded_and_nothing_is_added(site: Any, update: float, norm: float) -> None:
    here = site(adding(update), **CLIP)
    [arrived] = here.answers(MODEL)
    assert set(arrived.message.content) == {"arrays", "metrics"}
    assert dict(arrived.message.content["metrics"]) == {"num-examples": 1}
    assert np.linalg.norm(arrived.arrays["w"]) == pytest.approx(norm, rel=1e-6)
    assert arrived.arrays["b"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("start", [1.0, -1.0, 0.0, 2.0**15])
@pytest.mark.parametrize("update", [1e3, -1e3, 1e-5])
def test_rounding_to_the_model_s_numbers_adds_nothing_to_the_norm(
    site: Any, dtype: str, start: float, update: float
) -> None:
    size = 2_000  # of which each moves by less than half of a float16's step at 1.0, or by more
    came = np.full(size, start)
    here = site(moving(came + update), **CLIP)
    here.server.ask("train", {"arrays": ArrayRecord({"w": in_dtype(came, dtype)})})
    here.step()
    [arrived] = here.server.arrived
    [array] = arrived.message.content["arrays"].values()
    sent = values_of(array).astype(float)
    assert np.linalg.norm(sent - came) <= 0.5 * (1 + 1e-12)
    assert (np.abs(sent - came) <= 0.5 / np.sqrt(size) * (1 + 1e-12)).all()


def in_dtype(values: Any, dtype: str) -> Array:
    if dtype != "bfloat16":
        return Array(values.astype(dtype))
    return plain_array(narrowed(values.astype(np.float32)), declared=dtype)


def moving(trained: Any) -> Any:
    return replying(lambda message: {"arrays": ArrayRecord({"w": Array(trained)})})


def test_the_ledger_says_that_the_server_was_relied_upon_and_no_epsilon(site: Any) -> None:
    here = site(adding(1.0), **CLIP, **{"dp-unit-name": "north"})
    here.answers(MODEL, rounds=3)
    with NodeLedger.read(here.ledger) as ledger:
        assert ledger.spendings == ()
        [reliance] = ledger.reliances
    assert (reliance.source, reliance.clipping_norm, reliance.answers) == ("north", 0.5, 3)


def test_where_that_can_t_be_written_the_app_does_not_start(site: Any) -> None:
    here = site(adding(1.0), **CLIP)
    here.ledger.mkdir()
    [arrived] = here.answers(MODEL)
    assert not here.seen
    assert arrived.message.has_error() or not arrived.arrays["w"].any()


def test_a_round_with_an_instruction_is_refused(site: Any) -> None:
    here = site(adding(1.0), **CLIP)
    noise = NoiseInstruction(scheme="gaussian", noise_multiplier=9.0, clipping_norm=0.1)
    instruction = RoundInstruction(server_round=1, client_noise=noise)
    here.server.train(MODEL, {INSTRUCTION_KEY: encode_text(instruction)})
    here.step()
    assert kind_in(here.server.arrived[0].message.error.reason) == "PolicyRefusal"
    assert not here.seen


def test_a_ledger_whose_owner_revoked_notes_no_reliance(tmp_path: Any) -> None:
    with NodeLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.note_reliance("north", clipping_norm=0.5, use=USE)
        ledger.revoke()
        with pytest.raises(ConsentRevoked):
            ledger.note_reliance("north", clipping_norm=0.5, use=USE)
        [reliance] = ledger.reliances
    assert reliance.answers == 1


@pytest.mark.parametrize(("source", "norm"), [("", 0.5), ("north", 0.0), ("north", float("nan"))])
def test_what_can_t_be_meant_is_not_written(tmp_path: Any, source: str, norm: float) -> None:
    with NodeLedger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(ValueError):
            ledger.note_reliance(source, clipping_norm=norm, use=USE)
        assert ledger.reliances == ()
