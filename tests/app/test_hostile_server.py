"""A server that lies gets nothing from a node with the documented policy (docs/node_policy.md).

Each attack of the list is played against a node that runs the app of this project, with the policy
of that page and nothing else. Nothing means: an error without a text, or the model as it was sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
import types
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.primitives import asymmetric_ed25519
from flwr.supernode.start_client_internal import _verify_fab
from local_grid import FIRST_NODE, LocalGrid
from node_charges import charges_of
from one_node import Federation, code
from record_plans import record_plan
from safetensors.torch import save_file
from torch import nn

from fl_dp import PrivacyBudget
from fl_dp.app import settings_encoder
from fl_dp.app.compose import compose_settings
from fl_dp.app.settings import SETTINGS_KEY
from fl_dp.app.settings.features import ScatteringSettings
from fl_dp.app.settings_encoder import encoder_digest
from fl_dp.app.task_client import app
from fl_dp.app.workload import data_of_unit, model_of, public_form_of
from fl_dp.clients.owner import round_interval
from fl_dp.clients.owner.round_interval import Moment
from fl_dp.codec import encode_text
from fl_dp.ledger import NodeLedger, witness_at
from fl_dp.model_arrays import get_arrays
from fl_dp.plan import RecordPlan
from fl_dp.protocol.message_keys import (
    ENCODER_KEY,
    RECORD_PLAN_KEY,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
)
from fl_dp.tasks.datasets import data_source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "node_policy.md"
POLICY, SCHEMA, SUMS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
ROWS = "age,pressure,note,outcome\n61,140.5,3,ill\n47,118,9,well\n52,121.5,1,ill\n"
PLAN = record_plan(
    epsilon=1e6, delta=0.5, noise_multiplier=2.0, sampling_rate=0.5, steps=2, participations=40
)
HONEST = (
    "task=csv",
    "task.partition=nodes",
    "task.num_clients=2",
    "model=logistic",
    "privacy=dp_sgd",
    "dp_sgd.expected_batch_size=2",
    "task.columns=[age,pressure]",
    "task.label_column=outcome",
    "task.classes=[well,ill]",
)
GAP = 1000.0  # seconds between two rounds of a server that keeps to the policy


class Clock:
    """Both clocks of the node's machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment = Moment(wall=1.8e9, since_boot=500.0, boot="one")
        monkeypatch.setattr(round_interval.Moment, "now", lambda: self.moment)

    def passes(self, seconds: float) -> None:
        wall, since_boot = self.moment.wall + seconds, self.moment.since_boot + seconds
        self.moment = replace(self.moment, wall=wall, since_boot=since_boot)

    def is_set(self, seconds: float) -> None:
        self.moment = replace(self.moment, wall=self.moment.wall + seconds)


class Clinic:
    """A node whose owner wrote down the documented policy, and a server that asks it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock(monkeypatch)
        self._path, self._folder = monkeypatch, folder
        for name in ("srv/private", "srv/clinic", "mnt/other/witness"):
            (folder / name).mkdir(parents=True)
        (folder / "srv/private/schema.yaml").write_text(SCHEMA)
        (folder / "srv/clinic/train.csv").write_text(ROWS)
        self.policy = folder / "srv/private/policy.yaml"
        self.write()
        self.ledger = folder / "srv/private/ledger.db"
        self.config = {"dp-policy-path": str(self.policy)}
        self.runs("hospital", "heart", "1.4.0")
        context = Context(1, FIRST_NODE, dict(self.config), RecordDict(), {})
        self.grid = LocalGrid(lambda message, _: app(message, context), 1)

    def write(self, **changed: str) -> None:
        """Write the documented policy, its folders inside the test's."""
        text = re.sub(r": /(srv|mnt)/", rf": {self._folder}/\1/", POLICY)
        for key, value in changed.items():
            name = f"dp-{key.replace('_', '-')}"
            text, found = re.subn(rf"^{name}: .*$", f"{name}: {value}", text, flags=re.MULTILINE)
            assert found == 1
        self.policy.write_text(text)

    def runs(self, publisher: str, name: str, version: str) -> None:
        """Let the SuperNode have unpacked another app, and load it."""
        place = self._folder / "flwr" / "apps" / f"{publisher}.{name}.{version}.3f2a9c01"
        place.mkdir(parents=True)
        (place / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "{version}"\n'
            f'[tool.flwr.app]\npublisher = "{publisher}"\n'
        )
        self._path.syspath_prepend(str(place))

    def allows(self, line: str) -> None:
        """Add a line to the policy."""
        self.policy.write_text(f"{self.policy.read_text()}\n{line}\n")

    def ask(
        self,
        kind: str,
        config: dict[str, Any],
        *overrides: str,
        model: dict[str, Any] | None = None,
    ) -> tuple[Any, Message]:
        """Return the model that was sent, flat, and the reply, a round's time after the last."""
        self.clock.passes(GAP)
        settings = compose_settings([*HONEST, *overrides])
        if model is None:
            model = get_arrays(model_of(settings, public_form_of(settings, {})))
        sent = ArrayRecord({name: Array(each) for name, each in model.items()})
        base: dict[str, Any] = {SETTINGS_KEY: settings.to_json(), "server-round": 1}
        told = ConfigRecord(base | config)
        content = RecordDict({"arrays": sent, "config": told})
        message = Message(content, dst_node_id=FIRST_NODE, message_type=kind)
        before = flat(sent)
        [reply] = self.grid.send_and_receive([message])
        return before, reply

    def train(self, *overrides: str, plan: RecordPlan | None = PLAN) -> str:
        """Return how a train message is answered: `trained`, `nothing` or the error's reason."""
        config = {} if plan is None else {RECORD_PLAN_KEY: encode_text(plan)}
        return self._answered(*self.ask("train", config, *overrides))

    def train_from(self, model: dict[str, Any], *overrides: str, said: str) -> str:
        """The same for a model of its own, by a message that says an encoder."""
        config = {RECORD_PLAN_KEY: encode_text(PLAN), ENCODER_KEY: said}
        return self._answered(*self.ask("train", config, *overrides, model=model))

    def _answered(self, sent: Any, reply: Message) -> str:
        if reply.has_error():
            return str(reply.error.reason)
        [arrays] = reply.content.array_records.values()
        assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 1}
        back = flat(arrays)
        return "nothing" if (back == sent).all() else "trained"

    @property
    def charges(self) -> int:
        return charges_of(self.ledger)


def flat(arrays: ArrayRecord) -> Any:
    return np.concatenate([each.ravel() for each in arrays.to_numpy_ndarrays()])


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    data_source._load_once.cache_clear()
    return Clinic(tmp_path, monkeypatch)


def test_an_honest_server_is_answered_and_charged(clinic: Clinic) -> None:
    assert clinic.train() == "trained"
    assert clinic.charges == 1
    with NodeLedger.read(clinic.ledger) as opened:
        [use] = opened.uses
    assert use.use is not None
    assert use.use.app == "hospital/heart==1.4.0@3f2a9c01"
    assert (use.use.run, use.use.purpose, use.source) == (1, "train", "north")


# Another app.


@pytest.mark.parametrize(
    "sent",
    [
        ("hospital", "heart", "2.0.0"),
        ("hospital", "heart", "1.1.9"),  # an old one, with an old one's defects
        ("hospital", "liver", "1.4.0"),
    ],
)
def test_another_app_gets_nothing(clinic: Clinic, sent: tuple[str, str, str]) -> None:
    clinic.runs(*sent)
    assert clinic.train() == "PolicyRefusal"
    assert clinic.charges == 0


def test_an_app_that_can_not_be_seen_gets_nothing(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [])
    clinic.clock.passes(GAP)
    message = Message(RecordDict(), dst_node_id=FIRST_NODE, message_type="train")
    [reply] = clinic.grid.send_and_receive([message])
    assert reply.error.reason == "PolicyRefusal"


def test_flower_keeps_out_an_app_that_no_trusted_key_has_signed() -> None:
    """What the documented `--trusted-entities` does, before any app of ours could look."""
    key = ed25519.Ed25519PrivateKey.generate()
    trusted = {
        "fpk_1": key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    }

    def bundle(content: bytes, signed: bytes, signer: ed25519.Ed25519PrivateKey) -> Fab:
        digest = hashlib.sha256(signed).digest()
        text = asymmetric_ed25519.create_message_to_sign(digest, 7)
        signature = asymmetric_ed25519.sign_message(signer, text)
        said = {"signed_at": 7, "signature": base64.urlsafe_b64encode(signature).decode()}
        return Fab("", content, {"fpk_1": json.dumps(said), "valid_license": "yes"})

    assert _verify_fab(bundle(b"app", b"app", key), trusted)
    assert not _verify_fab(bundle(b"another app", b"app", key), trusted)
    other = ed25519.Ed25519PrivateKey.generate()
    assert not _verify_fab(bundle(b"another app", b"another app", other), trusted)
    assert not _verify_fab(Fab("", b"another app", {"valid_license": "yes"}), trusted)


# Another schema.


@pytest.mark.parametrize(
    "overrides",
    [
        ("task.columns=[age,note]",),
        ("task.columns=[note,pressure]", "task.classes=['0','1']", "task.label_column=age"),
        ("task.data_dir=/etc",),
    ],
)
def test_another_schema_reads_nothing_else(clinic: Clinic, overrides: tuple[str, ...]) -> None:
    settings = compose_settings([*HONEST, *overrides])
    found = data_of_unit(settings, 0, clinic.config, leave_out_unfit=True)
    assert found is not None
    dataset, _ = found
    np.testing.assert_array_equal(dataset.train_x, [[61, 140.5], [47, 118], [52, 121.5]])
    assert dataset.train_y.tolist() == [1, 0, 1]


def test_a_model_for_another_schema_comes_back_as_it_was_sent(clinic: Clinic) -> None:
    assert clinic.train("task.columns=[age,pressure,note]") == "nothing"
    assert clinic.train("task.classes=[well,ill,dead]") == "nothing"
    assert clinic.charges == 0


def test_a_row_of_another_type_counts_as_a_record_without_content(clinic: Clinic) -> None:
    table = Path(clinic._folder / "srv/clinic/train.csv")
    table.write_text(ROWS.replace("47,118", "47.5,118").replace("52,121.5", "52,high"))
    found = data_of_unit(compose_settings(HONEST), 0, clinic.config, leave_out_unfit=True)
    assert found is not None
    assert found[0].train_fit is not None
    assert found[0].train_fit.tolist() == [True, False, False]
    # Neither of them shows: the reply is that of any other round, and charged.
    assert clinic.train() == "trained"
    assert clinic.charges == 1


def test_data_of_which_no_row_fits_are_answered_for_by_noise_and_charged(clinic: Clinic) -> None:
    (clinic._folder / "srv/clinic/train.csv").write_text("income\n7\n")
    assert clinic.train() == "trained"  # on noise
    assert clinic.charges == 1


# Another encoder.


class Encoders:
    """Networks that can be named by the server, and how often a node has made one."""

    def __init__(self, clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clinic, self._folder = clinic, clinic._folder
        self.made = 0
        monkeypatch.setenv("XDG_CACHE_HOME", str(clinic._folder / "cache"))
        module = types.ModuleType("clinic_encoders")
        for name, width in (("agreed", 3), ("other", 5)):
            monkeypatch.setattr(module, name, partial(self._make, width), raising=False)
            save_file(nn.Linear(2, width).state_dict(), self._folder / name)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def _make(self, width: int) -> nn.Module:
        self.made += 1
        return nn.Linear(2, width)

    def overrides(self, name: str, *, digest: str | None = None) -> tuple[str, ...]:
        """The settings of a server that means one of them, and says this digest, else its own."""
        written = (
            "features=checkpoint",
            f"features.file={self._folder / name}",
            f"features.module=clinic_encoders:{name}",
        )
        return (*written, f"features.digest={digest or self.digest(name)}")

    def digest(self, name: str) -> str:
        settings = compose_settings([*HONEST, *self.overrides(name, digest="null")])
        assert isinstance(settings.features, ScatteringSettings)
        return encoder_digest(settings.features, None)

    def asked_of_node(
        self, name: str, *, digest: str | None = None, said: str | None = None, public: int = 0
    ) -> str:
        """Train on an encoder, of which message and settings say a digest; only a node counts."""
        overrides = (*self.overrides(name, digest=digest), f"features.public={public}")
        # The server builds the model that it sends, too: with what it really means.
        settings = compose_settings([*HONEST, *self.overrides(name)])
        sent = get_arrays(model_of(settings, public_form_of(settings, {})))
        settings_encoder._unfitted.cache_clear()
        self.made = 0
        return self._clinic.train_from(
            sent, *overrides, said=self.digest(name) if said is None else said
        )


@pytest.fixture
def encoders(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> Encoders:
    return Encoders(clinic, monkeypatch)


def test_no_code_and_weights_of_the_server_s_choice(clinic: Clinic, encoders: Encoders) -> None:
    assert encoders.asked_of_node("agreed") == "nothing"
    assert encoders.made == clinic.charges == 0


def test_an_encoder_that_the_owner_names_is_trained_on_and_no_other(
    clinic: Clinic, encoders: Encoders
) -> None:
    agreed = encoders.digest("agreed")
    clinic.allows(f"dp-encoder-digests: {agreed}")
    assert encoders.asked_of_node("agreed") == "trained"
    assert encoders.made == clinic.charges == 1
    assert encoders.asked_of_node("other") == "PolicyRefusal"
    # A message that says one encoder, and settings that mean another, or none.
    assert encoders.asked_of_node("other", said=agreed) == "nothing"
    assert encoders.made == 0
    assert encoders.asked_of_node("other", digest=agreed, said=agreed) == "nothing"
    assert encoders.made == 0
    assert encoders.asked_of_node("agreed", public=1) == "nothing"
    assert encoders.made == 0
    assert clinic.train() == "PolicyRefusal"
    assert clinic.charges == 1


# Less noise, and more rounds.


def test_no_noise_at_all_gets_nothing(clinic: Clinic) -> None:
    assert clinic.train(plan=None) == "PolicyRefusal"
    assert clinic.charges == 0


@pytest.mark.parametrize("change", [{"noise_multiplier": 0.05}, {"steps": 10_000}])
def test_less_noise_than_the_cap_pays_for_gets_nothing(
    clinic: Clinic, change: dict[str, Any]
) -> None:
    assert clinic.train(plan=replace(PLAN, **change)) == "nothing"
    assert clinic.charges == 0


def test_more_rounds_than_the_cap_pays_for_get_nothing(clinic: Clinic) -> None:
    answers = [clinic.train() for _ in range(8)]
    paid = answers.count("trained")
    assert 0 < paid < len(answers)
    assert answers == ["trained"] * paid + ["nothing"] * (len(answers) - paid)
    with NodeLedger.read(clinic.ledger) as opened:
        [spending] = opened.spendings
    assert spending.epsilon().best <= 4.0
    assert spending.budget == PrivacyBudget(epsilon=4.0, delta=1e-5)


def test_a_round_that_comes_too_early_gets_nothing_and_costs_nothing(clinic: Clinic) -> None:
    assert clinic.train() == "trained"
    for pause in (-GAP, 100.0 - GAP, 700.0 - GAP):  # each message comes GAP after that
        clinic.clock.passes(pause)
        assert clinic.train() == "PolicyRefusal"
    assert clinic.charges == 1
    assert clinic.train() == "trained"  # what was refused does not count


@pytest.mark.parametrize("jump", [3e7, -3e7])
def test_a_clock_that_is_set_brings_no_round_nearer(clinic: Clinic, jump: float) -> None:
    assert clinic.train() == "trained"
    clinic.clock.is_set(jump)
    clinic.clock.passes(-GAP)
    assert clinic.train() == "PolicyRefusal"
    assert clinic.train() == "trained"


# An older ledger.


def test_an_older_ledger_gets_nothing(clinic: Clinic, tmp_path: Path) -> None:
    assert clinic.train() == "trained"
    kept = shutil.copy(clinic.ledger, tmp_path / "kept.db")
    assert clinic.train() == "trained"
    shutil.copy(kept, clinic.ledger)
    assert clinic.train() == "nothing"
    assert clinic.charges == 1  # the older copy, which nobody charged
    witness = witness_at(tmp_path / "mnt/other/witness/north.heads")
    with pytest.raises(RuntimeError, match="it is an older copy"):
        NodeLedger.read(clinic.ledger, witness=witness)


def test_no_ledger_at_all_gets_nothing(clinic: Clinic) -> None:
    assert clinic.train() == "trained"
    clinic.ledger.unlink()
    assert clinic.train() == "nothing"


# Other questions, and an end.


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("evaluate", "any"),
        ("evaluate", STATISTIC_QUERY_KEY),
        (f"query.{STATISTIC_ACTION}", STATISTIC_QUERY_KEY),
    ],
)
def test_other_questions_get_nothing(clinic: Clinic, kind: str, key: str) -> None:
    _, reply = clinic.ask(kind, {key: "{}", RECORD_PLAN_KEY: encode_text(PLAN)})
    assert reply.error.reason == "PolicyRefusal"
    assert clinic.charges == 0


def test_nothing_is_answered_once_the_permission_has_ended(clinic: Clinic) -> None:
    assert clinic.train() == "trained"
    clinic.write(policy_expires="2020-01-31")
    assert clinic.train() == "PolicyRefusal"
    assert clinic.charges == 1


def test_a_policy_with_a_slip_answers_nothing(clinic: Clinic) -> None:
    text = clinic.policy.read_text()
    for slip in (
        text.replace("dp-max-epsilon: 4.0\n", ""),
        text.replace("dp-max-epsilon: 4.0", "dp-max-epsilon:"),
        text.replace("dp-min-round-interval", "dp-min-round-intervall"),
        text.replace("dp-allowed-apps", "dp-allowed-app"),
        text.replace("heart>=1.2,<2", "heart >= 1.2"),
        text + "dp-max-epsilon: 40.0\n",
    ):
        assert slip != text
        clinic.policy.write_text(slip)
        assert clinic.train() == "NodeConfigError"
    assert clinic.charges == 0


# Secure sums.


@pytest.fixture
def documented_sums() -> dict[str, Any]:
    """The lines of the page for secure sums that are not about files."""
    lines = yaml.safe_load(SUMS)
    return {key: each for key, each in lines.items() if key != "dp-secagg-roster"}


def test_a_sum_over_too_few_clients_gets_nothing(
    tmp_path: Path, documented_sums: dict[str, Any]
) -> None:
    federation = Federation(tmp_path, pinned=True, **documented_sums)
    assert code(federation.train(least=3)) == "Refused policy"
    assert federation.charges() == 0
    assert code(federation.train()) == "answered"
    assert federation.charges() == 1


def test_training_without_a_sum_gets_nothing(
    tmp_path: Path, documented_sums: dict[str, Any]
) -> None:
    federation = Federation(tmp_path, pinned=True, **documented_sums)
    assert code(federation.ask("train", federation.content())) == "PolicyRefusal"
    assert federation.charges() == 0
