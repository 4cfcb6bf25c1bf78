"""A server that chooses the schema of a node's files, and what it can read off by that: nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from laws import ALARM
from local_grid import FIRST_NODE, LocalGrid
from node_charges import charges_of
from record_plans import record_plan
from scipy import stats

from fl_dp.app.compose import compose_settings
from fl_dp.app.settings import SETTINGS_KEY, Settings
from fl_dp.app.task_client import app
from fl_dp.app.workload import data_of_unit, initial_arrays_of, model_of, public_form_of
from fl_dp.codec import encode_text
from fl_dp.ledger import NodeLedger
from fl_dp.protocol.message_keys import RECORD_PLAN_KEY
from fl_dp.tasks.datasets import Form, load_dataset
from fl_dp.tasks.datasets.data_source import PUBLIC_FORMS

STEPS, RATE, SIZE = 2, 0.01, 20.0
PLAN = record_plan(
    epsilon=8.0, noise_multiplier=40.0, sampling_rate=0.5, steps=STEPS, participations=40
)
AGES = (31, 47, 47, 52, 68)
OWN = ["task=csv", "model=mlp", "model.hidden=400", "task.num_clients=2", "task.partition=nodes"]


class Hospital:
    """A node that trusts no server, with a table in a folder of its own."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.data = folder / "clinic"
        self.data.mkdir()
        rows = [f"{age},{100 + age},x{place},ill" for place, age in enumerate(AGES)]
        (self.data / "train.csv").write_text("\n".join(["age,pressure,note,label", *rows, ""]))
        self.ledger = folder / "ledger.db"
        own: dict[str, Any] = {
            "dp-data-path": str(self.data),
            "dp-ledger-path": str(self.ledger),
            "dp-require-privacy": "record",
            "dp-max-epsilon": 0.15,
            "dp-max-delta": 1e-5,
        }
        self.config = own | config
        context = Context(1, FIRST_NODE, self.config, RecordDict(), {})
        self._grid = LocalGrid(lambda message, _: app(message, context), 1)

    def asked(self, *overrides: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the model that a server sent, and the one that came back, flat."""
        settings = settings_of(*overrides)
        form = public_form_of(settings, self.config)
        arrays = RecordDict({"arrays": arrays_of(settings, form)})
        config: dict[str, Any] = {
            SETTINGS_KEY: settings.to_json(),
            RECORD_PLAN_KEY: encode_text(PLAN),
        }
        arrays["config"] = ConfigRecord(config | {"server-round": 1})
        message = Message(arrays, dst_node_id=FIRST_NODE, message_type="train")
        sent = flat(message)
        [reply] = self._grid.send_and_receive([message])
        assert not reply.has_error(), reply.error.reason
        return sent, flat(reply)

    def charges(self) -> int:
        return charges_of(self.ledger)


def settings_of(*overrides: str) -> Settings:
    return compose_settings(
        [
            *OWN,
            "privacy=dp_sgd",
            f"client.learning_rate={RATE}",
            f"dp_sgd.expected_batch_size={SIZE}",
            *overrides,
        ]
    )


def arrays_of(settings: Settings, form: Form | None) -> Any:
    from flwr.app import Array, ArrayRecord

    from fl_dp.model_arrays import get_arrays

    model = model_of(settings, form)
    return ArrayRecord({name: Array(each) for name, each in get_arrays(model).items()})


def flat(message: Message) -> np.ndarray:
    [arrays] = message.content.array_records.values()
    return np.concatenate([each.ravel() for each in arrays.to_numpy_ndarrays()]).astype(float)


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path)


SCHEMAS = {
    "all rows fit": ("task.columns=[age,pressure]", "task.classes=[well,ill]"),
    "no label fits": ("task.columns=[age,pressure]", "task.classes=[well,dead]"),
    "some labels fit": (
        "task.columns=[pressure]",
        "task.label_column=age",
        "task.classes=['31','99']",
    ),
    "text as a number": ("task.columns=[age,note]", "task.classes=[well,ill]"),
    "no such column": ("task.columns=[age,income]", "task.classes=[well,ill]"),
    "no such label": (
        "task.columns=[age,pressure]",
        "task.label_column=outcome",
        "task.classes=[well,ill]",
    ),
    "no such file": ("task=parquet", "task.columns=[age,pressure]", "task.classes=[well,ill]"),
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_that_does_not_fit_is_charged_and_answered_by_the_planned_noise(
    hospital: Hospital, schema: tuple[str, ...]
) -> None:
    # Rejects a right scale once in 1e6 runs; what five clipped records add is far below the noise.
    sent, back = hospital.asked(*schema)
    draws = (back - sent) / (RATE / SIZE * PLAN.noise_multiplier * math.sqrt(STEPS))
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    assert stats.kstest(draws / 1.2, stats.norm.cdf).pvalue < ALARM
    assert hospital.charges() == 1


def test_reading_off_ages_by_classes_that_fit_or_not_ends_with_the_budget(
    hospital: Hospital,
) -> None:
    moved, charged = [], []
    for age in range(42, 54):  # is everybody of this age, or of none of the others?
        sent, back = hospital.asked(
            "task.columns=[pressure]",
            "task.label_column=age",
            f"task.classes=['{age}','{age + 1}']",
        )
        moved.append(bool((back != sent).any()))
        charged.append(hospital.charges())
    # What comes back as it came is what could not be paid for, whatever was asked.
    paid = charged[-1]
    assert 0 < paid < len(moved)
    assert moved == [True] * paid + [False] * (len(moved) - paid)
    assert charged == [*range(1, paid + 1), *[paid] * (len(moved) - paid)]


def test_refusals_are_the_same_for_two_tables_that_share_no_row(tmp_path: Path) -> None:
    seen = []
    for number, ages in enumerate(((31, 47), (90,))):
        (tmp_path / str(number)).mkdir()
        one = Hospital(tmp_path / str(number))
        rows = [f"{age},{age},x,ill" for age in ages]
        (one.data / "train.csv").write_text("\n".join(["age,pressure,note,label", *rows]))
        answers = [one.asked(*SCHEMAS[name]) for name in SCHEMAS]
        seen.append([bool((back != sent).any()) for sent, back in answers])
    assert seen[0] == seen[1]


def test_no_schema_makes_the_data_of_two_nodes_look_alike(tmp_path: Path) -> None:
    # A server that could do that would have them share a budget if a row of both fits, or none.
    ledger = str(tmp_path / "shared.db")
    for number, ages in enumerate(((31, 47), (90, 12))):
        (tmp_path / str(number)).mkdir()
        names = {"dp-ledger-path": ledger, "dp-dataset-name": f"clinic {number}"}
        one = Hospital(tmp_path / str(number), **names)
        rows = [f"{age},{age},x,ill" for age in ages]
        (one.data / "train.csv").write_text("\n".join(["age,pressure,note,label", *rows]))
        one.asked(*SCHEMAS["no label fits"])
    with NodeLedger.read(ledger) as opened:
        assert [each.sources for each in opened.spendings] == [{"clinic 0"}, {"clinic 1"}]


# A schema of the owner's.


def pinned(tmp_path: Path, text: str) -> Hospital:
    schema = tmp_path / "schema.yaml"
    schema.write_text(text)
    return Hospital(tmp_path, **{"dp-data-schema": str(schema)})


def test_with_a_schema_of_the_owner_s_the_server_s_is_ignored(tmp_path: Path) -> None:
    from fl_dp.app.workload import data_of_unit

    own = "label_column: label\nclasses: [well, ill]\ncolumns: [pressure, age]\nmean: [100, 0]"
    node = pinned(tmp_path, own + "\nstd: [1, 1]")
    for overrides in SCHEMAS.values():
        if "task=parquet" in overrides:
            continue
        found = data_of_unit(settings_of(*overrides), 0, node.config, leave_out_unfit=True)
        assert found is not None
        dataset, _ = found
        np.testing.assert_array_equal(dataset.train_x, [[age, age] for age in AGES])
        assert dataset.train_y.tolist() == [1] * len(AGES)
        assert dataset.train_fit is not None and dataset.train_fit.all()
        assert public_form_of(settings_of(*overrides), node.config) == Form((2,), 2)


OWN_SCALE = "mean: [100, 0]\nstd: [1, 1]"
SERVERS_SCALE = ("task.mean=[100,0]", "task.std=[1,1]")


@pytest.mark.parametrize("own", ["", OWN_SCALE])
@pytest.mark.parametrize("servers", [(), SERVERS_SCALE])
def test_a_node_is_told_if_the_server_measures_the_model_on_another_scale(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own: str, servers: tuple[str, ...]
) -> None:
    columns = "label_column: label\nclasses: [well, ill]\ncolumns: [pressure, age]\n"
    node = pinned(tmp_path, columns + own)
    data_of_unit(settings_of(*servers), 0, node.config, leave_out_unfit=True)
    told = "one of the two should change" in caplog.text
    assert told is (bool(own) != bool(servers))


ENCODED = """label_column: label
classes: [well, ill]
columns:
  age: {kind: integer, range: [0, 110], missing: [-999]}
"""


def test_a_rehearsal_compares_schemas_that_encode_rows(tmp_path: Path) -> None:
    node = pinned(tmp_path, ENCODED)
    (tmp_path / "server").mkdir()
    beside = (f"task.data_dir={tmp_path / 'server'}", "task.partition=nodes")
    servers = tmp_path / "server" / "schema.yaml"
    servers.write_text(ENCODED)
    assert public_form_of(compose_settings(["task=csv", *beside]), node.config) == Form((2,), 2)
    for old, new in (("110", "99"), ("-999", "-1"), ("[well, ill]", "[ill, well]")):
        servers.write_text(ENCODED.replace(old, new))
        with pytest.raises(ValueError, match=r"schema.yaml and the server's schema differ in "):
            public_form_of(compose_settings(["task=csv", *beside]), node.config)
    servers.unlink()
    with pytest.raises(ValueError, match="differ in columns, types"):
        public_form_of(settings_of(), node.config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colums: [age]", "there is no key 'colums': did you mean columns"),
        ("[age]", "must hold keys and values"),
    ],
)
def test_a_schema_that_is_none_is_refused_by_its_key(
    tmp_path: Path, text: str, message: str
) -> None:
    node = pinned(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        public_form_of(settings_of(), node.config)


def test_a_schema_file_has_an_absolute_path() -> None:
    with pytest.raises(ValueError, match=r"dp-data-schema must be absolute: .*got 'schema"):
        public_form_of(settings_of(), {"dp-data-path": "/", "dp-data-schema": "schema.yaml"})


def test_a_node_that_requires_privacy_reads_no_folder_that_the_server_names(
    hospital: Hospital,
) -> None:
    settings = settings_of(f"task.data_dir={hospital.data}", "task.partition=iid")
    nameless = {key: each for key, each in hospital.config.items() if key != "dp-data-path"}
    with pytest.raises(PermissionError, match="the server names a folder"):
        data_of_unit(settings, 0, nameless | {"partition-id": 0})
    with pytest.raises(PermissionError, match="the server names a folder"):
        public_form_of(settings, nameless | {"partition-id": 0})


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_the_forms_of_public_sets_are_those_of_their_files(name: str) -> None:
    dataset = load_dataset(name)
    found = Form(dataset.input_shape, dataset.num_classes, dataset.vocabulary_size)
    assert found == PUBLIC_FORMS[name]


def test_the_forms_of_public_tables_are_those_of_their_columns() -> None:
    from fl_dp.tasks.datasets import form_of, shakespeare
    from fl_dp.tasks.datasets.public_tables import schema_of

    assert PUBLIC_FORMS["adult"] == form_of("csv", schema_of("adult"))
    vocabulary = len(shakespeare.VOCABULARY)
    assert PUBLIC_FORMS["shakespeare"] == Form((shakespeare.LENGTH,), vocabulary, vocabulary)


def test_a_model_is_the_same_with_and_without_the_data_set(tmp_path: Path) -> None:
    settings = compose_settings(["task=digits"])
    for one, other in zip(
        initial_arrays_of(settings).to_numpy_ndarrays(),
        arrays_of(settings, PUBLIC_FORMS["digits"]).to_numpy_ndarrays(),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
