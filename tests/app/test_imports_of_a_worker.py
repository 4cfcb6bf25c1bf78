"""A worker of a simulation imports what its run uses, and no accountant that it has no use for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import local_grid

from fl_dp.codec import encode_text
from fl_dp.mechanisms import GaussianBundle
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction

ACCOUNTING = {"dp_accounting", "scipy", "sqlalchemy"}
OPACUS = {"opacus"}
COMMAND_LINE = {"hydra", "sklearn"}
RULES_OF_VMAP = {"sympy"}  # which PyTorch loads for some losses
BUNDLE = GaussianBundle(noise_multiplier=1.0, clipping_norms=(0.5,))
NOISE = NoiseInstruction(scheme="gaussian", noise_multiplier=1.0, clipping_norm=1.0)

# What is asked comes as JSON; what is loaded after all of it goes back as JSON.
CLIENT = """
import json, sys

from flwr.app import ConfigRecord, Context, Message, RecordDict
from fl_dp.client_app import app
from fl_dp.app.settings import SETTINGS_KEY, Settings
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.app.workload import initial_arrays_of
from local_grid import FIRST_NODE, LocalGrid

settings = Settings().hosting(10)
for kind, instruction in json.loads(sys.argv[1]):
    config = {SETTINGS_KEY: settings.to_json(), INSTRUCTION_KEY: instruction, "server-round": 1}
    content = RecordDict({"arrays": initial_arrays_of(settings), "config": ConfigRecord(config)})
    context = Context(1, FIRST_NODE, {"partition-id": 3}, RecordDict(), {})
    grid = LocalGrid(lambda message, _: app(message, context), 1, introduces=True)
    message = Message(content, dst_node_id=FIRST_NODE, message_type=kind)
    [reply] = grid.send_and_receive([message])
    assert not reply.has_error(), reply.error
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Return the modules that a fresh process has loaded at the end of `code`."""
    folders = os.pathsep.join([*sys.path, str(Path(local_grid.__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": folders},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_client_without_dp_sgd_loads_neither_opacus_nor_an_accountant() -> None:
    """After it has rehearsed, and trained one unit, several, and one with noise of its own."""
    several = RoundInstruction(server_round=1, units=(0, 1), max_units=10, bundle=BUNDLE)
    asked = [
        ("query.fl_dp_identity", several),
        ("train", RoundInstruction(server_round=1)),
        ("train", several),
        ("train", RoundInstruction(server_round=1, client_noise=NOISE)),
    ]
    loaded = loaded_by(CLIENT, json.dumps([(kind, encode_text(each)) for kind, each in asked]))
    assert (ACCOUNTING | OPACUS | COMMAND_LINE | RULES_OF_VMAP) & loaded == set()
    assert {"torch", "fl_dp.tasks.datasets.shipped"} <= loaded  # it did train


def test_what_is_checked_before_a_run_starts_loads_no_torch(tmp_path: Path) -> None:
    code = """
import json, sys
from fl_dp.commands.jobs import find_jobs, prepare
for job in find_jobs(sys.argv[1:], multirun=False).trainings:
    prepare(job)
print(json.dumps(list(sys.modules)))
"""
    loaded = loaded_by(code, f"output_dir={tmp_path}", "rounds=2")
    assert (OPACUS | {"ray", "sklearn", "torch"}) & loaded == set()
    assert "fl_dp.app.planning" in loaded  # it was prepared


BEFORE_THE_ENGINE = """
import json, sys

from fl_dp.app.local import launch, one_process

def started(engine):
    print(json.dumps(sorted(sys.modules)), flush=True)
    raise SystemExit(0)

launch.LocalSuperLink.__enter__ = one_process.OneProcess.__enter__ = started
sys.argv[:1] = ["fl-dp", "run"]

from fl_dp.commands.entry import main

main()
"""


def test_an_engine_is_started_before_flower_and_accountants_are_imported(tmp_path: Path) -> None:
    """They are imported while it starts, in processes of its own."""
    loaded = loaded_by(BEFORE_THE_ENGINE, f"output_dir={tmp_path}", "rounds=2")
    ours = {"fl_dp.ledger", "fl_dp.strategies", "fl_dp.app.run_folder"}
    assert (ACCOUNTING | OPACUS | ours | {"flwr", "ray", "sklearn", "torch"}) & loaded == set()
    assert "fl_dp.app.settings" in loaded  # they were composed


def test_flowers_engine_loads_the_server_s_app_without_what_a_training_imports() -> None:
    """Ray starts after that alone: Flower loads both apps first, one after the other."""
    loaded = loaded_by("import json, sys, fl_dp.server_app; print(json.dumps(list(sys.modules)))")
    rooms = {"fl_dp.app.server", "fl_dp.ledger", "fl_dp.strategies"}
    assert (ACCOUNTING | OPACUS | COMMAND_LINE | rooms | {"torch"}) & loaded == set()
