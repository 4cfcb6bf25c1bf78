"""The node owner's keys: what protects a node is never ignored because it is misspelt."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fl_dp.clients import NodeConfig, NodeConfigError
from fl_dp.clients.node_config import POLICY_KEYS

LEDGER = {"ledger-path": "/data/ledger.db"}
CAPPED = LEDGER | {"max-epsilon": 4.0}
RECORD, LOCAL = frozenset({"record"}), frozenset({"local"})
DISTRIBUTED, RECORD_SUMS = frozenset({"distributed"}), frozenset({"distributed-records"})
SUMS = CAPPED | {"require-privacy": "distributed"}


def test_every_key_is_read() -> None:
    read = NodeConfig.of(
        CAPPED
        | {
            "max-delta": 1e-6,
            "require-privacy": "record",
            "allow-unverified-apps": True,
            "tell-exhausted": True,
            "dataset-name": "ward",
            "unit-name": "north",
            "data-path": "/srv/ward",
            "data-schema": "/srv/schema.toml",
            "partition-id": 3,
            "num-partitions": 8,
        }
    )
    assert read == NodeConfig(
        ledger_path="/data/ledger.db",
        max_epsilon=4.0,
        max_delta=1e-6,
        required=(RECORD,),
        allow_unverified_apps=True,
        tell_exhausted=True,
        dataset_name="ward",
        unit_name="north",
        data_path="/srv/ward",
        data_schema="/srv/schema.toml",
        partition_id=3,
    )


def test_in_a_simulation_nothing_is_set_but_the_partition() -> None:
    read = NodeConfig.of({"partition-id": 3, "num-partitions": 8})
    assert read == NodeConfig(partition_id=3)
    assert (read.node_name, read.source) == ("partition-3", "partition-3")


def test_underscores_are_read_as_hyphens() -> None:
    spelt = CAPPED | {"require-privacy": "local", "unit-name": "north", "data-path": "/srv"}
    assert NodeConfig.of({key.replace("-", "_"): value for key, value in spelt.items()}) == (
        NodeConfig.of(spelt)
    )


def test_both_spellings_of_a_key_at_once_are_refused() -> None:
    with pytest.raises(NodeConfigError, match="max-epsilon is given twice"):
        NodeConfig.of(CAPPED | {"max_epsilon": 1e9})


ALMOST_OURS = {
    "require-privacy": "require-privcy required-privacy requires privacy Require-Privacy",
    "max-epsilon": "max-epsilonn max_espilon maxEpsilon max-eps epsilon",
    "max-delta": "max-dleta",
    "ledger-path": "ledger ledgerpath ledger-file fl-dp-ledger-path",
    "witness-path": "witness ledger-witness-path",
    "policy-path": "policy",
    "policy-expires": "expires",
    "data-path": "datapath",
    "data-schema": "data-schma",
    "dataset-name": "dataset-nmae",
    "unit-name": "unit-nam",
    "tell-exhausted": "tell-exhuasted",
    "allow-unverified-apps": "allow-unverified-app",
    "partition-id": "partitions-id",
}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [(key, nearest) for nearest, keys in ALMOST_OURS.items() for key in keys.split()],
)
def test_a_key_that_is_almost_ours_is_refused_with_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(NodeConfigError, match=f"'{key}' .* did you mean {nearest}"):
        NodeConfig.of({key: "record"})


OTHERS = (
    "site dataset-path dataset_path dataset data-dir data-root model-path name node-id node-name "
    "region gpu device batch-size local-epochs retry-policy policy-network cache-policy min-delta "
    "max-steps reps num-classes cache-dir train-split seed"
)


@pytest.mark.parametrize("key", OTHERS.split())
def test_keys_of_other_projects_are_left_alone(key: str) -> None:
    assert NodeConfig.of({key: 0.8, "partition-id": 1}) == NodeConfig(partition_id=1)


@pytest.mark.parametrize("key", ["max-epsilon", "max-delta"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "4", True])
def test_a_cap_that_caps_nothing_is_refused(key: str, value: Any) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} must be a positive number"):
        NodeConfig.of(CAPPED | {key: value})


def test_a_delta_that_caps_nothing_is_refused() -> None:
    with pytest.raises(NodeConfigError, match="max-delta must be a positive number below 1"):
        NodeConfig.of(CAPPED | {"max-delta": 1.0})
    with pytest.raises(NodeConfigError, match="alone caps nothing: add max-epsilon"):
        NodeConfig.of(LEDGER | {"max-delta": 1e-5})


def test_a_cap_needs_a_ledger() -> None:
    with pytest.raises(NodeConfigError, match="max-epsilon=4 needs a ledger"):
        NodeConfig.of({"max-epsilon": 4.0})


@pytest.mark.parametrize("asked", ["record", "local", "record+local", "distributed", "any"])
def test_a_requirement_needs_a_cap(asked: str) -> None:
    with pytest.raises(NodeConfigError, match="needs a cap and a ledger"):
        NodeConfig.of(LEDGER | {"require-privacy": asked})


@pytest.mark.parametrize(
    ("asked", "required"),
    [
        ("record", (RECORD,)),
        ("local", (LOCAL,)),
        ("record+local", (RECORD | LOCAL,)),
        ("local+record", (RECORD | LOCAL,)),
        ("any", (RECORD, LOCAL)),
        ("distributed", (DISTRIBUTED,)),
        ("distributed-records", (RECORD_SUMS, DISTRIBUTED)),
        ("none", ()),
        (None, (RECORD, LOCAL)),
    ],
)
def test_a_cap_requires_some_privacy_unless_the_owner_writes_none(
    asked: str | None, required: tuple[frozenset[str], ...]
) -> None:
    said = {} if asked is None else {"require-privacy": asked}
    assert NodeConfig.of(CAPPED | said).required == required


@pytest.mark.parametrize("said", [{}, {"require-privacy": "any"}])
def test_any_privacy_is_a_secure_sum_s_only_where_the_nodes_are_known(said: dict[str, str]) -> None:
    """Without a roster its promise falls with a server that lies, as no other does."""
    pinned = NodeConfig.of(CAPPED | said | {"secagg-roster": "/srv/roster.json"})
    assert pinned.required == (RECORD, LOCAL, DISTRIBUTED, RECORD_SUMS)


def test_without_a_cap_nothing_is_required() -> None:
    assert NodeConfig.of(LEDGER).required == ()
    assert NodeConfig.of({"require-privacy": "none"}).required == ()


@pytest.mark.parametrize("asked", ["records", "Example", "trusted", "", True, "record,local"])
def test_an_unknown_requirement_is_refused(asked: Any) -> None:
    with pytest.raises(NodeConfigError, match="require-privacy must be"):
        NodeConfig.of(CAPPED | {"require-privacy": asked})


@pytest.mark.parametrize(
    "key", ["ledger-path", "witness-path", "data-path", "data-schema", "secagg-roster"]
)
def test_a_relative_path_is_refused(key: str) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} must be absolute"):
        NodeConfig.of({key: "ward/files"})


def policy(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "policy.yaml").write_text(text, encoding="utf-8")
    return {"policy-path": str(tmp_path / "policy.yaml")}


def test_a_policy_in_a_file_says_the_same_as_the_keys(tmp_path: Path) -> None:
    text = 'ledger-path: "/data/l.db"\nmax_epsilon: 4.0\nrequire-privacy: record\n'
    given = policy(tmp_path, text + "policy-expires: 2999-12-31\n")
    keys = LEDGER | {"ledger-path": "/data/l.db", "max-epsilon": 4.0, "require-privacy": "record"}
    assert NodeConfig.of(given) == NodeConfig.of(keys | {"policy-expires": "2999-12-31"})
    # It is read anew, so that tightening it needs no new start.
    policy(tmp_path, text.replace("4.0", "1.0"))
    assert NodeConfig.of(given).max_epsilon == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-epsilon: 4.0\nunit-name: x\n", "needs a ledger"),
        ("site: north\n", "'site' is no key of a policy"),
        ("max-epsilonn: 4.0\n", "did you mean max-epsilon"),
        ("partition-id: 3\n", "no key of a policy"),
        ("policy-path: /other.yaml\n", "no key of a policy"),
        ("- max-epsilon\n", "must hold lines like"),
        ("", "must hold lines like"),
        ("4: 5\n", "must hold lines like"),
        ("max-epsilon: [4\n", "can't be read"),
        ("ledger-path: /l.db\nledger_path: /m.db\n", "given twice"),
        ("dataset-name: ward\n", "given twice, in --node-config and in"),
        ("policy-expires: soon\n", "must be a day like"),
        ("# " + 100_000 * "x" + "\nmax-epsilon: 4.0\n", "it is longer than 100,000 bytes"),
        ("policy-expires: 2027-13-01\n", "can't be read"),
        ("data-path: !!python/object/apply:os.system [id]\n", "can't be read"),
    ],
)
def test_a_policy_that_can_not_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(NodeConfigError, match=said):
        NodeConfig.of(policy(tmp_path, text) | {"dataset-name": "ward"})


def test_a_policy_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeConfigError, match="can't be read, so nothing is answered"):
        NodeConfig.of({"policy-path": str(tmp_path / "policy.yaml")})


def test_a_witness_without_a_ledger_is_refused() -> None:
    with pytest.raises(NodeConfigError, match="witness-path has no ledger to watch"):
        NodeConfig.of({"witness-path": "/mnt/other/ward.heads"})
    assert NodeConfig.of(LEDGER | {"witness-path": "postgresql://h/d"}).witness_path


@pytest.mark.parametrize("key", ["ledger-path", "dataset-name", "unit-name", "data-path"])
@pytest.mark.parametrize("value", ["", " ", True])
def test_an_empty_text_is_refused(key: str, value: Any) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} must be a text"):
        NodeConfig.of({key: value})


@pytest.mark.parametrize("value", ["true", 1, "no"])
def test_a_permission_is_true_or_false(value: Any) -> None:
    with pytest.raises(NodeConfigError, match="tell-exhausted must be true or false"):
        NodeConfig.of({"tell-exhausted": value})


def test_spending_goes_on_under_the_most_lasting_name() -> None:
    assert NodeConfig.of({"dataset-name": "ward", "unit-name": "north"}).source == "ward"
    assert NodeConfig.of({"unit-name": "north", "partition-id": 3}).source == "north"
    assert "partition" not in NodeConfig.of({}).source  # all that one ledger holds is one


def test_every_key_of_secure_sums_is_read() -> None:
    read = NodeConfig.of(
        SUMS | {"secagg-roster": "/data/roster.json", "secagg-min-sum": 10, "secagg_colluding": 2}
    )
    assert (read.roster, read.least_sum, read.colluding) == ("/data/roster.json", 10, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("secagg-min-sum", 1),
        ("secagg-min-sum", 2.5),
        ("secagg-min-sum", True),
        ("secagg-colluding", -1),
    ],
)
def test_a_wrong_number_for_secure_sums_is_refused(key: str, value: Any) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} must be .*, .*got {value!r}|{key} must be"):
        NodeConfig.of(SUMS | {key: value})


@pytest.mark.parametrize("key", ["secagg-rooster", "secagg-min-sums", "secagg", "min-secagg"])
def test_a_misspelt_key_of_secure_sums_is_refused(key: str) -> None:
    with pytest.raises(NodeConfigError, match="did you mean"):
        NodeConfig.of(SUMS | {key: 3})


@pytest.mark.parametrize("required", ["record", "local", "none"])
def test_keys_of_secure_sums_protect_nothing_where_none_is_required(required: str) -> None:
    with pytest.raises(NodeConfigError, match='require-privacy="distributed"'):
        NodeConfig.of(CAPPED | {"require-privacy": required, "secagg-min-sum": 5})
    assert NodeConfig.of(SUMS | {"secagg-min-sum": 5}).least_sum == 5


def test_one_run_may_not_be_allowed_more_than_all_together() -> None:
    assert NodeConfig.of(CAPPED | {"record-epsilon": 4.0}).record_epsilon == 4.0
    with pytest.raises(NodeConfigError, match="record-epsilon=5 lets one run spend more"):
        NodeConfig.of(CAPPED | {"record-epsilon": 5.0})


def test_every_field_of_the_configuration_has_its_key() -> None:
    named = {each.field for each in POLICY_KEYS} - {None}
    assert named | {"partition_id"} == {each.name for each in fields(NodeConfig)}
