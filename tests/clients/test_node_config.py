"""The node owner's keys: what protects a node is never ignored because it is misspelt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fl_dp.clients import NodeConfig, NodeConfigError
from fl_dp.clients.owner.node_config import POLICY_KEYS, PREFIX
from fl_dp.gate.policy import GATE_KEYS

ROOT = Path(__file__).resolve().parents[2]
LEDGER = {"dp-ledger-path": "/data/ledger.db"}
CAPPED = LEDGER | {"dp-max-epsilon": 4.0}
RECORD, LOCAL = frozenset({"record"}), frozenset({"local"})
DISTRIBUTED, RECORD_SUMS = frozenset({"distributed"}), frozenset({"distributed-records"})
SUMS = CAPPED | {"dp-require-privacy": "distributed"}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("dp-require-privcy", "dp-require-privacy"),
        ("dp-max_epsilon", "dp-max-epsilon"),
        ("dp-ledger", "dp-ledger-path"),
        ("max-epsilon", "dp-max-epsilon"),
        ("Secagg-Roster", "dp-secagg-roster"),
        ("dp-", ""),
    ],
)
def test_a_key_that_is_meant_for_us_and_is_none_is_refused_with_the_nearest(
    key: str, nearest: str
) -> None:
    with pytest.raises(NodeConfigError, match=f"'{key}' .* did you mean {nearest}"):
        NodeConfig.of({key: "record"})


OTHERS = "site dataset-path privacy path name epsilon fl-dp dp seed num-partitions"


@pytest.mark.parametrize("key", OTHERS.split())
def test_keys_of_others_are_not_read(key: str) -> None:
    assert NodeConfig.of({key: 0.8}) == NodeConfig.of({})


WORD = re.compile(r"(?<![\w.-])dp-[a-z]+(?:-[a-z]+)*(?![\w-])")


def test_every_key_that_is_named_anywhere_is_one() -> None:
    """Messages and pages name keys as texts; a text that is no key would be refused."""
    files = [
        *(ROOT / "fl_dp").rglob("*.py"),
        *(ROOT / "strategies").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "deploy").rglob("*.*"),
    ]
    # Not what Python has compiled there, where a name runs into the byte after it.
    texts = (file.read_text() for file in files if file.is_file() and file.suffix != ".pyc")
    named = {word for text in texts for word in WORD.findall(text)}
    # Packages, and what a page misspells on purpose.
    others = {"dp-accounting", "dp-transformers", "dp-require-privcy"}
    assert named - others <= POLICY_KEYS.keys() | GATE_KEYS.keys()
    assert named >= {"dp-max-epsilon", "dp-ledger-path"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dp-max-epsilon", 0),
        ("dp-max-epsilon", float("nan")),
        ("dp-max-epsilon", float("inf")),
        ("dp-max-epsilon", True),
        ("dp-max-delta", 0.0),
        ("dp-max-delta", 1.0),
    ],
)
def test_a_cap_that_caps_nothing_is_refused(key: str, value: Any) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} should be"):
        NodeConfig.of(CAPPED | {key: value})


@pytest.mark.parametrize(
    "lacking",
    [
        {"dp-max-epsilon": 4.0},
        LEDGER | {"dp-max-delta": 1e-5},
        LEDGER | {"dp-require-privacy": "record"},
        LEDGER | {"dp-require-privacy": "any"},
        {"dp-witness-path": "/mnt/other/ward.heads"},
    ],
    ids=str,
)
def test_a_ledger_a_cap_and_what_needs_them_come_together(lacking: dict[str, Any]) -> None:
    with pytest.raises(NodeConfigError):
        NodeConfig.of(lacking)


@pytest.mark.parametrize(
    ("asked", "required"),
    [
        ("record", (RECORD,)),
        ("local", (LOCAL,)),
        ("record+local", (RECORD | LOCAL,)),
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
    said = {} if asked is None else {"dp-require-privacy": asked}
    assert NodeConfig.of(CAPPED | said).required == required


@pytest.mark.parametrize("said", [{}, {"dp-require-privacy": "any"}])
def test_any_privacy_is_a_secure_sum_s_only_where_the_nodes_are_known(said: dict[str, str]) -> None:
    """Without a roster its promise falls with a server that lies, as no other does."""
    pinned = NodeConfig.of(CAPPED | said | {"dp-secagg-roster": "/srv/roster.json"})
    assert pinned.required == (RECORD, LOCAL, DISTRIBUTED, RECORD_SUMS)


def test_without_a_cap_nothing_is_required() -> None:
    assert NodeConfig.of(LEDGER).required == ()
    assert NodeConfig.of({"dp-require-privacy": "none"}).required == ()


@pytest.mark.parametrize("asked", ["records", "local+record", "", True])
def test_an_unknown_requirement_is_refused(asked: Any) -> None:
    with pytest.raises(NodeConfigError, match="dp-require-privacy should be 'record', 'local'"):
        NodeConfig.of(CAPPED | {"dp-require-privacy": asked})


@pytest.mark.parametrize(
    "key",
    ["dp-ledger-path", "dp-witness-path", "dp-data-path", "dp-data-schema", "dp-secagg-roster"],
)
def test_a_relative_path_is_refused(key: str) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} must be absolute"):
        NodeConfig.of({key: "ward/files"})


def policy(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "policy.yaml").write_text(text, encoding="utf-8")
    return {"dp-policy-path": str(tmp_path / "policy.yaml")}


def test_a_policy_in_a_file_says_the_same_as_the_keys(tmp_path: Path) -> None:
    text = 'dp-ledger-path: "/data/l.db"\ndp-max-epsilon: 4.0\ndp-require-privacy: record\n'
    given = policy(tmp_path, text + "dp-policy-expires: 2999-12-31\n")
    keys = LEDGER | {
        "dp-ledger-path": "/data/l.db",
        "dp-max-epsilon": 4.0,
        "dp-require-privacy": "record",
    }
    read = NodeConfig.of(given).model_copy(update={"policy_path": None})
    assert read == NodeConfig.of(keys | {"dp-policy-expires": "2999-12-31"})
    # It is read anew, so that tightening it needs no new start.
    policy(tmp_path, text.replace("4.0", "1.0"))
    assert NodeConfig.of(given).max_epsilon == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp-max-epsilon: 4.0\ndp-unit-name: x\n", "needs a ledger"),
        ("max-epsilon: 4.0\n", "did you mean dp-max-epsilon"),
        ("partition-id: 3\n", "no key of a policy"),
        ("", "must hold lines like"),
        ("4: 5\n", "must hold lines like"),
        ("dp-max-epsilon: [4\n", "can't be read"),
        ("dp-ledger-path: /l.db\ndp-ledger-path: /m.db\n", "given twice"),
        ("dp-dataset-name: ward\n", "given twice, in --node-config and in"),
        ("# " + 100_000 * "x" + "\ndp-max-epsilon: 4.0\n", "it is longer than 100,000 bytes"),
        ("dp-policy-expires: 2027-13-01\n", "can't be read"),
        ("dp-data-path: !!python/object/apply:os.system [id]\n", "can't be read"),
    ],
)
def test_a_policy_that_can_not_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(NodeConfigError, match=said):
        NodeConfig.of(policy(tmp_path, text) | {"dp-dataset-name": "ward"})


@pytest.mark.parametrize(
    ("key", "value"),
    [("dp-dataset-name", " "), ("dp-unit-name", 12), ("dp-tell-exhausted", "no")],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(NodeConfigError):
        NodeConfig.of({key: value})


def test_spending_goes_on_under_the_most_lasting_name() -> None:
    assert NodeConfig.of({"dp-dataset-name": "ward", "dp-unit-name": "north"}).source == "ward"
    assert NodeConfig.of({"dp-unit-name": "north", "partition-id": 3}).source == "north"
    assert "partition" not in NodeConfig.of({}).source  # all that one ledger holds is one


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dp-secagg-min-sum", 1),
        ("dp-secagg-min-sum", True),
        ("dp-secagg-colluding", -1),
    ],
)
def test_a_wrong_number_for_secure_sums_is_refused(key: str, value: Any) -> None:
    with pytest.raises(NodeConfigError, match=f"{key} should be .*got {value!r}"):
        NodeConfig.of(SUMS | {key: value})


def test_keys_of_secure_sums_protect_nothing_where_none_is_required() -> None:
    with pytest.raises(NodeConfigError):
        NodeConfig.of(CAPPED | {"dp-require-privacy": "record", "dp-secagg-min-sum": 5})
    assert NodeConfig.of(SUMS | {"dp-secagg-min-sum": 5}).secagg_min_sum == 5


def test_one_run_may_not_be_allowed_more_than_all_together() -> None:
    assert NodeConfig.of(CAPPED | {"dp-record-epsilon": 4.0}).record_epsilon == 4.0
    with pytest.raises(NodeConfigError, match="dp-record-epsilon=5 lets one run spend more"):
        NodeConfig.of(CAPPED | {"dp-record-epsilon": 5.0})


def test_every_field_has_its_key_and_its_words() -> None:
    fields = set(NodeConfig.model_fields) - {"partition_id"}
    assert {PREFIX + name.replace("_", "-") for name in fields} == POLICY_KEYS.keys()
