"""Mods ask whoever runs them which app it is, who verifies apps, and for a process of their own."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from one_node import INSTRUCTION, Federation, code

from fl_dp.clients import numpy_client_app
from fl_dp.clients.owner.mod_host import ModHost, hosted_by, present_host
from fl_dp.clients.owner.running_app import RunningApp
from fl_dp.ledger import NodeLedger
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.secagg import Refused

MODEL = {"w": np.zeros(3)}
NOISE = NoiseInstruction(scheme="gaussian", noise_multiplier=8.0, clipping_norm=1.0)
NOISED = RoundInstruction(server_round=1, client_noise=NOISE)


class Elsewhere(ModHost):
    """A host that knows which app it is for, and can't fork."""

    def __init__(self, name: str = "hospital/heart", *, verified: bool | None = True) -> None:
        self.app = RunningApp(name=name, version="1.4.0", fab_hash="3f2a9c01" + "a" * 56)
        self.verified = verified

    def running_app(self) -> RunningApp:
        return self.app

    def apps_are_verified(self) -> bool | None:
        return self.verified

    def apart(self, *told: Any, **options: Any) -> Any:
        raise Refused("terms", "no process here reaches the app")


def test_the_policy_judges_the_app_of_the_host_and_the_ledger_names_it(
    tmp_path: Path, node: Any, told: Any
) -> None:
    ledger = tmp_path / "ledger.db"
    owner = {
        "dp-ledger-path": str(ledger),
        "dp-max-epsilon": 4.0,
        "dp-allowed-apps": "hospital/heart==1.4.0@3f2a9c01",
    }
    client = told()
    here = node(numpy_client_app(lambda context: client), owner)
    assert here.train(MODEL, NOISED).has_error()  # nobody can see which app this process runs
    with hosted_by(Elsewhere("hospital/liver")):
        assert here.train(MODEL, NOISED).has_error()
    with hosted_by(Elsewhere(verified=False)):
        assert here.train(MODEL, NOISED).has_error()
    assert client.calls == 0
    with hosted_by(Elsewhere()):
        assert not here.train(MODEL, NOISED).has_error()
    assert client.calls == 1
    with NodeLedger.read(ledger) as read:
        [use] = read.uses
    assert use.use is not None
    assert use.use.app == "hospital/heart==1.4.0@3f2a9c01" + "a" * 56


def test_a_host_that_can_t_fork_takes_part_in_no_sum_with_secret_coins(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    coins = federation.content(replace(INSTRUCTION, sampling_rate=0.5))
    with hosted_by(Elsewhere()):
        assert code(federation.train()) == "answered"
        reply = federation.train(coins, number=2, sampling_rate=0.5, reply_after=3600.0)
        assert code(reply) == "Refused terms"
    assert federation.charges() == 1


def test_a_host_is_that_of_its_own_thread() -> None:
    seen = []
    with hosted_by(Elsewhere()):
        other = threading.Thread(target=lambda: seen.append(type(present_host())))
        other.start()
        other.join()
        assert isinstance(present_host(), Elsewhere)
    assert seen == [ModHost]
    assert type(present_host()) is ModHost
