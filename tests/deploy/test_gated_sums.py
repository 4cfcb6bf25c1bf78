"""Real SuperNodes behind gates in a secure sum, with a client app that knows nothing of fl-dp."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gated_deployment import GatedDeployment
from written_apps import write_app

from fl_dp import PrivacyLedger
from fl_dp.ledger import NodeLedger
from fl_dp.promise import Enforcement
from fl_dp.statement import privacy_statement

# The third one's app sends its sum times a thousand.
SITES = {"north": 0.1, "south": 0.2, "west": 1e6}
CLIENT = """\
import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    update = float(context.node_config["update"])
    Path(TOLD, f"{update}.json").write_text(json.dumps(sorted(message.content)))
    model = message.content["arrays"]["w"].numpy()
    trained = ArrayRecord({"w": Array((model + update).astype(model.dtype))})
    metrics = MetricRecord({"num-examples": 4711})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)
"""
SERVER = """\
import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.strategies import DPFedAvg

app = ServerApp()
PLAN = DistributedPlan(
    budget=PrivacyBudget(epsilon=900.0, delta=1e-5), rounds=1, num_clients=3,
    clipping=FixedClipping(norm=1.0), sampling=PoissonSampling(sampling_rate=1.0),
    secure_sum=SecureSum(), contribution_check=False,
).calibrated()

@app.main()
def main(grid, context):
    initial = ArrayRecord({"w": Array(np.zeros(4))})
    with PrivacyLedger.open(Path(TOLD, "server.db"), PLAN) as ledger:
        strategy = DPFedAvg(plan=PLAN, ledger=ledger)
        result = strategy.start(grid, initial, num_rounds=1)
    told = {"model": result.arrays["w"].numpy().tolist(), "noise": PLAN.noise_multiplier}
    Path(TOLD, "released.json").write_text(json.dumps(told))
"""


POLICY = {
    "max_epsilon": 2000.0,
    "gate_promise": "distributed",
    "gate_clipping_norm": 1.0,
    "gate_answer_after": 60.0,
}


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_a_sum_of_real_sites_is_right_whatever_one_app_sends(tmp_path: Path) -> None:
    app = write_app(tmp_path / "plain", client=CLIENT, server=SERVER, TOLD=str(tmp_path))
    with GatedDeployment(tmp_path / "processes", **POLICY) as running:
        for name, update in SITES.items():
            running.join(name, {"update": update})
        assert running.run(app, []) == "finished:completed"
        # How each app starts, its owner alone is told before it trains.
        assert all(re.search("@[0-9a-f]{64} .*starts? here", running.log(name)) for name in SITES)
    released = json.loads((tmp_path / "released.json").read_text())
    # Four coordinates of length 1 are a half each. Six standard deviations of three shares.
    expected = (0.1 + 0.2 + 0.5) / 3
    assert released["model"] == pytest.approx([expected] * 4, abs=4 * released["noise"])
    for name, update in SITES.items():
        assert json.loads((tmp_path / f"{update}.json").read_text()) == ["arrays", "config"]
        with NodeLedger.read(running.ledger_of(name)) as ledger:
            [spending] = ledger.spendings
        assert spending.charges == 1
    with PrivacyLedger.read(tmp_path / "server.db") as ledger:
        statement = privacy_statement(ledger)
    assert statement.enforcement is Enforcement.COOPERATIVE
